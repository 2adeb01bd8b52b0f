"""A small pool of processes that parse large bodies, since the decoder holds the interpreter's lock.

Keys take turns, and a key has at most one body parsed at a time, so that a key which sends many large bodies delays
another key's by at most the body in progress. Memory is bounded by gateway/parsing/budget.py, whose reservation every
body here has.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from core.errors import InvalidRequest, PenstockError, Unavailable
from gateway.parsing.worker import decode_reply, frame
from gateway.schemas.common import PreparedRequest

WORKERS = 2
"""Processes per API process, each started when first needed."""
START_TIMEOUT_S = 10.0
"""Seconds for a worker to start. A body is not blamed for a slow start."""
PARSE_TIMEOUT_S = 5.0
"""Seconds to parse one body: over a hundred times what the worst body takes."""
WAIT_TIMEOUT_S = 10.0
"""Seconds that a body waits for a worker."""
_COMMAND = (sys.executable, "-m", "gateway.parsing.worker")
_READ_BUFFER = 2**20

log = logging.getLogger(__name__)


def no_check() -> None:
    """Admit a body without a further check."""


class _Job:
    __slots__ = ("admit", "body", "endpoint", "result")

    def __init__(self, endpoint: bytes, body: bytes, admit: Callable[[], None]) -> None:
        self.admit = admit
        self.endpoint = endpoint
        self.body = body
        self.result: asyncio.Future[PreparedRequest] = asyncio.get_running_loop().create_future()


class ParserPool:
    """Parses bodies in other processes. One per API process."""

    def __init__(self, command: Sequence[str] = _COMMAND, workers: int = WORKERS) -> None:
        """`command` starts one worker (gateway/parsing/worker.py)."""
        self._command = command
        self._workers = workers
        self._waiting: dict[UUID, deque[_Job]] = {}
        """Waiting bodies of each key, the key whose turn is next first."""
        self._running: set[UUID] = set()
        """Keys with a body in a worker."""
        self._idle: list[asyncio.subprocess.Process] = []
        self._tasks: dict[asyncio.Task[None], _Job] = {}
        self._closed = False
        self.parsed = 0
        """Bodies that a worker has answered."""

    async def parse(
        self, key_id: UUID, endpoint: bytes, body: bytes, admit: Callable[[], None] = no_check
    ) -> PreparedRequest:
        """Parse one body of a key; `endpoint`: see `PARSERS`. `admit` is called when its turn has come.

        Raises what `admit` and the parser raise, InvalidRequest when the worker dies or does not finish in time, and
        Unavailable when no worker is free in time or none can be started.
        """
        job = _Job(endpoint, body, admit)
        self._waiting.setdefault(key_id, deque()).append(job)
        self._start_jobs()
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S + START_TIMEOUT_S + PARSE_TIMEOUT_S):
                return await job.result
        except TimeoutError:
            raise Unavailable(
                "Too many large bodies are waiting to be parsed; try again in a second.",
                code="parser_busy",
                retry_after_s=1.0,
            ) from None
        finally:
            job.result.cancel()
            job.body = b""

    async def close(self) -> None:
        """Stop all workers. Bodies that still wait end with Unavailable."""
        self._closed = True
        begun = dict(self._tasks)
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        self._tasks.clear()
        while self._idle:
            await _kill(self._idle.pop())
        # A task that was cancelled before its first step has run nothing, so its job has no result yet either.
        for job in (*begun.values(), *(job for jobs in self._waiting.values() for job in jobs)):
            if not job.result.done():
                job.result.set_exception(_stopping())

    def _start_jobs(self) -> None:
        """Start the bodies of the next keys while workers are free."""
        for key_id in list(self._waiting):
            if self._closed or len(self._tasks) >= self._workers:
                return
            if key_id in self._running:
                continue
            job = self._take(key_id)
            if job is not None:
                self._running.add(key_id)
                task = asyncio.create_task(self._run(key_id, job))
                self._tasks[task] = job

    def _take(self, key_id: UUID) -> _Job | None:
        """Take the key's next body whose client still waits, and move the key to the end."""
        jobs = self._waiting.pop(key_id)
        while jobs:
            job = jobs.popleft()
            if not job.result.done():
                if jobs:
                    self._waiting[key_id] = jobs
                return job
        return None

    async def _run(self, key_id: UUID, job: _Job) -> None:
        """Parse one body in a worker, then start the next."""
        try:
            job.admit()
            found = await self._parse(job)
            if not job.result.done():
                job.result.set_result(found)
        except PenstockError as error:
            if not job.result.done():
                job.result.set_exception(error)
        except BaseException:
            if not job.result.done():
                job.result.set_exception(_stopping())
            raise
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.pop(task, None)
            self._running.discard(key_id)
            if jobs := self._waiting.pop(key_id, None):
                self._waiting[key_id] = jobs  # it has had its turn
            self._start_jobs()

    async def _parse(self, job: _Job) -> PreparedRequest:
        """Parse in an idle or new worker, which is killed unless it has answered."""
        worker = self._living_worker() or await self._start_worker()
        try:
            async with asyncio.timeout(PARSE_TIMEOUT_S):
                payload = await _exchange(worker, frame(job.endpoint, job.body))
        except (OSError, EOFError, TimeoutError) as error:
            await _kill(worker)
            log.warning("a body of %d bytes ended its parser: %r", len(job.body), error)
            raise InvalidRequest("The body could not be parsed.", code="body_not_parsed") from None
        except BaseException:
            await _kill(worker)
            raise
        self._idle.append(worker)
        self.parsed += 1
        try:
            return decode_reply(payload)
        except msgspec.MsgspecError:
            raise InvalidRequest("The body could not be parsed.", code="body_not_parsed") from None

    def _living_worker(self) -> asyncio.subprocess.Process | None:
        """Take an idle worker that has not ended since its last body."""
        while self._idle:
            worker = self._idle.pop()
            if worker.returncode is None:
                return worker
        return None

    async def _start_worker(self) -> asyncio.subprocess.Process:
        """Start a process and wait until it serves. Raises Unavailable when it does not."""
        pipe = asyncio.subprocess.PIPE
        try:
            worker = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, env=_environment(), limit=_READ_BUFFER
            )
        except OSError as error:
            raise _no_worker(error) from None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await _receive(worker)
        except BaseException as error:
            await _kill(worker)
            if isinstance(error, OSError | EOFError | TimeoutError):
                raise _no_worker(error) from None
            raise
        return worker


def _no_worker(error: Exception) -> Unavailable:
    log.error("no parser process can be started: %r", error)
    return Unavailable(
        "Large bodies cannot be parsed at the moment; try again in a second.",
        code="parser_busy",
        retry_after_s=1.0,
    )


def _stopping() -> Unavailable:
    return Unavailable(
        "This server is stopping; send the request again.", code="parser_busy", retry_after_s=1.0
    )


def _environment() -> dict[str, str]:
    """The worker's environment: no settings and no secrets, only what Python needs to find the modules."""
    return {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def _exchange(worker: asyncio.subprocess.Process, request: bytes) -> bytes:
    """Send one frame and return the payload of the reply. Raises OSError or EOFError when the worker has died."""
    if worker.stdin is None:
        raise EOFError("a worker without pipes")
    worker.stdin.write(request)
    await worker.stdin.drain()
    return await _receive(worker)


async def _receive(worker: asyncio.subprocess.Process) -> bytes:
    """Return the payload of the worker's next frame. Raises OSError or EOFError when it has died."""
    if worker.stdout is None:
        raise EOFError("a worker without pipes")
    head = await worker.stdout.readexactly(4)
    return await worker.stdout.readexactly(int.from_bytes(head, "big"))


async def _kill(worker: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
    await worker.wait()
