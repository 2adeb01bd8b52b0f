"""The scheduler as a service: connections in, the pure board in the middle, answers out.

Agents and API processes share one listening socket. Nothing here waits: every frame is handled in the tick in which
it comes, decisions follow at the end of each read, and what is slow (PostgreSQL, a peer that does not read) is
kept outside.
"""

import asyncio
import logging
import random
import time

from core.clock import Clock
from core.ids import incarnation
from scheduler import metrics
from scheduler.commands import ACTIONS, CommandDesk
from scheduler.core.board import Board, Decision, Placed
from scheduler.engine_counters import CounterStore
from scheduler.host_hours import HostHours
from scheduler.link import encoded
from scheduler.messages import (
    Announce,
    CancelPlace,
    FromAgent,
    FromClient,
    PrefillDone,
    Progress,
)
from scheduler.sessions import Session, TokenCheck
from scheduler.views import HostBook, pool_snapshot
from scheduler.wire import PlaceRequest, PoolSnapshot, Released
from workers.wire import CommandResult, Heartbeat, ReplicaCommand

TICK_S = 0.1
SNAPSHOT_S = 1.0
CLIENT_GRACE_S = 2.0
"""A client's placements outlive its connection by this much: it may only be reconnecting."""
FORGET_S = 60.0
"""A host silent for this long is no longer shown."""
MAX_SNAPSHOT_BACKLOG = 256 * 1024
"""A client with this much unread skips snapshots; the next one replaces them anyway."""

log = logging.getLogger(__name__)


class SchedulerService:
    """One incarnation of the scheduler. `host_hours` and `counters` are None where nothing is to be stored."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        clock: Clock,
        rng: random.Random,
        host_hours: HostHours | None = None,
        counters: CounterStore | None = None,
        grace_s: float = 3.0,
    ) -> None:
        self.epoch = incarnation("scheduler")
        self.port = port
        self._host = host
        self._token = TokenCheck(token)
        self._clock, self._rng = clock, rng
        self._host_hours = host_hours
        self._counters = counters
        self.board = Board(self.epoch, clock.monotonic(), grace_s=grace_s)
        self._hosts = HostBook()
        self._commands = CommandDesk()
        self._clients: dict[str, Session] = {}
        self._agents: dict[str, Session] = {}
        self._sessions: set[Session] = set()
        self._funerals: dict[str, asyncio.TimerHandle] = {}
        self._changed = True
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; `port` is then the real one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._session, self._host, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticker = asyncio.create_task(self._tick())
        log.info("scheduler %s listens on %s:%s", self.epoch, self._host, self.port)

    async def run(self) -> None:
        """Until cancelled; raises what broke the service should it break."""
        if self._ticker is None:
            raise RuntimeError("start() first")
        await self._ticker

    async def close(self) -> None:
        """Hang up on everybody. Clients keep what they have and look for the next incarnation."""
        if self._server is not None:
            self._server.close()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._commands.close()
        await asyncio.gather(*(session.hang_up() for session in self._sessions))
        for timer in self._funerals.values():
            timer.cancel()

    def _session(self) -> Session:
        session = Session(self)
        self._sessions.add(session)
        return session

    # scheduler.sessions.Hub

    def token_matches(self, token: bytes) -> bool:
        """Constant-time comparison with our own."""
        return self._token.matches(token)

    def client_joined(self, session: Session) -> None:
        """Send the state of the pool; what the client holds and waits for comes in its announcement."""
        if previous := self._clients.get(session.name):
            previous.abort()
        if timer := self._funerals.pop(session.name, None):
            timer.cancel()
        self._clients[session.name] = session
        session.send_encoded(encoded(self._snapshot()))

    def agent_joined(self, session: Session) -> None:
        """A newer connection of the same agent replaces the older."""
        if previous := self._agents.get(session.name):
            previous.abort()
        self._agents[session.name] = session
        log.info("agent %s connected", session.name)

    def from_client(self, session: Session, message: FromClient) -> None:
        """Feed the board."""
        now = self._clock.monotonic()
        match message:
            case PlaceRequest():
                self.board.submit(session.name, message, now)
            case Released():
                self._released(session.name, message)
            case PrefillDone():
                self.board.prefill_done(session.name, message.request_id, message.replica_id)
            case Progress():
                self.board.progress(
                    session.name, message.request_id, message.replica_id, message.output_tokens
                )
            case CancelPlace():
                self.board.cancel(session.name, message.request_id)
            case Announce():
                self.board.announce(session.name, message, now)
            case ReplicaCommand():
                self._command(session, message)

    def from_agent(self, session: Session, message: FromAgent) -> None:
        """A heartbeat feeds the board and the host's hours; a result goes to who asked."""
        match message:
            case Heartbeat():
                message.agent_id = session.name
                now = self._clock.monotonic()
                self._changed |= self.board.heartbeat(message, now)
                self._hosts.heard(message, now)
                if self._host_hours is not None:
                    self._host_hours.heard(message)
                if self._counters is not None:
                    self._counters.heard(message, self.board.placements_on)
            case CommandResult():
                self._commands.answer(message)

    def settle(self) -> None:
        """Decide, and queue the answers on their connections."""
        began = time.perf_counter()
        decisions = self.board.dispatch(self._clock.monotonic(), self._rng)
        if decisions:
            metrics.DECISION_SECONDS.observe(time.perf_counter() - began)
            for decision in decisions:
                self._tell(decision)

    def left(self, session: Session) -> None:
        """Nobody waits for a lost client's answers; its placements die a little later."""
        self._sessions.discard(session)
        if not session.kind:
            return
        if self._agents.get(session.name) is session:
            del self._agents[session.name]
            self._commands.agent_lost(session)
            log.warning("agent %s disconnected", session.name)
        if self._clients.get(session.name) is session:
            del self._clients[session.name]
            self.board.drop_waiting(session.name)
            loop = asyncio.get_running_loop()
            self._funerals[session.name] = loop.call_later(CLIENT_GRACE_S, self._bury, session.name)

    # Inside

    def _bury(self, name: str) -> None:
        self._funerals.pop(name, None)
        dropped = self.board.drop_placements(name)
        if dropped:
            log.warning("client %s is gone; %s open placements dropped", name, dropped)
        self.settle()

    def _released(self, client: str, released: Released) -> None:
        entry = self.board.release(client, released)
        if entry is not None and not released.failed:
            metrics.HIT_TOKENS_PREDICTED.labels(entry.model).inc(entry.hit_tokens)
            metrics.HIT_TOKENS_ACTUAL.labels(entry.model).inc(max(0, released.cached_input_tokens))

    def _command(self, session: Session, command: ReplicaCommand) -> None:
        replica = self.board.replicas.get(command.replica_id)
        agent = self._agents.get(replica.agent_id) if replica else None
        if replica is None:
            known = ", ".join(sorted(self.board.replicas)) or "none"
            why = f"no such replica: {command.replica_id!r}; known replicas: {known}"
            session.send(CommandResult(command.command_id, False, why))
        elif agent is None:
            why = f"agent {replica.agent_id} of replica {command.replica_id} is not connected"
            session.send(CommandResult(command.command_id, False, why))
        elif self._commands.forward(command, session, agent):
            if state := ACTIONS[command.action]:
                self.board.expect(command.replica_id, state)
            log.info("%s asked to %s replica %s", session.name, command.action, command.replica_id)

    def _tell(self, decision: Decision) -> None:
        session = self._clients.get(decision.client)
        if isinstance(decision, Placed):
            placement = decision.placement
            metrics.PLACEMENTS.labels(placement.model).inc()
            metrics.QUEUE_SECONDS.labels(placement.model).observe(placement.queue_s)
            if session is not None:
                session.send(placement)
        else:
            refusal = decision.refusal
            metrics.REFUSALS.labels(decision.model, str(refusal.status), refusal.reason).inc()
            if session is not None:
                session.send(refusal)

    def _snapshot(self) -> PoolSnapshot:
        now = self._clock.monotonic()
        return pool_snapshot(self.board, self._hosts, now, self._clock.now())

    async def _tick(self) -> None:
        """Deadlines, silent replicas, snapshots on change and every second."""
        pushed_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = self._clock.monotonic()
            self._changed |= self.board.forget_silent(now, FORGET_S)
            self._hosts.forget_silent(now, FORGET_S)
            self.board.tick()
            self.settle()
            if self._changed or now - pushed_at >= SNAPSHOT_S:
                self._changed, pushed_at = False, now
                self._push_snapshot()

    def _push_snapshot(self) -> None:
        snapshot = self._snapshot()
        metrics.show_queues(snapshot.queues)
        packed = encoded(snapshot)
        for session in list(self._clients.values()):
            if session.unsent_bytes < MAX_SNAPSHOT_BACKLOG:
                session.send_encoded(packed)
