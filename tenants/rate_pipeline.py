"""Runs rates.lua over one connection: the calls of a tick of the event loop are one write, replies come in order.

Callers wait on futures and never use the connection themselves. A cancelled caller therefore cannot leave a
half-read reply for the next one (redis-py, CVE-2023-28858).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from redis.asyncio import Redis

from core.clock import Clock
from core.flush_timer import FlushTimer
from core.redis_protocol import RedisProtocol, ReplyError, open_connection, pack
from tenants.rate_scopes import SOURCE

REPLY_TIMEOUT_S = 1.0
"""Seconds until a call without a reply has failed. Redis normally replies in under a millisecond."""
READ_GRACE_S = 0.2
"""Seconds added to the timeout, so that replies that arrived while this process was blocked are still read."""
DEAD_AFTER_S = 4.0
"""Seconds after a timeout until the connection is closed. Replies before that return what they granted."""
RETRY_INTERVAL_S = 1.0
"""Seconds without any command after Redis has failed."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `close` waits for replies to queued calls."""
SEND_DELAY_S = 0.005
"""Seconds for which calls that have no waiting caller gather, unless one with a caller leaves before."""
MAX_QUEUED = 10_000
"""Calls kept while Redis is unavailable. Later ones are dropped, and their leases expire."""
NOT_SERVING = ("LOADING", "READONLY", "MASTERDOWN")
"""Errors of a server that cannot run the script now; another connection may reach one that can."""

log = logging.getLogger(__name__)
Reply = list[int | bytes]


class RedisUnavailable(Exception):
    """Redis did not reply in time. The operation may have run."""


class Call:
    """One run of the script.

    `future` receives the reply; without one, or once its caller was cancelled, `on_abandoned` is called with the
    reply. `on_lost` is called when a call without a future has failed.
    """

    __slots__ = ("at", "command", "future", "on_abandoned", "on_lost", "repeated")

    def __init__(
        self,
        command: bytes,
        at: float,
        future: "asyncio.Future[Reply] | None" = None,
        on_abandoned: Callable[[Reply], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.command = command
        self.at = at
        """The event loop's time at which the call was made."""
        self.future = future
        self.on_abandoned = on_abandoned
        self.on_lost = on_lost
        self.repeated = False
        """Whether the call was sent again after the script had been loaded."""

    @property
    def waited_for(self) -> bool:
        """Whether a caller waits for the reply."""
        return self.future is not None and not self.future.done()

    def fail(self, error: Exception) -> None:
        """Raise `error` at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
        elif self.on_lost is not None:
            on_lost, self.on_lost, self.on_abandoned = self.on_lost, None, None
            on_lost()

    def finish(self, reply: Reply) -> None:
        """Pass the reply to the caller, or to `on_abandoned` after the caller was cancelled."""
        if self.future is not None and not self.future.done():
            self.future.set_result(reply)
        elif self.on_abandoned is not None:
            self.on_abandoned(reply)


class RatePipeline:
    """Sends calls of the script to the server of `redis`, over a connection of its own."""

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis, self._clock = redis, clock
        self._queue: list[Call] = []
        self._sent: deque[Call] = deque()
        """Calls without a reply yet, in the order of their replies."""
        self._protocol: RedisProtocol | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        """Set once nothing is queued or sent; exists while the pipeline closes."""
        self._closing = False
        self._paused_until = 0.0
        self._down = False
        self._stalled = False
        """Whether calls have timed out on the present connection and their replies are outstanding."""
        self._loading = False
        """Whether a command that loads the script is queued or sent."""

    @property
    def unavailable(self) -> bool:
        """Whether Redis has failed and is not yet due for another attempt."""
        return self._down and (
            self._connecting is not None or bool(self._sent) or self._clock.monotonic() < self._paused_until
        )

    async def start(self) -> None:
        """Begin to run calls. The connection is opened by the first one."""
        self._loop = asyncio.get_running_loop()
        self._flush_timer = FlushTimer(self._flush)

    async def close(self) -> None:
        """Send the queued calls, then stop. Calls without a reply within CLOSE_TIMEOUT_S are lost."""
        self._closing = True
        if self._queue or self._sent:
            self._idle = self._loop.create_future()
            self._flush()
            await asyncio.wait({self._idle}, timeout=CLOSE_TIMEOUT_S)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None
        for call in [*self._sent, *self._queue]:
            call.fail(RedisUnavailable("the process stops"))
        self._sent.clear()
        self._queue = []

    async def call(self, command: bytes, on_abandoned: Callable[[Reply], None] | None = None) -> Reply:
        """Run the script and return its reply.

        `on_abandoned` receives the reply when the caller is cancelled first. Raises RedisUnavailable.
        """
        if self._closing or (self._down and self.unavailable):
            raise RedisUnavailable
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._enqueue(Call(command, self._loop.time(), future, on_abandoned))
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
        self._enqueue(Call(command, self._loop.time(), None, on_reply, on_lost))

    def _enqueue(self, call: Call) -> None:
        self._queue.append(call)
        self._flush_timer.due(SEND_DELAY_S if call.future is None else 0.0)

    def _flush(self) -> None:
        """Send what is queued; connect first if needed, unless Redis has just failed."""
        self._flush_timer.cancel()
        if not self._queue or self._stalled or self._connecting is not None:
            return
        if self._down and not self._closing and self._clock.monotonic() < self._paused_until:
            return
        if self._timer is None:
            self._timer = self._loop.call_later(REPLY_TIMEOUT_S, self._check_replies)
        if self._protocol is None:
            self._connecting = self._loop.create_task(self._connect())
            return
        calls, self._queue = self._queue, []
        self._sent.extend(calls)
        self._protocol.write(b"".join([call.command for call in calls]))

    async def _connect(self) -> None:
        try:
            self._protocol = await open_connection(self._redis, self._on_reply, self._on_lost)
        except Exception as error:  # noqa: BLE001 - callers must end whatever connecting raises
            self._connecting = None
            self._fail_all(error)
        else:
            self._connecting = None
            self._queue = [call for call in self._queue if call.future is None or call.waited_for]
            self._flush()
        self._check_idle()

    def _on_reply(self, reply: Reply | ReplyError) -> None:
        call = self._sent.popleft()
        if isinstance(reply, ReplyError):
            self._on_error(call, reply)
        else:
            call.finish(reply)
        if self._down and not self._sent:
            log.info("redis answers again")
            self._down = self._stalled = False
            self._flush()
        if self._closing:
            self._check_idle()

    def _on_error(self, call: Call, error: ReplyError) -> None:
        text = str(error)
        if text.startswith("NOSCRIPT") and not call.repeated:  # the server is new or was flushed
            call.repeated = True
            if not self._loading:
                self._loading = True
                load = pack("SCRIPT", "LOAD", SOURCE)
                self._enqueue(Call(load, call.at, None, lambda _: self._loaded(), self._loaded))
            self._enqueue(call)
            return
        call.fail(RedisUnavailable(text))
        if text.startswith(NOT_SERVING) and self._protocol is not None:
            self._protocol.abort(error)
        else:
            log.error("the rate script failed: %s", text)

    def _loaded(self) -> None:
        self._loading = False

    def _on_lost(self, error: Exception) -> None:
        """Fail all calls; those that were sent may have run."""
        self._protocol = None
        self._stalled = False
        sent = list(self._sent)
        self._sent.clear()
        for call in sent:
            call.fail(RedisUnavailable(str(error)))
        if sent or self._queue:
            self._fail_all(error)
        self._check_idle()

    def _fail_all(self, error: Exception) -> None:
        """Fail the waiting callers, and pause. Calls without a waiting caller stay queued for the next attempt."""
        if not self._down:
            log.warning("redis is away, a small local cap applies: %s", str(error) or type(error).__name__)
        self._down = True
        self._paused_until = self._clock.monotonic() + RETRY_INTERVAL_S
        queue = self._queue
        kept = [call for call in queue if call.future is None and call.on_lost is None]
        for call in kept:
            call.repeated = False  # the next server may not have the script either
        self._queue = [] if self._closing else kept
        for call in [*self._sent, *queue]:
            call.fail(RedisUnavailable(str(error)))
        self._loop.call_later(RETRY_INTERVAL_S, self._flush)

    def _oldest(self) -> Call | None:
        if self._sent:
            return self._sent[0]
        return self._queue[0] if self._queue else None

    def _check_replies(self) -> None:
        """Look for a call that has waited too long; runs at most once per REPLY_TIMEOUT_S."""
        self._timer = None
        oldest = self._oldest()
        if oldest is None or self._stalled:
            return
        remaining_s = oldest.at + REPLY_TIMEOUT_S - self._loop.time()
        if remaining_s > 0:
            self._timer = self._loop.call_later(remaining_s, self._check_replies)
        else:  # if this process was blocked, the replies are in the socket already
            self._timer = self._loop.call_later(READ_GRACE_S, self._time_out, oldest)

    def _time_out(self, oldest: Call) -> None:
        """Fail the waiting calls. Their replies are awaited longer, so that late grants are returned."""
        self._timer = None
        if self._oldest() is not oldest:
            self._check_replies()
            return
        self._fail_all(TimeoutError(f"no answer within {REPLY_TIMEOUT_S} s"))
        if self._protocol is not None:
            self._stalled = True
            self._loop.call_later(DEAD_AFTER_S, self._give_up, self._protocol, oldest)

    def _give_up(self, protocol: RedisProtocol, oldest: Call) -> None:
        """Close a connection that has not replied since a timeout; look again when it has replied to some calls."""
        if self._protocol is not protocol or not self._stalled or not self._sent:
            return
        if self._sent[0] is oldest:
            protocol.abort(TimeoutError(f"no answer within {DEAD_AFTER_S + REPLY_TIMEOUT_S} s"))
        else:
            self._loop.call_later(DEAD_AFTER_S, self._give_up, protocol, self._sent[0])

    def _check_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._queue and not self._sent:
            self._idle.set_result(None)
