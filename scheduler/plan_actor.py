"""Acts on the autoscaler's plan: gives the planner what providers do, stores the plan for jobs, commands replicas."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import msgspec

from core.clock import Clock
from scheduler.arriving_hosts import ArrivingHosts
from scheduler.core.autoscale.plan import Plan
from scheduler.core.autoscale.state import CreatingHost, CreationFailures, HostOption, Rung
from scheduler.core.config import HEARTBEAT_STALE_S
from scheduler.core.replica import Replica
from scheduler.core.state import SchedulerState
from scheduler.core.waking import Creatable, Waker
from scheduler.plan_executor import STARTS, PlanExecutor, Step, gpus_taken, next_action, steps
from scheduler.plan_store import PlanStore
from scheduler.provider_hosts import Departure
from scheduler.wire import HostView, PlanView
from workers.acting.places import Places
from workers.acting.plan import Mode, PlannedCreation, PlannedModel, PlannedRemoval, StoredPlan, mode_of
from workers.providers.interface import models_of
from workers.scaling import ScalingLimits
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus

SETTLE_S = 30.0
"""Seconds after the start in which nothing is done: agents reconnect, and the demand is not measured yet."""


START_SEEN_S = 10.0
"""Seconds after a command that starts an engine in which its heartbeats need not show that yet."""


LEAST_DRAIN_S = 60.0
"""The last serving replica of a model stops at least so many seconds before its host goes."""
DRAIN_MARGIN = 2.0
"""And at least so many times its learnt time to drain before."""
_SERVES = (ReplicaState.READY, ReplicaState.LOADING)
"""States of a replica that serves, or is about to."""


class Rollouts(Protocol):
    """What the plan leaves to rollouts."""

    def is_rolling(self, model: str) -> bool:
        """Whether a model's replicas are being replaced."""

    def is_canary(self, model: str) -> bool:
        """Whether that stands still, perhaps for days, until it is promoted."""

    def is_replacing(self, replica_id: str) -> bool:
        """Whether a replica drains or starts for a rollout."""


class PlanActor:
    """The plan's way to jobs and to the agents."""

    def __init__(
        self,
        store: PlanStore,
        places: Places,
        limits: Callable[[], Mapping[str, ScalingLimits]],
        clock: Clock,
        *,
        settle_s: float = SETTLE_S,
        hosts_dry_run: bool = False,
        rollouts: Rollouts | None = None,
        arriving: ArrivingHosts | None = None,
    ) -> None:
        """`limits` returns those that admins have set now, by model. With `hosts_dry_run` no host is destroyed, so
        that no engine stops for one. `arriving` says when hosts in creation serve; without it no request waits for
        one."""
        self._arriving = arriving
        self._rollouts = rollouts
        self._store, self._places, self._limits = store, places, limits
        self._starts_at = clock.monotonic() + settle_s
        self._clock, self._hosts_dry_run = clock, hosts_dry_run
        self._executor: PlanExecutor | None = None
        self._started_at: dict[str, float] = {}
        """By host: when an engine on it was last told to start."""
        self._left: dict[str, str] = {}
        """The hosts of replicas that served and were stopped for a notice, by replica. It is stored with the plan."""
        self._remembers = False
        """Whether `_left` has what the scheduler before this one stored of it."""
        self._emptied: tuple[str, ...] = ()
        """Names of the hosts that are not wanted any more and on which no engine runs."""

    def connect(self, forward: Callable[[PlanExecutor, ReplicaCommand], None]) -> None:
        """Send commands by `forward`, which takes the executor to which their results go."""
        executor = PlanExecutor(
            lambda command: forward(executor, command), self._store.record, self._clock.monotonic
        )
        self._executor = executor

    def start_on(self, host_id: str) -> bool:
        """Whether an engine on a host may be told to start now, which is noted; not if it may be destroyed."""
        if self.is_condemned(host_id):
            return False
        self._started_at[host_id] = self._clock.monotonic()
        return True

    def is_condemned(self, host_id: str) -> bool:
        """Whether a host may be destroyed at any moment, or is drained because its provider takes it back."""
        known = self._store.hosts
        goes = known is not None and not self._hosts_dry_run and known.departure(host_id) is not None
        return goes or self._store.is_condemned(host_id)

    def drained_by_person(self, replica_id: str) -> bool:
        """Whether a replica that drains does so because of a person, and not of the plan or a rollout."""
        ours = self._rollouts is not None and self._rollouts.is_replacing(replica_id)
        return not (ours or self.drained_by_plan(replica_id))

    def drained_by_plan(self, replica_id: str) -> bool:
        """Whether a replica that drains does so because of the plan, and not because of a person."""
        return self._executor is not None and self._executor.has_drained(replica_id)

    def staying(self, hosts: Sequence[HostView]) -> list[HostView]:
        """The hosts that are neither being destroyed nor taken back by their providers."""
        known = self._store.hosts
        return [host for host in hosts if known is None or not known.is_leaving(host.host_id)]

    def creating(self, hosts: Sequence[HostView]) -> list[CreatingHost]:
        """The hosts on their way."""
        known = self._store.hosts
        return known.creating({host.host_id for host in hosts}) if known is not None else []

    def failures(self) -> list[CreationFailures]:
        """The kinds of hosts whose creations fail."""
        known = self._store.hosts
        return known.failures(self._places) if known is not None else []

    def expect(
        self,
        waker: Waker,
        hosts: Sequence[HostView],
        replicas: Iterable[Replica],
        kinds: Callable[[str], Sequence[HostOption]],
        now: float,
    ) -> None:
        """Tell the waker which hosts are being created for which models, and for which models one may be.

        `kinds`: those that may be created for a model, in the order in which the plan tries them.
        """
        known, arriving = self._store.hosts, self._arriving
        waker.reserved, waker.turns = {}, {}  # until the plan is acted on
        waker.gives_gpus = self._gives_gpus
        replicas = list(replicas)
        waker.note_gpus(replicas, now)
        if known is None or arriving is None:
            return
        engines = {row.engine.replica_id: (row.agent_id, row.engine) for row in replicas}
        arriving.learn(status for _, status in engines.values())
        agents = {agent for agent, _ in engines.values()}
        elapsed_s = 0.0 if self._store.read_at is None else now - self._store.read_at
        reported = {host.host_id for host in hosts if host.agent_id in agents}
        waker.arrivals = arriving.arrivals(known, elapsed_s, reported, now)
        waker.creatable = {
            model: tuple(
                Creatable(option.regions, option.gpu, arriving.created_in_s(known, model, option.kind))
                for option in kinds(model)
            )
            for model, limits in self._limits().items()
            if limits.max_awake
            and kinds(model)
            and all(self.mode_of(each) is Mode.ON for each in models_of(limits.shares) or (model,))
            and not self._hosts_dry_run
        }

    def leave(self, hosts: Sequence[HostView], state: SchedulerState, now: float) -> None:
        """Drain and stop the replicas on hosts that go soon, and start those again whose notice is cancelled.

        Whatever the switch of acting says: hosts go by a notice or because they are too many, with or without the plan.
        """
        known = self._store.hosts
        self._emptied = ()
        if known is None or self._executor is None or now < self._starts_at or self._hosts_dry_run:
            return
        going = {
            host.host_id: found for host in hosts if (found := known.departure(host.host_id)) is not None
        }
        if not self._remembers and self._store.left is not None:
            self._left, self._remembers = self._store.left | self._left, True
        if not going and not self._left:
            return
        ranks, statuses, homes = _engines(hosts, state)
        stay = {host.host_id for host in self.staying(hosts)}
        served = {
            statuses[name].model
            for name, rows in ranks.items()
            if homes[name] in stay
            and statuses[name].state is ReplicaState.READY
            and now - rows[0].last_seen_at <= HEARTBEAT_STALE_S
        }
        doomed = {
            name: going[home].why
            for name, home in homes.items()
            if home in going and not self._stays_longer(statuses[name], going[home], served)
        }
        self._left |= {
            name: homes[name]
            for name in doomed
            if going[homes[name]].by_notice and statuses[name].state in _SERVES
        }
        self._executor.run(
            steps(PlanView(), statuses, doomed, lambda name: False, self._executor.has_drained)
            + self._returning(statuses, stay),
            lambda model: Mode.ON,
        )
        busy = self._busy(ranks, homes, hosts, state)
        self._emptied = tuple(
            intent.name
            for host_id in going.keys() - busy
            if (intent := known.intent_of(host_id)) is not None and not intent.wanted
        )

    def _stays_longer(self, status: ReplicaStatus, departure: Departure, served: Set[str]) -> bool:
        """Whether a replica on a host that goes stays for now: a person drains it, or it is the last of a model."""
        if status.state is ReplicaState.DRAINING and departure.by_notice:
            return not self.drained_by_plan(status.replica_id)
        near_s = max(LEAST_DRAIN_S, DRAIN_MARGIN * status.times.drain.mean_s)
        alone = status.state is ReplicaState.READY and status.model not in served
        return alone and departure.replaced and departure.left_s > near_s

    def _returning(self, statuses: Mapping[str, ReplicaStatus], stay: Set[str]) -> list[Step]:
        """The starts of replicas that a notice had stopped and whose hosts stay after all.

        Where the plan is acted on it decides about them, and where a person has stopped them since, they stay so.
        """
        known = self._store.hosts
        found = []
        for name, host_id in list(self._left.items()):
            intent = known.intent_of(host_id) if known is not None else None
            if intent is None or not intent.wanted:
                del self._left[name]
            status = statuses.get(name)
            if host_id not in stay or status is None or not self._may_act("resume", status.model):
                continue
            if status.held or status.state in _SERVES or self.mode_of(status.model) is Mode.ON:
                self._left.pop(name, None)
            elif action := next_action(status.state, Rung.AWAKE, drained_by_plan=True):
                found.append(
                    Step(name, status.model, action, "the notice that its host is taken back is cancelled")
                )
        return found

    def _busy(
        self,
        ranks: Mapping[str, Sequence[Replica]],
        homes: Mapping[str, str],
        hosts: Sequence[HostView],
        state: SchedulerState,
    ) -> set[str]:
        """The hosts on which an engine runs or may run."""
        now = self._clock.monotonic()
        busy = {
            homes[name]
            for name, rows in ranks.items()  # what a command is expected to do is not done yet
            if rows[0].engine.state is not ReplicaState.STOPPED or state.active_on(name)
        }
        self._started_at = {
            host_id: at for host_id, at in self._started_at.items() if now - at < START_SEEN_S
        }
        # Without replicas its agent may be starting, while engines of its earlier run still serve.
        silent = {host.host_id for host in hosts if not host.complete} - set(homes.values())
        return busy | self._started_at.keys() | silent

    def act(self, plan: PlanView, hosts: Sequence[HostView], state: SchedulerState, now: float) -> None:
        """Store the plan, and command the replicas that it moves."""
        known = self._store.hosts
        if known is None or now < self._starts_at:
            return
        ranks, statuses, homes = _engines(hosts, state)
        state.on_turns(
            {
                row.model: now + row.turn_in_s
                for row in plan.models
                if row.turn_in_s is not None and self._gives_gpus(row.model)
            }
        )
        destroyed = {row.host_id: row.reason for row in plan.destroy if known.may_destroy(row.host_id)}
        busy = self._busy(ranks, homes, hosts, state)
        removals = []
        for host_id, reason in destroyed.items():
            intent = known.intent_of(host_id)
            if intent is not None:
                drained = host_id not in busy and not self._hosts_dry_run  # one that stays is not condemned
                removals.append(PlannedRemoval(intent.name, reason, drained))
        self._store.put(stored_plan(plan, removals, known.counted, self._emptied, self._left), now)
        if self._executor is None or not self._store.stored:
            return
        self._executor.forget(statuses)
        doomed = {
            name: f"its host is destroyed: {destroyed[home]}"
            for name, home in homes.items()
            if home in destroyed and not self._hosts_dry_run
        }
        wanted = steps(
            plan,
            statuses,
            doomed,
            lambda name: self.is_condemned(homes.get(name, "")),
            self._executor.has_drained,
        )
        of_agents = {name: rows[0].agent_id for name, rows in ranks.items()}
        reported = {name: rows[0].engine for name, rows in ranks.items()}
        allowed = [step for step in wanted if self._may_act(step.action, step.model)]
        self._executor.run(
            allowed, self.mode_of, lambda name, starting: gpus_taken(name, of_agents, reported, starting)
        )
        if (waker := state.fleet.waker) is not None:
            waker.reserved = {
                (of_agents[step.replica_id], gpu): step.model
                for step in allowed
                if step.action in STARTS and self.mode_of(step.model) is Mode.ON
                for gpu in reported[step.replica_id].gpu_ids
                if not self._executor.leaves_alone(step.replica_id)  # others may have the GPUs meanwhile
            }

    def _gives_gpus(self, model: str) -> bool:
        """Whether the plan takes GPUs from other models for one."""
        limits = self._limits().get(model)
        return limits is not None and limits.max_awake > 0 and self.mode_of(model) is Mode.ON

    def mode_of(self, model: str) -> Mode:
        """Whether the plan is acted on for a model."""
        limits = self._limits().get(model)
        own = limits.acting if limits is not None else None
        return mode_of(self._store.mode, own, has_limits=limits is not None)

    def _may_act(self, action: str, model: str) -> bool:
        """Whether the plan may move replicas of a model: while they get another version it only adds to a canary."""
        rollouts = self._rollouts
        if rollouts is None or not rollouts.is_rolling(model):
            return True
        return action in STARTS and rollouts.is_canary(model)


def stored_plan(
    plan: Plan | PlanView,
    removals: Iterable[PlannedRemoval],
    counted: Iterable[str],
    emptied: Iterable[str] = (),
    left: Mapping[str, str] | None = None,
) -> StoredPlan:
    """What is stored of a plan: for jobs, with the hosts to destroy, those that it counts and those that are empty; and
    for the next scheduler the replicas that have `left` for a notice."""
    creations = [
        PlannedCreation(row.kind, row.model, row.count, row.reason, row.regions, row.shares)
        for row in plan.create
    ]
    own = [row for row in creations if not row.shares]
    return StoredPlan(
        tuple(PlannedModel(row.model, row.awake) for row in plan.models),
        tuple(row for row in own if not row.regions),
        tuple(removals),
        tuple(counted),
        tuple(emptied),
        dict(left or {}),
        tuple(row for row in own if row.regions),
        tuple(row for row in creations if row.shares),
    )


class _Engines(NamedTuple):
    """The engines that agents report, by replica."""

    ranks: dict[str, list[Replica]]
    statuses: dict[str, ReplicaStatus]
    homes: dict[str, str]
    """Ids of their hosts; empty for hosts that are left out."""


def _engines(hosts: Sequence[HostView], state: SchedulerState) -> _Engines:
    ranks = _by_engine(state.fleet.replicas)
    agents = {host.agent_id: host.host_id for host in hosts}
    return _Engines(
        ranks,
        {name: _status(rows[0]) for name, rows in ranks.items()},
        {name: agents.get(rows[0].agent_id, "") for name, rows in ranks.items()},
    )


def _by_engine(replicas: Mapping[str, Replica]) -> dict[str, list[Replica]]:
    """The ranks of each engine."""
    found: dict[str, list[Replica]] = {}
    for replica in replicas.values():
        found.setdefault(replica.engine.replica_id, []).append(replica)
    return dict(sorted(found.items()))


def _status(replica: Replica) -> ReplicaStatus:
    """The engine's status; after a command its expected state holds until the next heartbeat."""
    if replica.expected_state is None:
        return replica.engine
    return msgspec.structs.replace(replica.engine, state=replica.expected_state)
