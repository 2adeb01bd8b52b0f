"""The scheduler as a network service around the pure scheduler state.

Agents and API processes come through one listening socket (scheduler/door.py). Nothing in this module blocks: every
frame is handled in the event loop tick in which it arrives, and decisions follow at the end of each read. Slow work,
such as PostgreSQL or a peer that does not read, is kept elsewhere.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

from core.clock import Clock
from core.ids import incarnation
from core.supervise import supervise
from scheduler import metrics
from scheduler.adapter_answers import AdapterAnswers
from scheduler.autoscaler_runner import AutoscalerRunner
from scheduler.autoscaling import PLAN_INTERVAL_S, LivePlanner
from scheduler.commands import ACTIONS, STARTING, CommandRouter, Peer
from scheduler.core.decisions import Decision, Placed, Rejection
from scheduler.core.rules import NEW_TENANT
from scheduler.core.state import SchedulerState
from scheduler.core.waking import Waker
from scheduler.door import Door
from scheduler.engine_keys import EngineKeyBook
from scheduler.host_admission import confined
from scheduler.limits import clamp_client_message, sound_ends, valid_replicas
from scheduler.link import encoded
from scheduler.listeners import Listener, Observers
from scheduler.messages import (
    Announce,
    ClientBatch,
    Counters,
    FromAgent,
    FromClient,
    PlaceRefused,
    TenantCounter,
)
from scheduler.model_activity import ModelActivity
from scheduler.plan_actor import PlanActor
from scheduler.rollouts import RolloutRunner
from scheduler.sessions import Session
from scheduler.views import HostRegistry, model_views, pool_snapshot
from scheduler.wake_on_demand import WakeOnDemand
from scheduler.wire import Placement, PlanView, PoolSnapshot
from workers.ranks import target_names
from workers.targets import TargetDirectory
from workers.wire import CommandResult, Heartbeat, KvDelta, KvResync, ReplicaCommand

TICK_S = 0.1
"""Seconds between two runs of the timer for deadlines, counters and snapshots."""
ROLLOUT_S = 0.5
"""Seconds between two looks at rollouts."""
SNAPSHOT_S = 1.0
"""Longest time between two snapshots, in seconds."""
CLIENT_GRACE_S = 2.0
"""Seconds for which a client's placements are kept after its connection is lost, because it may reconnect."""
AGENT_LIVES_S = 2.0
"""Seconds after its last message for which an agent keeps another one with its id out; heartbeats come every 0.5 s."""
HOST_TTL_S = 60.0
"""Seconds without a heartbeat after which a host is no longer shown."""
COUNTERS_S = 0.5
"""Seconds between two reports of changed counters to clients; a restart can lose charges of this time."""
COUNTERS_PER_FRAME = 4096
"""Counters in one frame."""
MAX_KV_HASHES = 250_000
"""Hashes that are taken from one frame of KV events; agents send at most 200,000."""
MAX_COUNTERS_ON_JOIN = 16_384
"""Counters that are sent to a client that connects, those of the most served tenants first; as many as a client
keeps."""
MAX_SNAPSHOT_BACKLOG = 256 * 1024
"""Unsent bytes of a client above which snapshots are not sent to it; the next snapshot replaces them anyway."""

log = logging.getLogger(__name__)


class SchedulerService:
    """One incarnation of the scheduler: it serves the peers of a door under one term of the lease."""

    def __init__(
        self,
        door: Door,
        *,
        clock: Clock,
        rng: random.Random,
        listeners: Iterable[Listener] = (),
        planner: LivePlanner | None = None,
        actor: PlanActor | None = None,
        rollouts: RolloutRunner | None = None,
        targets: TargetDirectory | None = None,
        adapters: AdapterAnswers | None = None,
        waker: Waker | None = None,
        grace_s: float = 3.0,
        term: int = 1,
        holds: Callable[[], bool] = lambda: True,
        outdated: Callable[[int], None] = lambda term: None,
    ) -> None:
        """`listeners` observe requests and heartbeats. Without a `planner` snapshots carry no plan; `actor` acts on
        it, `rollouts` replace replicas. Without a `waker` requests wake no replica. `targets` replace those of
        heartbeats; `adapters` answers agents. `holds` tells whether the lease of `term` is still held; `outdated` is
        called with a higher term that a peer knows, after which `holds` must return False.

        In the first `grace_s` seconds no request is refused for want of replicas.
        """
        self.epoch = incarnation("scheduler")
        self.term = term
        self._door = door
        self._holds, self._outdated = holds, outdated
        self._clock, self._rng = clock, rng
        self._plan: PlanView | None = None
        self._targets, self._adapters = targets, adapters
        self.state = SchedulerState(self.epoch, clock.monotonic(), grace_s=grace_s, waker=waker)
        self._hosts = HostRegistry()
        self._autoscaler = (
            AutoscalerRunner(planner, self.state, self._hosts, actor) if planner is not None else None
        )
        self._actor = actor
        if actor is not None:
            actor.connect(self._command)
        self._rollouts = rollouts
        if rollouts is not None:
            rollouts.connect(
                self._command, lambda agent_id: not self._may_stay(agent_id), self._hosts.host_of
            )
        planners = (planner,) if planner is not None else ()
        comparisons = (rollouts.comparison,) if rollouts is not None else ()
        self._activity = ModelActivity()
        self._observers = Observers(
            (self._hosts, self._activity, *listeners, *planners, *comparisons, metrics.RequestMetrics())
        )
        self._started_unix_ms = int(clock.now().timestamp() * 1000)
        self._commands = CommandRouter()
        self._demand = WakeOnDemand(
            self.state, lambda command: self._command(self._demand, command), clock.monotonic
        )
        self._keys = EngineKeyBook()
        self._clients: dict[str, Session] = {}
        self._agents: dict[str, Session] = {}
        self._expiry_timers: dict[str, asyncio.TimerHandle] = {}
        self._changed = True
        self._dispatch_scheduled = False
        """Whether another dispatch is due in the next tick of the event loop."""
        self._ended = False
        self._ticker: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port on which it is reached."""
        return self._door.port

    def start(self) -> None:
        """Serve all peers of the door."""
        self._ticker = supervise("scheduler", self._tick)
        self._door.serve(self)
        log.info("scheduler %s serves under term %s on port %s", self.epoch, self.term, self.port)

    async def run(self) -> None:
        """Serve until cancelled, or until the lease is lost. Raises RuntimeError before `start`."""
        if self._ticker is None:
            raise RuntimeError("start() first")
        await self._ticker

    async def close(self) -> None:
        """End the timers. The door closes the connections: clients keep their placements for the next incarnation."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._commands.close()
        for timer in self._expiry_timers.values():
            timer.cancel()
        self._expiry_timers.clear()

    # scheduler.sessions.SessionHandler

    def may_serve(self) -> bool:
        """Whether the lease is held. When it is lost, all connections are closed at once, and `run` returns."""
        if not self._ended and not self._holds():
            log.warning("scheduler %s has lost the lease of term %s and stops", self.epoch, self.term)
            self._end()
            self._door.stand_by()
        return not self._ended

    def outdated(self, term: int) -> None:
        """Stop: a peer knows a scheduler of a higher term."""
        self._outdated(term)
        self.may_serve()

    def refusal(self, session: Session) -> str:
        """Refuse an agent while another run with its id is heard. A run whose connection was lost replaces that one."""
        other = self._agents.get(session.name) if session.kind == "agent" else None
        now = self._clock.monotonic()
        if other is None or session.run in ("", other.run) or now - other.heard_at > AGENT_LIVES_S:
            return ""
        return (
            f"another agent with the id {session.name} is connected, from {other.peer}: "
            "each host needs a data directory with a host-id file of its own"
        )

    def on_peer(self, session: Session) -> None:
        """Take a client or an agent that the door has admitted."""
        if session.kind == "agent":
            self._on_agent(session)
        else:
            self._on_client(session)

    def _on_client(self, session: Session) -> None:
        """Send the snapshot and the counters. The client's placements and requests follow in its announcement."""
        if previous := self._clients.get(session.name):
            previous.abort()
        if timer := self._expiry_timers.pop(session.name, None):
            timer.cancel()
        self._clients[session.name] = session
        session.send_encoded(encoded(self._snapshot()))
        self._push_keys([session])
        most_served = sorted(
            self.state.counters(), key=lambda each: (each.tenant_id == NEW_TENANT, each.service)
        )
        for frame in self._frames(most_served[-MAX_COUNTERS_ON_JOIN:]):
            session.send_encoded(frame)

    def _on_agent(self, session: Session) -> None:
        """Register an agent; its older connection is closed."""
        if previous := self._agents.get(session.name):
            previous.abort()
            self._commands.agent_lost(previous)
        self._agents[session.name] = session
        session.heard_at = self._clock.monotonic()
        log.info("agent %s connected", session.name)

    def on_client_message(self, session: Session, message: FromClient) -> None:
        """Apply a message to the scheduler state and notify the listeners; decisions follow in `dispatch`."""
        now, client = self._clock.monotonic(), session.name
        clamp_client_message(message)
        match message:
            case ClientBatch():
                self._apply(client, message, now)
            case Announce():
                for queued in message.queued:
                    for on_submit in self._observers.submit:
                        on_submit(client, queued.request, now - queued.age_s, announced=True)
                self.state.announce(client, message, now)
            case ReplicaCommand():
                self._command(session, message)

    def on_agent_message(self, session: Session, message: FromAgent) -> None:
        """Apply a heartbeat or cache events to the scheduler state; return a command's result to its sender."""
        session.heard_at = self._clock.monotonic()
        match message:
            case Heartbeat():
                self._heartbeat(session, message)
            case CommandResult():
                self._commands.answer(message)
            case KvDelta():
                self._kv_events(session, message)
            case _:
                if self._adapters is not None:
                    self._adapters.ask(message, session.send)

    def dispatch(self) -> None:
        """Decide, and queue the answers on their connections."""
        began = time.perf_counter()
        decisions = self.state.dispatch(self._clock.monotonic(), self._rng)
        spent_s = time.perf_counter() - began
        metrics.DISPATCH_SECONDS.inc(spent_s)
        if decisions:
            metrics.DECISION_SECONDS.observe(spent_s)
            for decision in decisions:
                self._answer(decision)
        self._demand.run()
        if self.state.unfinished and not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue_dispatch)

    def on_disconnect(self, session: Session) -> None:
        """Remove a connection. A client's queued requests end at once, its placements after CLIENT_GRACE_S."""
        if self._agents.get(session.name) is session:
            del self._agents[session.name]
            self._commands.agent_lost(session)
            log.warning("agent %s disconnected", session.name)
        if self._clients.get(session.name) is session:
            del self._clients[session.name]
            self.state.drop_waiting(session.name)
            loop = asyncio.get_running_loop()
            self._expiry_timers[session.name] = loop.call_later(
                CLIENT_GRACE_S, self._expire_client, session.name
            )

    # Internals

    def _continue_dispatch(self) -> None:
        """Continue an unfinished dispatch after other events of the loop."""
        self._dispatch_scheduled = False
        if self.may_serve():
            self.dispatch()

    def _expire_client(self, name: str) -> None:
        self._expiry_timers.pop(name, None)
        if not self.may_serve():
            return
        dropped = self.state.drop_placements(name, self._clock.monotonic())
        if dropped:
            log.warning("client %s is gone; %s open placements dropped", name, dropped)
        self.dispatch()

    def _apply(self, client: str, batch: ClientBatch, now: float) -> None:
        state, observers = self.state, self._observers
        for started in batch.prefilled:
            placement = state.prefill_done(client, started.request_id, started.replica_id, now)
            for on_first_token in observers.first_token:
                on_first_token(client, started.request_id, placement, now)
        if (progress := batch.progress) is not None:
            for request_id, replica_id, produced in zip(
                progress.request_ids, progress.replica_ids, progress.output_tokens, strict=False
            ):
                state.progress(client, request_id, replica_id, produced, now)
        for released in batch.released:
            placement = state.release(client, released, now)
            for on_release in observers.release:
                on_release(client, released, placement, now)
        for request_id in batch.cancelled:
            state.cancel(client, request_id)
            for on_cancel in observers.cancel:
                on_cancel(client, request_id, now)
        for request in batch.requests:
            for on_submit in observers.submit:  # before the state packs the request's hashes
                on_submit(client, request, now, announced=False)
            state.submit(client, request, now)

    def _heartbeat(self, session: Session, beat: Heartbeat) -> None:
        now = self._clock.monotonic()
        beat.agent_id = session.name
        others = confined(beat, session.name, session.peer) if session.secret_hash is not None else []
        beat.replicas, unsound = valid_replicas(beat.replicas)
        beat.ended = sound_ends(beat.ended)
        if unsound or others:
            metrics.REPLICAS_REFUSED.inc(len(unsound) + len(others))
            what = (
                f"{unsound[0]} without sound figures"
                if unsound
                else f"{others[0]}, which is not named after it or not at {session.peer}, from where it connects"
            )
            log.warning("agent %s reports %s", session.name, what)
        if self._keys.heard(session.name, *session.engines, (each.replica_id for each in beat.replicas)):
            self._push_keys(self._clients.values())
        if self._targets is not None:
            for status in beat.replicas:
                status.targets = self._targets.applied(status.model, status.targets)
        self._changed |= self.state.heartbeat(beat, now)
        for status in beat.replicas:
            for name in target_names(status.replica_id, len(status.ranks)):
                self._resync(session, name, now)
        for on_heartbeat in self._observers.heartbeat:
            on_heartbeat(beat, self.state.active_on, now)

    def _kv_events(self, session: Session, delta: KvDelta) -> None:
        """Apply KV events of an agent's own replica, up to MAX_KV_HASHES hashes."""
        replica = self.state.fleet.replicas.get(delta.replica_id)
        if replica is None or replica.agent_id != session.name:
            metrics.KV_EVENTS_REFUSED.labels("not_its_replica").inc()
        elif len(delta.stored) + len(delta.removed) > MAX_KV_HASHES:
            metrics.KV_EVENTS_REFUSED.labels("too_many").inc()
        else:
            self.state.fleet.kv_events(delta)
            self._resync(session, delta.replica_id, self._clock.monotonic())

    def _resync(self, session: Session, replica_id: str, now: float) -> None:
        """Ask an agent for the full cache state when deltas are missing."""
        if self.state.fleet.needs_resync(replica_id, now):
            metrics.KV_RESYNCS.inc()
            session.send(KvResync(replica_id))

    def _command(self, peer: Peer, command: ReplicaCommand) -> None:
        command.hold = isinstance(peer, Session)
        replica = next(iter(self.state.fleet.targets_of(command.replica_id)), None)
        agent = self._agents.get(replica.agent_id) if replica else None
        if replica is None:
            names = {each.engine.replica_id for each in self.state.fleet.replicas.values()}
            known = ", ".join(sorted(names)) or "none"
            why = f"no such replica: {command.replica_id!r}; known replicas: {known}"
            peer.send(CommandResult(command.command_id, False, why))
        elif agent is None:
            why = f"agent {replica.agent_id} of replica {command.replica_id} is not connected"
            peer.send(CommandResult(command.command_id, False, why))
        elif command.action in STARTING and not self._may_start(replica.agent_id):
            why = f"the host of replica {command.replica_id} is being destroyed"
            peer.send(CommandResult(command.command_id, False, why))
        elif self._commands.forward(command, peer, agent):
            if state := ACTIONS[command.action]:
                self.state.expect_state(command.replica_id, state)
            log.info("%s asked to %s replica %s", peer.name, command.action, command.replica_id)

    def _may_start(self, agent_id: str) -> bool:
        return self._actor is None or self._actor.start_on(self._hosts.host_of(agent_id))

    def _may_stay(self, agent_id: str) -> bool:
        return self._actor is None or not self._actor.is_condemned(self._hosts.host_of(agent_id))

    def _answer(self, decision: Decision) -> None:
        """Send a decision to its client, if it is still connected, and notify the listeners."""
        now = self._clock.monotonic()
        answer: Placement | PlaceRefused
        match decision:
            case Placed(client, answer, tier):
                for on_place in self._observers.place:
                    on_place(client, answer, tier, now)
            case Rejection(client, model, answer):
                for on_refuse in self._observers.refuse:
                    on_refuse(client, model, answer, now)
        if (session := self._clients.get(client)) is not None:
            session.answer(answer)

    def _snapshot(self) -> PoolSnapshot:
        now = self._clock.monotonic()
        snapshot = pool_snapshot(self.state, self._hosts, now, self._clock.now())
        snapshot.plan = self._plan
        snapshot.models = model_views(self._activity, self.state, snapshot, now)
        snapshot.started_unix_ms, snapshot.complete = self._started_unix_ms, now >= self.state.grace_ends
        return snapshot

    async def _tick(self) -> None:
        """The timer: deadlines, silent replicas, counters, plans, and snapshots on change and every SNAPSHOT_S."""
        pushed_at = counters_at = planned_at = rolled_at = self._clock.monotonic()
        while self.may_serve():
            await asyncio.sleep(TICK_S)
            if not self.may_serve():
                return
            now = self._clock.monotonic()
            self._changed |= self.state.forget_silent(now, HOST_TTL_S)
            self._hosts.forget_silent(now, HOST_TTL_S)
            self._keys.keep({each.engine.replica_id for each in self.state.fleet.replicas.values()})
            self.state.tick()
            self.dispatch()
            if now - counters_at >= COUNTERS_S - TICK_S / 2:
                counters_at = now
                self._push_counters()
            if self._autoscaler is not None and now - planned_at >= PLAN_INTERVAL_S - TICK_S / 2:
                planned_at = now
                self._plan = self._autoscaler.run(now)
            if self._rollouts is not None and now - rolled_at >= ROLLOUT_S - TICK_S / 2:
                rolled_at = now
                self._rollouts.run(self.state)
            if self._changed or now - pushed_at >= SNAPSHOT_S:
                self._changed, pushed_at = False, now
                self._push_snapshot()

    def _push_keys(self, clients: Iterable[Session]) -> None:
        """Send the keys of engines, before any placement on them, to those of the clients that need them."""
        packed = encoded(self._keys.frame())
        for session in clients:
            if session.takes_keys:
                session.send_encoded(packed)

    def _push_counters(self) -> None:
        for frame in self._frames(self.state.changed_counters()):
            for session in list(self._clients.values()):
                session.send_encoded(frame)

    def _frames(self, counters: list[TenantCounter]) -> list[bytes]:
        """Encoded frames with at most COUNTERS_PER_FRAME counters each."""
        step = COUNTERS_PER_FRAME
        chunks = (counters[at : at + step] for at in range(0, len(counters), step))
        return [encoded(Counters(self.epoch, chunk)) for chunk in chunks]

    def _push_snapshot(self) -> None:
        snapshot = self._snapshot()
        metrics.show_queues(snapshot.queues)
        metrics.show_state(self.state)
        packed = encoded(snapshot)
        for session in list(self._clients.values()):
            if session.unsent_bytes < MAX_SNAPSHOT_BACKLOG:
                session.send_encoded(packed)
