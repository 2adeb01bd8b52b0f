"""How an agent learns of a model that the packaged catalog does not have: from the scheduler, else its last run."""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

import msgspec

from workers.added_models import decode_model, encode_model
from workers.catalog import CatalogModel

WAIT_S = 10.0
"""Seconds for which a scheduler is waited for before the entry of the agent's last run is used."""

log = logging.getLogger(__name__)


class EntrySource(Protocol):
    """The connection to the schedulers."""

    entry: CatalogModel | None
    entry_arrived: asyncio.Event


async def wanted_entry(source: EntrySource, name: str, path: Path, *, wait_s: float = WAIT_S) -> CatalogModel:
    """The entry of the added model `name`, which is kept in `path`.

    A restarted agent takes the kept one when no scheduler sends it within `wait_s` seconds. Without one it waits for as
    long as it takes: the model may not have been added yet.
    """
    kept = _kept(name, path)
    try:
        async with asyncio.timeout(wait_s):
            await source.entry_arrived.wait()
    except TimeoutError:
        if kept is not None:
            log.warning("no scheduler sends the entry of the model %s; the one of the last run is used", name)
            return kept
        log.warning("the model %s is not known; waiting until it is added with `penstock models add`", name)
        await source.entry_arrived.wait()
    entry = source.entry
    if entry is None:
        raise RuntimeError("an entry has arrived without its content")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(encode_model(entry))
    scratch.replace(path)
    return entry


def _kept(name: str, path: Path) -> CatalogModel | None:
    """The entry of the last run; None when there is none of this model that can be read."""
    try:
        kept = decode_model(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    return kept if kept.name == name else None
