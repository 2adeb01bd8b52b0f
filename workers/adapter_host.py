"""The LoRA adapters of a host: engines ask for them over a Unix socket, the scheduler gives their files.

An adapter is fetched when the first request for it reaches an engine of the host, which waits meanwhile, and stays in a
directory of its own, from which vLLM reads it again whenever it has dropped it from memory. The engine's side is
`workers.engine_adapters`.
"""

import asyncio
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from core.errors import EngineFailed
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

log = logging.getLogger(__name__)

GONE_S = 3600.0
"""Seconds after which the files of an unloaded adapter are removed. Requests that run still use it, and vLLM reads its
files again when it has dropped it from memory; the engine's core ends when they are missing."""
REPORTED = 64
"""Most adapters of one engine that are reported: the newest."""
CHECK_S = 30.0
"""Seconds between two looks whether adapters are deleted."""
ASK_S = 60.0
"""Seconds that one answer of the scheduler may take."""
MAX_SOCKET_PATH = 107
"""Bytes of the path of a Unix socket (sun_path in unix(7))."""
MAX_LINE_BYTES = 64 * 1024
_NAME_FILE, _GONE_FILE = "penstock.json", "penstock-gone"
"""The file that is written last into an adapter's directory, with its name; and the one that marks it as unloaded."""

AnswerT = TypeVar("AnswerT", AdapterAnswer, AdapterPartAnswer, AdaptersGone)
Ask = Callable[[Question], Awaitable[Answer]]
"""Asks the scheduler. Raises ConnectionError."""
Unload = Callable[[str], Awaitable[None]]
"""Has all engines of the host forget an adapter by its name; running requests keep it. Raises EngineFailed."""


def socket_path(data_dir: Path) -> Path:
    """The socket on which engines ask."""
    return data_dir.resolve() / "adapters.sock"


class AdapterHost:
    """Fetches adapters for the engines of this host, and gives up those that are deleted or that room is needed for."""

    def __init__(
        self,
        data_dir: Path,
        ask: Ask,
        unload: Unload,
        *,
        bound_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`bound_bytes`: disk space beyond which those that no engine has loaded are removed. `now` returns Unix time,
        to which the times of files are compared."""
        self._directory = data_dir.resolve() / "adapters"
        self._socket = socket_path(data_dir)
        self._ask, self._unload, self._bound, self._now = ask, unload, bound_bytes, now
        self._fetching = asyncio.Lock()
        """Held while adapters come and go: room is counted and used by one at a time."""
        self._loaded: dict[str, tuple[str, list[str]]] = {}
        """By replica: the boot id of the engine that was last reported, and the names that it has asked for since, the
        newest last. It is kept in a file, because engines outlive their agent."""
        self._server: asyncio.Server | None = None

    def of(self, replica_id: str, boot_id: str) -> list[str]:
        """The adapters that the engine `boot_id` of a replica has asked for. Another boot id means a new engine, which
        knows none."""
        known = self._loaded.get(replica_id)
        if known is None or known[0] != boot_id:
            known = self._loaded[replica_id] = (boot_id, [])
        return known[1][-REPORTED:]

    async def run(self) -> None:
        """Answer engines until cancelled. Raises EngineFailed when the path of the socket is too long."""
        if len(os.fsencode(self._socket)) > MAX_SOCKET_PATH:
            raise EngineFailed(
                f"the path {self._socket} is too long for a socket ({MAX_SOCKET_PATH} bytes): adapters need a shorter "
                "PENSTOCK_DATA_DIR"
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(".new-*"):
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        with suppress(OSError, ValueError):
            kept = json.loads(self._loaded_file.read_text())
            self._loaded = {name: (boot, list(names)) for name, (boot, names) in kept.items()} | self._loaded
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._socket, limit=MAX_LINE_BYTES)
        self._socket.chmod(0o600)
        try:
            while True:
                await asyncio.sleep(CHECK_S)
                with suppress(
                    ConnectionError, TimeoutError, EngineFailed, OSError
                ):  # asked again the next time
                    await self.remove_deleted()
                await self._remove_gone()
        finally:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one engine's question."""
        try:
            asked = json.loads(await reader.readline())
            name, replica_id = str(asked["adapter"]), str(asked["replica"])
            try:
                path = await self.path_of(name)
                answer = {"path": str(path) if path is not None else ""}
            except (OSError, TimeoutError, EngineFailed) as error:
                why = str(error) or type(error).__name__
                log.warning("the adapter %s is not there: %s", name[:200], why)
                answer = {"error": f"the adapter cannot be fetched now: {why}"}
            if answer.get("path") and (known := self._loaded.get(replica_id)) is not None:
                known[1][:] = [*(each for each in known[1] if each != name), name]
                self._save_loaded()
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, KeyError, TypeError, OSError) as error:
            log.warning("an engine's question about an adapter cannot be answered: %s", type(error).__name__)
        finally:
            writer.close()

    async def path_of(self, name: str) -> Path | None:
        """The directory of an adapter; None when there is none of this name.

        Raises EngineFailed when its files are damaged or do not fit, ConnectionError and TimeoutError without a
        scheduler, and OSError of the disk.
        """
        async with self._fetching:
            if (known := self._on_disk().get(name)) is not None:
                os.utime(known)
                return known
            facts = await self._asked(AdapterQuestion(uuid4().hex, name), AdapterAnswer)
            if facts.error:
                raise EngineFailed(facts.error)
            if not facts.adapter_id:
                return None
            mark = self._directory / facts.adapter_id / _GONE_FILE
            if mark.exists():  # unloaded for want of room, and its files are still there
                mark.unlink()
                return mark.parent
            await self._make_room(sum(each.size for each in facts.files))
            return await self._fetch(name, facts)

    async def _fetch(self, name: str, facts: AdapterAnswer) -> Path:
        scratch = self._directory / f".new-{secrets.token_hex(8)}"
        final = self._directory / facts.adapter_id
        scratch.mkdir(mode=0o700)
        try:
            for each in facts.files:
                await self._fetch_file(facts.adapter_id, each, scratch)
            (scratch / _NAME_FILE).write_text(json.dumps({"name": name}))
            await asyncio.to_thread(shutil.rmtree, final, ignore_errors=True)
            scratch.rename(final)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            raise
        log.info("fetched the adapter %s", name)
        return final

    async def _fetch_file(self, adapter_id: str, file: AdapterFile, into: Path) -> None:
        if Path(file.path).name != file.path or file.path.startswith("."):
            raise EngineFailed(f"an adapter's file cannot be named {file.path[:100]!r}")
        digest, size = hashlib.sha256(), 0
        with (into / file.path).open("wb") as sink:
            for part in range(-(-file.size // PART_BYTES)):
                question = AdapterPartQuestion(uuid4().hex, adapter_id, file.path, part)
                answer = await self._asked(question, AdapterPartAnswer)
                if answer.error or not answer.data:
                    raise EngineFailed(answer.error or f"part {part} of {file.path} is missing")
                digest.update(answer.data)
                size += len(answer.data)
                sink.write(answer.data)
        if size != file.size or digest.hexdigest() != file.sha256:
            raise EngineFailed(f"{file.path} has arrived with wrong content")

    async def remove_deleted(self) -> None:
        """Ask which adapters of this host are deleted, and unload those. Raises as `path_of`."""
        kept = {path.name: name for name, path in self._on_disk().items()}
        if not kept:
            return
        gone = await self._asked(AdaptersKept(uuid4().hex, sorted(kept)), AdaptersGone)
        for adapter_id in kept.keys() & gone.adapter_ids:
            try:
                await self._give_up(kept[adapter_id], self._directory / adapter_id)
            except EngineFailed as error:
                log.warning("the adapter %s is unloaded later: %s", kept[adapter_id], error.message)

    async def _make_room(self, needed: int) -> None:
        """Remove adapters that no engine has asked for since it started, the oldest first.

        Raises EngineFailed when that is not enough. Then the others are unloaded one by one, for later.
        """
        if needed > self._bound:
            raise EngineFailed(
                f"the adapter has {needed:,} bytes, and this host keeps {self._bound:,} (PENSTOCK_ADAPTERS_GB)"
            )
        sizes = {path: _size(path) for path in _directories(self._directory)}
        loaded = {name for _, names in self._loaded.values() for name in names}
        by_age = sorted(self._on_disk().items(), key=lambda each: each[1].stat().st_mtime)
        for name, path in by_age:
            if sum(sizes.values()) + needed <= self._bound:
                return
            if name not in loaded:
                del sizes[path]
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
                log.info("removed the adapter %s, which no engine has loaded", name)
        if sum(sizes.values()) + needed <= self._bound:
            return
        oldest = next(((name, path) for name, path in by_age if name in loaded), None)
        if oldest is not None:
            await self._give_up(*oldest)
        raise EngineFailed("this host has no room for another adapter now (PENSTOCK_ADAPTERS_GB)")

    async def _give_up(self, name: str, path: Path) -> None:
        """Have the engines forget an adapter. Its files are removed GONE_S later."""
        (path / _GONE_FILE).touch()
        try:
            await self._unload(name)
        except EngineFailed:
            (path / _GONE_FILE).unlink()
            raise
        for _, names in self._loaded.values():
            names[:] = [each for each in names if each != name]
        self._save_loaded()
        log.info("unloaded the adapter %s", name)

    async def _remove_gone(self) -> None:
        """Remove the files of adapters that were unloaded GONE_S ago."""
        async with self._fetching:
            loaded = {name for _, names in self._loaded.values() for name in names}
            for path in _directories(self._directory):
                with suppress(OSError, ValueError, KeyError):
                    mark = path / _GONE_FILE
                    if self._now() - mark.stat().st_mtime < GONE_S:
                        continue
                    if _name_of(path) in loaded:  # an engine was just asking for it
                        mark.unlink()
                    else:
                        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    @property
    def _loaded_file(self) -> Path:
        return self._directory / ".loaded.json"

    def _save_loaded(self) -> None:
        scratch = self._directory / ".loaded.new"
        scratch.write_text(json.dumps(self._loaded))
        scratch.replace(self._loaded_file)

    def _on_disk(self) -> dict[str, Path]:
        """The directories of the adapters that are whole and not given up, by name."""
        found = {}
        for path in _directories(self._directory):
            if (path / _GONE_FILE).exists():
                continue
            with suppress(OSError, ValueError, KeyError):
                found[_name_of(path)] = path
        return found

    async def _asked(self, question: Question, shape: type[AnswerT]) -> AnswerT:
        async with asyncio.timeout(ASK_S):
            answer = await self._ask(question)
        if not isinstance(answer, shape):
            raise EngineFailed("the scheduler has answered another question")
        return answer


def _directories(parent: Path) -> Iterable[Path]:
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _name_of(path: Path) -> str:
    """The name of the adapter in a directory that is whole."""
    return str(json.loads((path / _NAME_FILE).read_text())["name"])


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir())
