"""The entry of an added model reaches an agent: from a scheduler, else from its last run, else later."""

import asyncio
from pathlib import Path

import msgspec

from tests.support.waiting import until
from tests.unit.workers.test_model_definition import made
from workers.catalog import CatalogModel
from workers.model_entry import wanted_entry


class Schedulers:
    """What the connection to the schedulers has received."""

    def __init__(self) -> None:
        self.entry: CatalogModel | None = None
        self.entry_arrived = asyncio.Event()

    def send(self, entry: CatalogModel) -> None:
        self.entry = entry
        self.entry_arrived.set()


async def test_the_entry_of_a_scheduler_is_taken_and_kept(tmp_path: Path) -> None:
    model, _ = made()
    schedulers, path = Schedulers(), tmp_path / "host" / "entry.json"
    waiting = asyncio.create_task(wanted_entry(schedulers, model.name, path, wait_s=0.0))
    await until(lambda: not schedulers.entry_arrived.is_set() and not waiting.done(), 5.0)
    schedulers.send(model)
    assert await waiting == model
    assert await wanted_entry(Schedulers(), model.name, path, wait_s=0.0) == model, "kept for the next run"


async def test_a_scheduler_goes_before_the_last_run_and_another_model_is_not_taken(tmp_path: Path) -> None:
    old, _ = made()
    new = msgspec.structs.replace(old, title="newer")
    path = tmp_path / "entry.json"
    first = Schedulers()
    first.send(old)
    await wanted_entry(first, old.name, path)
    second = Schedulers()
    second.send(new)
    assert (await wanted_entry(second, old.name, path)).title == "newer"
    waiting = asyncio.create_task(wanted_entry(Schedulers(), "acme/other", path, wait_s=0.0))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done, "the entry of another model is no stand-in"
    waiting.cancel()
