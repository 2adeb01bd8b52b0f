"""Acts on the autoscaler's plan: gives the planner what providers do, stores the plan for jobs, commands replicas."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from core.clock import Clock
from scheduler.core.autoscale.state import CreatingHost, CreationFailures
from scheduler.core.replica import Replica
from scheduler.core.state import SchedulerState
from scheduler.plan_executor import PlanExecutor, gpus_taken, steps
from scheduler.plan_store import PlanStore
from scheduler.wire import HostView, PlanView
from workers.acting.places import Places
from workers.acting.plan import Mode, PlannedCreation, PlannedModel, PlannedRemoval, StoredPlan, mode_of
from workers.scaling import ScalingLimits
from workers.wire import ReplicaCommand, ReplicaState, ReplicaStatus

SETTLE_S = 30.0
"""Seconds after the start in which nothing is done: agents reconnect, and the demand is not measured yet."""


START_SEEN_S = 10.0
"""Seconds after a command that starts an engine in which its heartbeats need not show that yet."""


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
        is_rolling: Callable[[str], bool] = lambda model: False,
    ) -> None:
        """`limits` returns those that admins have set now, by model. With `hosts_dry_run` no host is destroyed, so
        that no engine stops for one. `is_rolling` tells whether a rollout moves the replicas of a model."""
        self._is_rolling = is_rolling
        self._store, self._places, self._limits = store, places, limits
        self._starts_at = clock.monotonic() + settle_s
        self._clock, self._hosts_dry_run = clock, hosts_dry_run
        self._executor: PlanExecutor | None = None
        self._started_at: dict[str, float] = {}
        """By host: when an engine on it was last told to start."""

    def connect(self, forward: Callable[[PlanExecutor, ReplicaCommand], None]) -> None:
        """Send commands by `forward`, which takes the executor to which their results go."""
        executor = PlanExecutor(
            lambda command: forward(executor, command), self._store.record, self._clock.monotonic
        )
        self._executor = executor

    def start_on(self, host_id: str) -> bool:
        """Whether an engine on a host may be told to start now, which is noted; not if it may be destroyed."""
        if self._store.is_condemned(host_id):
            return False
        self._started_at[host_id] = self._clock.monotonic()
        return True

    def is_condemned(self, host_id: str) -> bool:
        """Whether a host may be destroyed at any moment."""
        return self._store.is_condemned(host_id)

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

    def leave(self, hosts: Sequence[HostView], state: SchedulerState, now: float) -> None:
        """Drain and stop the replicas on hosts that their providers take back soon.

        Whatever the switch of acting says: the notice is a person's.
        """
        known = self._store.hosts
        if known is None or self._executor is None or now < self._starts_at:
            return
        soon = {host.agent_id: why for host in hosts if (why := known.taken_back(host.host_id))}
        if not soon:
            return
        ranks = _by_engine(state.fleet.replicas)
        statuses = {name: _status(rows[0]) for name, rows in ranks.items()}
        doomed = {name: soon[rows[0].agent_id] for name, rows in ranks.items() if rows[0].agent_id in soon}
        wanted = steps(PlanView(), statuses, doomed, lambda name: False, self._executor.has_drained)
        self._executor.run(wanted, lambda model: Mode.ON)

    def act(self, plan: PlanView, hosts: Sequence[HostView], state: SchedulerState, now: float) -> None:
        """Store the plan, and command the replicas that it moves."""
        known = self._store.hosts
        if known is None or now < self._starts_at:
            return
        ranks = _by_engine(state.fleet.replicas)
        statuses = {name: _status(rows[0]) for name, rows in ranks.items()}
        agents = {host.agent_id: host.host_id for host in hosts}
        homes = {name: agents.get(rows[0].agent_id, "") for name, rows in ranks.items()}
        destroyed = {row.host_id: row.reason for row in plan.destroy if known.may_destroy(row.host_id)}
        busy = {
            homes[name]
            for name, rows in ranks.items()  # what a command is expected to do is not done yet
            if rows[0].engine.state is not ReplicaState.STOPPED or state.active_on(name)
        }
        self._started_at = {
            host_id: at for host_id, at in self._started_at.items() if now - at < START_SEEN_S
        }
        busy |= self._started_at.keys()
        # Without replicas its agent may be starting, while engines of its earlier run still serve.
        busy |= {host.host_id for host in hosts if not host.complete} - set(homes.values())
        removals = []
        for host_id, reason in destroyed.items():
            intent = known.intent_of(host_id)
            if intent is not None:
                drained = host_id not in busy and not self._hosts_dry_run  # one that stays is not condemned
                removals.append(PlannedRemoval(intent.name, reason, drained))
        self._store.put(
            StoredPlan(
                tuple(PlannedModel(row.model, row.awake) for row in plan.models),
                tuple(PlannedCreation(row.kind, row.model, row.count, row.reason) for row in plan.create),
                tuple(removals),
                tuple(known.counted),
            ),
            now,
        )
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
            lambda name: self._store.is_condemned(homes.get(name, "")),
            self._executor.has_drained,
        )
        of_agents = {name: rows[0].agent_id for name, rows in ranks.items()}
        reported = {name: rows[0].engine for name, rows in ranks.items()}
        self._executor.run(
            wanted,
            self.mode_of,
            lambda name, starting: gpus_taken(name, of_agents, reported, starting),
        )

    def mode_of(self, model: str) -> Mode:
        """Whether the plan is acted on for a model; not while its replicas get another version."""
        if self._is_rolling(model):
            return Mode.OFF
        limits = self._limits().get(model)
        own = limits.acting if limits is not None else None
        return mode_of(self._store.mode, own, has_limits=limits is not None)


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
