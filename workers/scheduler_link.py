"""The agent's connections to the schedulers: sends heartbeats and KV deltas to the one that serves, and obeys it alone.

A connection to every scheduler is kept open. Each says every second whether it serves, and under which term of the
lease; the one with the highest term that was ever seen is followed. Engines run with or without a scheduler. Nothing is
queued while none serves: a heartbeat carries the whole state, and the first deltas of a connection, or after a
KvResync, carry all that is cached.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from core.addresses import Address
from core.framing import FrameTooLarge, pack, read_frame
from core.supervise import supervise
from workers.adapter_wire import Answer, Question
from workers.added_models import decode_model
from workers.catalog import CatalogModel
from workers.kv_events_feed import KvOutbox
from workers.wire import AgentHello, AgentRefusal, Claim, CommandResult, Heartbeat, KvResync, ReplicaCommand

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
"""Seconds between heartbeats."""
SILENT_S = 4.0
"""Seconds without a frame after which a scheduler counts as dead; it sends a Claim every second."""
_INITIAL_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 1.0
_REFUSED_BACKOFF_S = (1.0, 30.0)
"""Shortest and longest wait of an agent that is turned away: a setting has to change first."""
_STEADY_S = 2.0
"""Seconds of being served after which the wait before the next connection is the shortest again."""
_CONNECT_TIMEOUT_S = 5.0
COALESCE_S = 0.015
"""Seconds over which changes of prefix caches are merged: a busy engine publishes at every step."""

Connect = Callable[[Address], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Makes a connection to a scheduler."""

_encode = msgspec.msgpack.Encoder().encode
_Incoming = ReplicaCommand | KvResync | Claim | AgentRefusal | Answer
_incoming = msgspec.msgpack.Decoder(_Incoming)


async def open_plain(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection without TLS."""
    return await asyncio.open_connection(*address)


class Untrusted(Exception):
    """A scheduler cannot be told from others: the text says what is missing."""


class _Outdated(Exception):
    """The scheduler has a lower term than another that was seen."""


class _Refused(Exception):
    """The scheduler has turned this agent away; the text says why."""


class SchedulerLink:
    """Keeps a connection to every scheduler open, and sends heartbeats on that of the one which serves."""

    def __init__(
        self,
        addresses: Sequence[Address],
        token: str,
        agent_id: str,
        *,
        heartbeat: Callable[[], Heartbeat],
        execute: Callable[[ReplicaCommand], Awaitable[CommandResult]],
        outbox: KvOutbox,
        run: str = "",
        wants: Sequence[str] = (),
        joined: bool = False,
        engine_key: str = "",
        engine_authority: bytes = b"",
        connect: Connect = open_plain,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`token` is the internal token, or with `joined` the host's own secret; `run` tells this run of the agent from
        every other agent. `wants` names the added models whose entries a scheduler shall send. `engine_key` is the
        host's own, if it has one, and `engine_authority` signs its engines' certificates. `pause` waits some seconds
        before the next connection.
        """
        self.entries: dict[str, CatalogModel] = {}
        """By name, the entries of those models that a scheduler that serves has sent."""
        self.entries_arrived = asyncio.Event()
        """Set when there are all of them."""
        self._wants = frozenset(wants)
        self._hello = AgentHello(
            token,
            agent_id,
            waits=True,
            run=run,
            wants=",".join(wants),
            joined=joined,
            engine_key=engine_key,
            engine_authority=engine_authority,
        )
        self.term = 0
        """The highest term that was seen."""
        self._addresses = tuple(addresses)
        self._connect = connect
        self._heartbeat = heartbeat
        self._execute = execute
        self._outbox = outbox
        self._pause = pause
        self._due = asyncio.Event()
        self._followed: asyncio.StreamWriter | None = None
        """The connection to the scheduler that serves."""
        self._sending: asyncio.Task[None] | None = None
        self.on_rotate: Callable[[], None] = lambda: None
        """Called when the scheduler that serves asks for another secret, again every second until it has it."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._untrusted = ""
        """Why there was no connection by TLS last."""
        self._commands: set[asyncio.Task[None]] = set()
        self._questions: dict[str, asyncio.Future[Answer]] = {}

    @property
    def connected(self) -> bool:
        """Whether a scheduler serves this agent."""
        return self._followed is not None

    def renew(self, token: str) -> None:
        """Show another secret from now on: connections with an earlier one are made anew."""
        if token != self._hello.token:
            self._hello = msgspec.structs.replace(self._hello, token=token)
            for writer in self._writers:
                writer.transport.abort()

    async def ask(self, question: Question) -> Answer:
        """The scheduler's answer. Raises ConnectionError when none serves, or the connection ends before."""
        if self._followed is None:
            raise ConnectionError("no scheduler serves this host")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions[question.question_id] = answer
        try:
            self._followed.write(pack(_encode(question)))
            return await answer
        finally:
            del self._questions[question.question_id]

    def heartbeat_now(self) -> None:
        """Send a heartbeat without waiting for the interval."""
        self._due.set()

    async def run(self) -> None:
        """Connect to all schedulers, exchange frames and reconnect until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                group.create_task(self._stay_connected(address))

    async def _stay_connected(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        wait, refusal_wait, refusal = _INITIAL_BACKOFF_S, _REFUSED_BACKOFF_S[0], ""
        while True:
            began, served = loop.time(), False
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    reader, writer = await self._connect(address)
                served = await self._session(address, reader, writer)
            except (ssl.SSLError, Untrusted) as error:
                self._say_untrusted(address, error)
            except (OSError, TimeoutError):
                log.debug("the scheduler at %s does not answer", address)
            except _Refused as error:
                if str(error) != refusal:
                    refusal = str(error)
                    log.error("the scheduler at %s turned this agent away: %s", address, refusal)
                await self._pause(refusal_wait)
                refusal_wait = min(refusal_wait * 2, _REFUSED_BACKOFF_S[1])
                continue
            if served:
                refusal, refusal_wait = "", _REFUSED_BACKOFF_S[0]
            if served and loop.time() - began >= _STEADY_S:
                wait = _INITIAL_BACKOFF_S
            await self._pause(wait)
            wait = min(wait * 2, _MAX_BACKOFF_S)

    def _say_untrusted(self, address: Address, error: Exception) -> None:
        """Log once why there is no connection by TLS."""
        if str(error) != self._untrusted:
            self._untrusted = str(error)
            log.error("no TLS with the scheduler at %s: %s", address, error)

    async def _session(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Exchange frames until the connection ends. Returns whether the scheduler served. Raises _Refused."""
        served = False
        self._writers.add(writer)
        try:
            writer.write(pack(_encode(msgspec.structs.replace(self._hello, term=self.term))))
            while True:
                async with asyncio.timeout(SILENT_S):
                    frame = await read_frame(reader)
                self._receive(_incoming.decode(frame), writer)
                served |= writer is self._followed
        except (OSError, EOFError, TimeoutError, FrameTooLarge, msgspec.DecodeError, _Outdated) as error:
            if writer is self._followed:
                why = error or type(error).__name__
                log.warning("the connection to the scheduler at %s was lost: %s", address, why)
            return served
        finally:
            if writer is self._followed:
                self._leave()
            self._writers.discard(writer)
            writer.close()

    def _receive(self, message: _Incoming, writer: asyncio.StreamWriter) -> None:
        """Handle a frame. Only the scheduler that is followed is obeyed. Raises _Outdated and _Refused."""
        if isinstance(message, AgentRefusal):
            raise _Refused(message.error)
        if isinstance(message, Claim):
            self._on_claim(message.term, writer)
            if message.entry and writer is self._followed:
                self._take_entry(decode_model(message.entry))
            if message.rotate and writer is self._followed:
                self.on_rotate()
        elif writer is not self._followed:
            raise _Outdated("it sent a command without being followed")
        elif isinstance(message, KvResync):
            self._outbox.resend(message.replica_id)
        elif isinstance(message, Answer):
            if (waiting := self._questions.get(message.question_id)) is not None and not waiting.done():
                waiting.set_result(message)
        else:
            task = asyncio.create_task(self._answer(message, writer))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    def _take_entry(self, entry: CatalogModel) -> None:
        self.entries.setdefault(entry.name, entry)
        if self._wants <= self.entries.keys():
            self.entries_arrived.set()

    def _on_claim(self, term: int, writer: asyncio.StreamWriter) -> None:
        if term == 0 or (term == self.term and writer is self._followed):
            return
        if term < self.term:
            raise _Outdated(f"it has term {term}, but term {self.term} was seen")
        previous = self._followed
        if previous is not None:
            self._leave()
            previous.transport.abort()  # it may be frozen, and never take what is left to send
        self.term, self._followed = term, writer
        self._outbox.on_connected()
        self._sending = supervise("scheduler-heartbeats", partial(self._send, writer))

    def _leave(self) -> None:
        """Send nothing more to the scheduler that was followed."""
        self._followed = None
        for waiting in self._questions.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection to the scheduler was lost"))
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """Send heartbeats and deltas until cancelled, or until the connection ends."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_heartbeats(writer))
                group.create_task(self._send_deltas(writer))
        except* (OSError, FrameTooLarge) as errors:
            log.warning("nothing more can be sent to the scheduler: %s", errors.exceptions[0])
            writer.transport.abort()

    async def _send_heartbeats(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._due.clear()
            heartbeat = self._heartbeat()
            writer.write(pack(_encode(heartbeat)))
            self._outbox.on_heartbeat(heartbeat)
            await writer.drain()
            try:
                # Not wait_for: Python 3.11's loses a cancellation that arrives when the wait has just finished.
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _send_deltas(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._outbox.changed.wait()
            await asyncio.sleep(COALESCE_S)
            for delta in self._outbox.take():
                writer.write(pack(_encode(delta)))
                await writer.drain()

    async def _answer(self, command: ReplicaCommand, writer: asyncio.StreamWriter) -> None:
        result = await self._execute(command)
        self.heartbeat_now()
        if not writer.is_closing():
            writer.write(pack(_encode(result)))
