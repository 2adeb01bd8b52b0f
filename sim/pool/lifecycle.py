"""Replica lifecycle: failures, hangs, start, wake, sleep and stop."""

from collections.abc import Callable, Mapping, Sequence

from sim.engine.step_model.job import Job
from sim.pool.control import ActionKind, PoolAction
from sim.pool.sim_replica import SimReplica
from sim.pool.timeline import Timeline
from workers.wire import ReplicaState

_SUSPENDING = frozenset({ActionKind.SLEEP, ActionKind.STOP})


class Lifecycle:
    """Moves replicas between states in simulated time."""

    def __init__(
        self,
        timeline: Timeline,
        replicas: Mapping[str, SimReplica],
        *,
        hang_limit_s: float,
        on_jobs_lost: Callable[[Sequence[Job]], None],
        on_change: Callable[[SimReplica], None],
    ) -> None:
        """`on_jobs_lost` receives the jobs of an engine that died, `on_change` a replica whose next event may
        have moved.

        An engine that hangs for `hang_limit_s` seconds is killed.
        """
        self._timeline = timeline
        self._replicas = replicas
        self._hang_limit_s = hang_limit_s
        self._on_jobs_lost = on_jobs_lost
        self._on_change = on_change
        self._pending_stops: dict[str, PoolAction] = {}
        """Sleep and stop actions that wait until their replica is idle, by replica."""

    def kill(self, replica_id: str) -> None:
        """Kill the engine now; its agent restarts it with a cold start and an empty cache."""
        replica = self._replicas[replica_id]
        if not replica.takes_work:
            return
        self._pending_stops.pop(replica_id, None)
        replica.become(ReplicaState.FAILED, self._timeline.now)
        lost = replica.reboot()
        self._load(replica, replica.spec.cold_start_s)
        self._on_change(replica)
        self._on_jobs_lost(lost)

    def slow(self, replica_id: str, speed: float, seconds: float) -> None:
        """Run the engine at `speed` times its own speed for `seconds`; its agent kills it when it hangs for too
        long.
        """
        replica, now = self._replicas[replica_id], self._timeline.now
        replica.set_speed(speed, now)
        self._on_change(replica)
        if speed <= 0.0 and seconds > self._hang_limit_s:
            self._timeline.after(self._hang_limit_s, self._kill_hung, replica, replica.boots)
        else:
            self._timeline.after(seconds, self._recover, replica, replica.boots)

    def act(self, action: PoolAction) -> bool:
        """Execute a controller's action; returns False where the replica's state forbids it."""
        replica = self._replicas.get(action.replica_id)
        if replica is None:
            return False
        state = replica.state
        if action.kind is ActionKind.WAKE and state is ReplicaState.ASLEEP:
            self._load(replica, replica.spec.wake_s[0 if replica.sleep_level <= 1 else 1])
        elif action.kind is ActionKind.START and state is ReplicaState.STOPPED:
            replica.reboot()
            self._load(replica, replica.spec.create_s + replica.spec.cold_start_s)
        elif action.kind is ActionKind.RESUME and state is ReplicaState.DRAINING:
            self._pending_stops.pop(action.replica_id, None)
            replica.become(ReplicaState.READY, self._timeline.now)
        elif action.kind is ActionKind.DRAIN and state is ReplicaState.READY:
            replica.become(ReplicaState.DRAINING, self._timeline.now)
        elif action.kind in _SUSPENDING and replica.takes_work:
            self._pending_stops[action.replica_id] = action
            if state is ReplicaState.READY:
                replica.become(ReplicaState.DRAINING, self._timeline.now)
            self.suspend_if_idle(replica)
        elif action.kind in _SUSPENDING and state is ReplicaState.ASLEEP:
            self._suspend(replica, action)
        else:
            return False
        return True

    def suspend_if_idle(self, replica: SimReplica) -> None:
        """Execute the replica's pending sleep or stop if it is idle; call this whenever a request leaves it."""
        if not replica.jobs and (action := self._pending_stops.pop(replica.spec.replica_id, None)):
            self._suspend(replica, action)

    def _suspend(self, replica: SimReplica, action: PoolAction) -> None:
        """Put the replica to sleep or stop it; both clear the prefix cache, as vLLM does when it sleeps."""
        now = self._timeline.now
        replica.become(ReplicaState.STOPPED if action.kind is ActionKind.STOP else ReplicaState.ASLEEP, now)
        replica.sleep_level = action.level if action.kind is ActionKind.SLEEP else 0
        replica.reboot()
        self._on_change(replica)

    def _load(self, replica: SimReplica, seconds: float) -> None:
        replica.become(ReplicaState.LOADING, self._timeline.now)
        self._timeline.after(seconds, self._ready, replica, replica.change_id)

    def _ready(self, replica: SimReplica, change_id: int) -> None:
        if replica.change_id == change_id:
            replica.sleep_level = 0
            replica.become(ReplicaState.READY, self._timeline.now)

    def _kill_hung(self, replica: SimReplica, boots: int) -> None:
        if replica.boots == boots:
            self.kill(replica.spec.replica_id)

    def _recover(self, replica: SimReplica, boots: int) -> None:
        if replica.boots == boots:
            replica.set_speed(1.0, self._timeline.now)
            self._on_change(replica)
