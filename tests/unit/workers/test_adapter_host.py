"""The adapters of a host: fetched once, checked, removed when they are deleted or room is needed."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from core.errors import EngineFailed
from tests.support.waiting import until
from workers import engine_adapters
from workers.adapter_host import GONE_S, AdapterHost, socket_path
from workers.adapter_wire import (
    PART_BYTES,
    AdapterAnswer,
    AdapterFile,
    AdapterPartAnswer,
    AdapterPartQuestion,
    AdapterQuestion,
    AdaptersGone,
    AdaptersKept,
    Answer,
    Question,
)

CONTENT = {name: name.encode() * 40_000 for name in ("m:one:a", "m:two:b", "m:three:c")}


class Platform:
    """The scheduler's answers, and a host that asks for them."""

    def __init__(self, tmp_path: Path, bound_bytes: int = 10**9) -> None:
        self.asked: list[Question] = []
        self.deleted: set[str] = set()
        self.unloaded: list[str] = []
        self.fails: set[str] = set()
        self.damaged = False
        self.away = False
        self.name = "weights"
        self.host = AdapterHost(tmp_path, self.ask, self.unload, bound_bytes=bound_bytes)
        (tmp_path / "adapters").mkdir(parents=True, exist_ok=True)

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionError("no scheduler serves this host")
        match question:
            case AdapterQuestion(number, name):
                if name not in CONTENT:
                    return AdapterAnswer(number)
                file = AdapterFile(self.name, len(CONTENT[name]), hashlib.sha256(CONTENT[name]).hexdigest())
                return AdapterAnswer(number, f"id-{name}", [file])
            case AdapterPartQuestion(number, adapter_id, _, part):
                data = CONTENT[adapter_id.removeprefix("id-")][part * PART_BYTES : (part + 1) * PART_BYTES]
                return AdapterPartAnswer(number, data[::-1] if self.damaged else data)
            case AdaptersKept(number, ids):
                return AdaptersGone(number, [each for each in ids if each in self.deleted])

    async def unload(self, name: str) -> None:
        self.unloaded.append(name)
        if name in self.fails:
            raise EngineFailed("the engine answered 500")


async def test_an_adapter_is_fetched_once_for_all_that_ask(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    first, second = await asyncio.gather(*(platform.host.path_of("m:one:a") for _ in range(2)))
    assert first is not None
    assert first == second
    assert (first / "weights").read_bytes() == CONTENT["m:one:a"]
    assert [type(each).__name__ for each in platform.asked] == [
        "AdapterQuestion",
        *["AdapterPartQuestion"] * 2,
    ]
    later = Platform.__new__(Platform)
    later.__dict__ |= platform.__dict__ | {"asked": []}
    again = AdapterHost(tmp_path, later.ask, later.unload, bound_bytes=10**9)
    assert await again.path_of("m:one:a") == first  # by the next agent as well
    assert later.asked == []


async def test_one_that_is_not_known_is_none_and_leaves_nothing(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    assert await platform.host.path_of("m:none:x") is None
    assert list((tmp_path / "adapters").iterdir()) == []


async def test_damaged_files_and_files_elsewhere_are_refused(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.damaged = True
    with pytest.raises(EngineFailed, match="wrong content"):
        await platform.host.path_of("m:one:a")
    platform.damaged, platform.name = False, "../../weights"
    with pytest.raises(EngineFailed, match="cannot be named"):
        await platform.host.path_of("m:one:a")
    assert list((tmp_path / "adapters").iterdir()) == []
    platform.name = "weights"
    assert await platform.host.path_of("m:one:a") is not None


def age(path: Path, seconds: float) -> None:
    """Make a file or directory older."""
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


def there(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "adapters").iterdir() if path.is_dir()}


async def test_a_deleted_one_is_unloaded_and_its_files_go_when_no_request_can_need_them(
    tmp_path: Path,
) -> None:
    platform = Platform(tmp_path)
    for name in ("m:one:a", "m:two:b"):
        await platform.host.path_of(name)
    await platform.host.remove_deleted()
    platform.deleted = {"id-m:one:a", "id-m:two:b"}
    platform.fails = {"m:two:b"}
    await platform.host.remove_deleted()
    assert (set(platform.unloaded), platform.host._on_disk().keys()) == ({"m:one:a", "m:two:b"}, {"m:two:b"})
    await platform.host._remove_gone()
    assert there(tmp_path) == {"id-m:one:a", "id-m:two:b"}
    age(tmp_path / "adapters" / "id-m:one:a" / "penstock-gone", GONE_S)
    await platform.host._remove_gone()
    assert there(tmp_path) == {"id-m:two:b"}
    platform.fails = set()
    await platform.host.remove_deleted()
    assert platform.host._on_disk() == {}


async def test_room_is_made_of_those_that_no_engine_has_loaded(tmp_path: Path) -> None:
    platform = Platform(tmp_path, bound_bytes=sum(map(len, CONTENT.values())) - 1)
    first = await platform.host.path_of("m:one:a")
    second = await platform.host.path_of("m:two:b")
    assert first is not None
    assert second is not None
    age(first, 100.0)
    platform.host._loaded = {"h/0": ("boot-1", ["m:one:a"])}
    await platform.host.path_of("m:three:c")
    assert (there(tmp_path), platform.unloaded) == ({"id-m:one:a", "id-m:three:c"}, [])

    platform.host._loaded = {"h/0": ("boot-1", ["m:one:a", "m:three:c"])}
    with pytest.raises(EngineFailed, match="no room for another adapter now"):
        await platform.host.path_of("m:two:b")
    assert platform.unloaded == ["m:one:a"]
    assert platform.host.of("h/0", "boot-1") == ["m:three:c"]
    assert await platform.host.path_of("m:one:a") == first  # asked for again, before its files have gone
    with pytest.raises(EngineFailed, match="PENSTOCK_ADAPTERS_GB"):
        await Platform(tmp_path / "small", bound_bytes=100).host.path_of("m:one:a")


async def test_an_engine_asks_over_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform(tmp_path)
    running = asyncio.create_task(platform.host.run())
    await until(socket_path(tmp_path).exists)
    monkeypatch.setenv(engine_adapters.SOCKET_VARIABLE, str(socket_path(tmp_path)))
    monkeypatch.setenv(engine_adapters.ENGINE_VARIABLE, "h/0")
    assert platform.host.of("h/0", "boot-1") == []
    assert await engine_adapters.ask_agent("m:one:a") == str(tmp_path / "adapters" / "id-m:one:a")
    assert platform.host.of("h/0", "boot-1") == ["m:one:a"]
    assert await engine_adapters.ask_agent("m:none:x") is None
    platform.away = True
    with pytest.raises(RuntimeError, match="cannot be fetched now: no scheduler serves this host"):
        await engine_adapters.ask_agent("m:two:b")
    assert platform.host.of("h/0", "boot-1") == ["m:one:a"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    later = Platform(tmp_path)
    running = asyncio.create_task(later.host.run())
    await until(lambda: later.host._loaded)
    assert later.host.of("h/0", "boot-1") == ["m:one:a"]  # of an engine that the next agent has adopted
    assert later.host.of("h/0", "boot-2") == []  # a new engine knows none
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on when the socket's file goes
        await engine_adapters.ask_agent("m:one:a")


async def test_a_path_that_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    host = AdapterHost(tmp_path / ("long" * 30), platform.ask, platform.unload, bound_bytes=1)
    with pytest.raises(EngineFailed, match="too long for a socket"):
        await host.run()
