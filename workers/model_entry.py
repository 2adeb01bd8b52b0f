"""How an agent learns of models that the packaged catalog does not have: from the scheduler, else its last run."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec

from core.whole_file import replace_file
from workers.added_models import decode_model, encode_model
from workers.catalog import CatalogModel

BEFORE = "model-entry.json"
"""Where an earlier release has kept the entry of its one model."""
WAIT_S = 10.0
"""Seconds for which a scheduler is waited for before the entries of the agent's last run are used."""

log = logging.getLogger(__name__)


class EntrySource(Protocol):
    """The connection to the schedulers."""

    entries: dict[str, CatalogModel]
    entries_arrived: asyncio.Event


def entry_path(data_dir: Path, name: str) -> Path:
    """Where the entry of a model is kept, which simulated engines read, too."""
    return data_dir / "model-entries" / f"{quote(name, safe='')}.json"


async def wanted_entries(
    source: EntrySource, names: Sequence[str], data_dir: Path, *, wait_s: float = WAIT_S
) -> Mapping[str, CatalogModel]:
    """The entries of the added models `names`, which are kept in `data_dir`.

    A restarted agent takes the kept ones for those that no scheduler sends within `wait_s` seconds. While one is
    neither kept nor sent it waits for as long as it takes: the model may not have been added yet.
    """
    kept = {name: entry for name in names if (entry := _kept(data_dir, name)) is not None}
    try:
        async with asyncio.timeout(wait_s):
            await source.entries_arrived.wait()
    except TimeoutError:
        missing = [name for name in names if name not in source.entries]
        unknown = [name for name in missing if name not in kept]
        if not unknown:
            what = ", ".join(missing)
            log.warning("no scheduler sends the entry of the model %s; the one of the last run is used", what)
        else:
            what = ", ".join(unknown)
            log.warning(
                "the model %s is not known; waiting until it is added with `penstock models add`", what
            )
            await source.entries_arrived.wait()
    found = {name: source.entries.get(name) or kept[name] for name in names}
    for name, entry in found.items():
        path = entry_path(data_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, encode_model(entry).encode())
    return found


def _kept(data_dir: Path, name: str) -> CatalogModel | None:
    """The entry of the last run; None when there is none of this model that can be read."""
    for path in (entry_path(data_dir, name), data_dir / BEFORE):
        with suppress(OSError, msgspec.MsgspecError):
            kept = decode_model(path.read_bytes())
            if kept.name == name:
                return kept
    return None
