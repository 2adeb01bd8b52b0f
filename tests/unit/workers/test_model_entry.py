"""The entries of added models reach an agent: from a scheduler, else from its last run, else later."""

import asyncio
from pathlib import Path

import msgspec

from tests.support.waiting import until
from tests.unit.workers.test_model_definition import made
from workers.added_models import encode_model
from workers.catalog import CatalogModel
from workers.model_entry import BEFORE, entry_path, wanted_entries


class Schedulers:
    """What the connection to the schedulers has received."""

    def __init__(self) -> None:
        self.entries: dict[str, CatalogModel] = {}
        self.entries_arrived = asyncio.Event()

    def send(self, *entries: CatalogModel) -> None:
        self.entries |= {each.name: each for each in entries}
        self.entries_arrived.set()


ONE, TWO = (made(name=name)[0] for name in ("acme/model", "acme/other"))
NAMES = (ONE.name, TWO.name)
BOTH = {ONE.name: ONE, TWO.name: TWO}


def keep(data_dir: Path, entry: CatalogModel) -> None:
    """Keep an entry as a run of the agent does."""
    path = entry_path(data_dir, entry.name)
    path.parent.mkdir(parents=True)
    path.write_text(encode_model(entry))


async def waits(waiting: "asyncio.Task[object]") -> None:
    """Check that nothing ends the wait by itself."""
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done


async def test_the_entries_of_a_scheduler_are_taken_and_kept(tmp_path: Path) -> None:
    schedulers, place = Schedulers(), tmp_path / "host"
    waiting = asyncio.create_task(wanted_entries(schedulers, NAMES, place, wait_s=0.0))
    await until(lambda: not schedulers.entries_arrived.is_set() and not waiting.done(), 5.0)
    schedulers.send(ONE, TWO)
    assert await waiting == BOTH
    assert await wanted_entries(Schedulers(), NAMES, place, wait_s=0.0) == BOTH, "kept for the next run"


async def test_a_scheduler_goes_before_the_last_run_and_another_model_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / BEFORE).write_text(encode_model(ONE))  # as an earlier release has kept it
    assert await wanted_entries(Schedulers(), NAMES[:1], tmp_path, wait_s=0.0) == {ONE.name: ONE}
    second, newer = Schedulers(), msgspec.structs.replace(ONE, title="newer")
    second.send(newer)
    assert (await wanted_entries(second, NAMES[:1], tmp_path))[ONE.name].title == "newer"
    waiting = asyncio.create_task(wanted_entries(Schedulers(), NAMES[1:], tmp_path, wait_s=0.0))
    await waits(waiting)
    waiting.cancel()


async def test_a_kept_entry_stands_in_for_one_that_is_not_sent_when_all_are_known(tmp_path: Path) -> None:
    part = Schedulers()
    keep(tmp_path, ONE)
    part.entries[TWO.name] = TWO
    assert await wanted_entries(part, NAMES, tmp_path, wait_s=0.0) == BOTH
    keep(tmp_path / "other", ONE)
    none = Schedulers()
    waiting = asyncio.create_task(wanted_entries(none, NAMES, tmp_path / "other", wait_s=0.0))
    await waits(waiting)
    none.send(ONE, TWO)
    assert await waiting == BOTH
