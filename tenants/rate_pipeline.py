"""Runs rates.lua: calls made in one tick of the event loop form one pipeline; one pipeline runs at a time, in order.

Callers wait on futures and never use the connection themselves. A cancelled caller therefore cannot leave a
half-read reply for the next one (redis-py, CVE-2023-28858).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from core.clock import Clock
from tenants.rate_scopes import SOURCE

REPLY_TIMEOUT_S = 1.0
"""Seconds until a pipeline without replies counts as failed. Redis normally replies in under a millisecond."""
READ_GRACE_S = 0.2
"""Seconds added to the timeout, so that replies that arrived while this process was blocked are still read."""
RETRY_INTERVAL_S = 1.0
"""Seconds without any command after Redis has failed."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `close` waits for queued calls to be sent."""
MAX_BATCH = 500
"""Calls in one pipeline."""
MAX_QUEUED = 10_000
"""Calls kept while Redis is unavailable. Later ones are dropped, and their leases expire."""

log = logging.getLogger(__name__)
Reply = list[int | bytes]


class RedisUnavailable(Exception):
    """Redis did not reply in time. The operation may have run."""


@dataclass
class Call:
    """One run of the script."""

    command: bytes
    future: "asyncio.Future[Reply] | None"
    """Receives the reply; None = the reply is ignored."""
    on_abandoned: Callable[[Reply], None] | None = None
    """Called with a reply that no caller waits for: there is none, or it was cancelled."""
    on_lost: Callable[[], None] | None = None
    """Called in place of `on_abandoned` when the call has failed."""

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
        elif self.on_lost is not None:
            self.on_lost()

    def finish(self, reply: Reply) -> None:
        """Pass the reply to the caller, or to `on_abandoned` after the caller was cancelled."""
        if self.future is not None and not self.future.done():
            self.future.set_result(reply)
        elif self.on_abandoned is not None:
            self.on_abandoned(reply)


class RatePipeline:
    """Sends calls of the script to Redis in batches."""

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis, self._clock = redis, clock
        self._timer: asyncio.TimerHandle | None = None
        self._queue: list[Call] = []
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._paused_until = 0.0
        self._down = False
        self._busy = False
        """Whether a pipeline is in flight."""

    @property
    def unavailable(self) -> bool:
        """Whether Redis has failed and is not yet due for another attempt."""
        return self._down and (self._busy or self._clock.monotonic() < self._paused_until)

    async def start(self) -> None:
        """Begin to run calls."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send the queued calls, then stop. Calls not sent within CLOSE_TIMEOUT_S are lost."""
        self._closing = True
        self._wakeup.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def call(self, command: bytes, on_abandoned: Callable[[Reply], None] | None = None) -> Reply:
        """Run the script and return its reply.

        `on_abandoned` receives the reply when the caller is cancelled first. Raises RedisUnavailable.
        """
        if self.unavailable or self._closing:
            raise RedisUnavailable
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._enqueue(Call(command, future, on_abandoned))
        try:
            return await future
        except asyncio.CancelledError:
            # The reply had arrived, but the cancellation came before this coroutine resumed.
            if (
                on_abandoned is not None
                and future.done()
                and not future.cancelled()
                and future.exception() is None
            ):
                on_abandoned(future.result())
            raise

    def send(
        self,
        command: bytes,
        on_reply: Callable[[Reply], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Run the script without waiting for its reply.

        While Redis is unavailable the call stays queued; one with `on_lost` fails. Exactly one of `on_reply` and
        `on_lost` is called.
        """
        if len(self._queue) >= MAX_QUEUED or (on_lost is not None and (self.unavailable or self._closing)):
            if on_lost is not None:
                on_lost()
            return
        self._enqueue(Call(command, None, on_reply, on_lost))

    def _enqueue(self, call: Call) -> None:
        self._queue.append(call)
        self._wakeup.set()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._wakeup.wait()
            if self.unavailable and not self._closing:
                await asyncio.sleep(max(0.01, self._paused_until - self._clock.monotonic()))
                continue
            batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
            if not self._queue and not self._closing:
                self._wakeup.clear()
            if batch:
                await self._run_batch(batch)

    async def _run_batch(self, batch: list[Call]) -> None:
        self._busy = True
        self._timer = asyncio.get_running_loop().call_later(REPLY_TIMEOUT_S, self._extend, batch)
        try:
            replies = await self._execute(batch)
        except Exception as error:  # noqa: BLE001 - callers must end whatever the driver raises
            self._fail_all(batch, error)
        else:
            self._complete(batch, replies)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._busy = False

    async def _execute(self, batch: list[Call]) -> list[Reply | ResponseError]:
        """Write all commands at once, then read all replies. redis-py's own pipeline costs 2.5 times the CPU."""
        pool = self._redis.connection_pool
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # a decorator of redis-py
        try:
            replies = await _round_trip(connection, [call.command for call in batch])
            missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if missing:  # the server is new or was flushed
                await connection.send_command("SCRIPT LOAD", SOURCE)
                await connection.read_response()
                again = await _round_trip(connection, [batch[index].command for index in missing])
                for index, reply in zip(missing, again, strict=True):
                    replies[index] = reply
        except BaseException:
            await connection.disconnect(nowait=True)  # it may hold unread replies
            raise
        finally:
            await pool.release(connection)
        return replies

    def _complete(self, batch: list[Call], replies: list[Reply | ResponseError]) -> None:
        if self._down:
            log.info("redis answers again")
        self._down = False
        for call, reply in zip(batch, replies, strict=True):
            if isinstance(reply, ResponseError):
                log.error("the rate script failed: %s", reply)
                call.fail(RedisUnavailable(str(reply)))
            else:
                call.finish(reply)

    def _fail_all(self, batch: list[Call], error: Exception) -> None:
        if not self._down:
            log.warning("redis is away, a small local cap applies: %s", error)
        self._down = True
        self._paused_until = self._clock.monotonic() + RETRY_INTERVAL_S
        for call in [*batch, *self._queue]:
            call.fail(RedisUnavailable(str(error)))
        kept = [call for call in self._queue if call.future is None and call.on_lost is None]
        self._queue = [] if self._closing else kept

    def _extend(self, batch: list[Call]) -> None:
        """Wait READ_GRACE_S longer: if this process was blocked, the replies are in the socket already."""
        self._timer = asyncio.get_running_loop().call_later(READ_GRACE_S, self._time_out, batch)

    def _time_out(self, batch: list[Call]) -> None:
        """Fail the waiting calls. The pipeline itself ends when its socket times out."""
        self._fail_all(batch, TimeoutError(f"no answer within {REPLY_TIMEOUT_S} s"))


async def _round_trip(connection: AbstractConnection, commands: list[bytes]) -> list[Reply | ResponseError]:
    await connection.send_packed_command(b"".join(commands))
    replies: list[Reply | ResponseError] = []
    for _ in commands:
        try:
            replies.append(cast(Reply, await connection.read_response()))
        except ResponseError as error:
            replies.append(error)
    return replies
