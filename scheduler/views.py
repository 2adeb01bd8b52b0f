"""Snapshots of the pool: hosts, replicas and queues."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from scheduler.core.config import HEARTBEAT_STALE_S
from scheduler.core.replica import Replica
from scheduler.core.state import SchedulerState
from scheduler.listeners import Listener
from scheduler.model_activity import ModelActivity
from scheduler.wire import HostView, ModelView, PoolSnapshot
from workers.wire import Heartbeat, ReplicaState, ReplicaStatus


class HostRegistry(Listener):
    """The last heartbeat of each agent."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[Heartbeat, float]] = {}

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """Keep an agent's latest heartbeat."""
        self._beats[beat.agent_id] = (beat, at)

    def forget_silent(self, now: float, after_s: float) -> None:
        """Drop hosts without a heartbeat for `after_s` seconds."""
        for agent_id in [name for name, (_, at) in self._beats.items() if now - at > after_s]:
            del self._beats[agent_id]

    def host_of(self, agent_id: str) -> str:
        """The id of an agent's host; empty = nothing was heard of it."""
        known = self._beats.get(agent_id)
        return known[0].host_id if known is not None else ""

    def views(self, now: float) -> list[HostView]:
        """All hosts, sorted by id."""
        views = [
            HostView(
                beat.host_id,
                beat.agent_id,
                beat.host_kind,
                beat.region,
                beat.gpus,
                round(now - last_seen_at, 3),
                beat.state_seconds,
                beat.acceptance,
                beat.complete,
                beat.memory_gb,
            )
            for beat, last_seen_at in self._beats.values()
        ]
        return sorted(views, key=lambda view: view.host_id)


def pool_snapshot(state: SchedulerState, hosts: HostRegistry, now: float, at: datetime) -> PoolSnapshot:
    """The snapshot for the console and the clients' fallback; the service adds plan and models."""
    by_name = {replica.engine.replica_id: replica for replica in state.fleet.replicas.values()}
    replicas = [_status(by_name[name], now) for name in sorted(by_name)]
    unix_ms = int(at.timestamp() * 1000)
    return PoolSnapshot(state.epoch, unix_ms, replicas, hosts.views(now), state.queue_views(now))


def model_views(
    activity: ModelActivity, state: SchedulerState, snapshot: PoolSnapshot, now: float
) -> list[ModelView]:
    """What customers see of each model that has replicas or may get some, for a snapshot."""
    waker = state.fleet.waker
    created = {*waker.arrivals, *waker.creatable} if waker is not None else set()
    views = activity.views(snapshot.replicas, now, snapshot.at_unix_ms, created)
    for view in views:
        view.wakes = view.ready_in_s != 0.0 and state.wakes(view.model)
        if (wait_s := state.fleet.ready_in_s(view.model, now)) is not None:
            view.ready_in_s = wait_s
        elif waker is not None and view.ready_in_s is None and view.model in waker.creatable:
            view.wakes = (
                True  # the scheduler refuses it; but it counts as demand, for which the plan creates a host
            )
    return views


def _status(replica: Replica, now: float) -> ReplicaStatus:
    """The status of a replica with all its ranks. A silent one is shown as failed, a commanded one as expected."""
    learnt = replica.meter.estimate.is_learnt
    status = msgspec.structs.replace(
        replica.engine, capacity=msgspec.structs.replace(replica.engine.capacity, learnt=learnt)
    )
    silent_s = now - replica.last_seen_at
    if silent_s > HEARTBEAT_STALE_S:
        detail = f"no heartbeat for {silent_s:.0f} s"
        return msgspec.structs.replace(status, state=ReplicaState.FAILED, detail=detail)
    if replica.expected_state is not None:
        return msgspec.structs.replace(status, state=replica.expected_state)
    return status
