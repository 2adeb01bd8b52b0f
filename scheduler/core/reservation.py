"""Reserves one replica for a request that fits nowhere and has been starved too often.

Without a reservation a large prompt starves under steady small traffic, or its whole pool has to stand still until it
fits. The reserved replica drains while the others go on serving. The request may still be placed on any other
replica.

Two rules keep the other tenants from starving instead. A reservation ends after `QueueRules.reservation_s`, or when
higher bands keep the replica from draining, and none is made for as long a time afterwards. A tenant that had a
replica drained for a large request gets the next reservation only after the other tenants of its band have been given
as much work. Counters cannot ensure this, because a light tenant that seldom waits is lifted to the counter of the
waiting one at each request. Large requests without a right to a reservation do not block others.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest
from scheduler.core.policy import Blocked, Choice, Reason, Rng
from scheduler.core.replica import Replica
from scheduler.core.rules import band_index
from scheduler.core.warm import usable

NOTHING = (0.0, sys.maxsize)
"""Debt of a flow that had no replica drained: no work, and a need that no request reaches."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A replica that takes no other request of the request's band or of a lower band."""

    queued: QueuedRequest
    replica_id: str
    band: int
    need: int
    """Tokens of KV cache that the request needs."""
    since: float
    """When the reservation was made, in monotonic seconds; a move to another replica does not change it."""
    spare: int
    """Tokens of KV cache that higher bands may still be given there before the reservation is dropped."""

    def keeps_out(self, queued: QueuedRequest) -> bool:
        """Whether `queued` must not be placed on the replica. Bands are strict: none makes room for a lower one."""
        return queued is not self.queued and band_index(queued.request.tier) >= self.band

    def as_large(self, queued: QueuedRequest) -> bool:
        """Whether `queued` needs at least as much and is of no higher band."""
        return need_of(queued) >= self.need and band_index(queued.request.tier) >= self.band

    def goes_before(self, queued: QueuedRequest) -> bool:
        """Whether the reserved request goes before `queued`, which needs as much and would fit no better."""
        return queued is not self.queued and self.as_large(queued)


class Reservations:
    """The reservation of one model, at most one at a time, and the right to the next."""

    def __init__(self, model: str, queue: FairQueue, fleet: Fleet, stale_s: float) -> None:
        self.held: Reservation | None = None
        self._model = model
        self._queue = queue
        self._fleet = fleet
        self._stale_s = stale_s
        self._rest_until = float("-inf")
        self._failed: Reservation | None = None
        """The last reservation that was dropped, until its request has left and the pause after it is over."""
        self._owed: dict[tuple[int, str], tuple[float, int]] = {}
        """By band and flow: work owed to other tenants before the flow's next reservation, and the least need that
        was placed. There are few entries, because every large placement lowers what the others owe."""

    def record_starved(self, skipped: Iterable[QueuedRequest], now: float) -> None:
        """Count that `skipped` requests fitted nowhere while another was placed, or while they blocked the rest.

        The first request that reaches `starvation_limit` gets a reservation. The order is fair: only requests whose
        turn it is, or within Q of it, are ever skipped.
        """
        for queued in skipped:
            queued.times_starved += 1
            if self.held is None and self._may_reserve(queued, now):
                self.held = self._reserve(queued, now)

    def is_blocked(self, queued: QueuedRequest, deferred_need: int, now: float) -> bool:
        """Whether `queued` need not be tried: it needs as much as the reserved request, or as a deferred one."""
        if self.held is not None and self.held.goes_before(queued):
            return True
        return (
            need_of(queued) >= deferred_need and not queued.request.exclude and self.is_deferred(queued, now)
        )

    def is_deferred(self, queued: QueuedRequest, now: float) -> bool:
        """Whether `queued`, which fits nowhere, must not block others, because no replica may be reserved for
        it now."""
        failed = self._failed
        if failed is not None and failed.queued.outcome is not None and now >= self._rest_until:
            self._failed = failed = None
        if failed is not None and failed.as_large(queued):
            return True
        return self._owes(queued)

    def renewed(self, now: float) -> Reservation | None:
        """The present reservation: moved when its replica is not usable any more, dropped when its time is over."""
        held = self.held
        if held is None:
            return None
        if held.queued.outcome is not None or now - held.since >= self._queue.rules.reservation_s:
            self._drop(held, now)
            return None
        replica = self._fleet.replicas.get(held.replica_id)
        if replica is None or not usable(replica, now, self._stale_s):
            moved = self._reserve(held.queued, now)
            if moved is None:
                self._drop(held, now)
                return None
            self.held = replace(moved, since=held.since)
        return self.held

    def place(self, queued: QueuedRequest, now: float, rng: Rng) -> Choice | Blocked:
        """Place a request on any replica but one that is reserved for another."""
        held, request = self.held, queued.request
        if held is None or not held.keeps_out(queued) or held.replica_id in request.exclude:
            return self._fleet.place(request, now, rng)
        own, request.exclude = request.exclude, [*request.exclude, held.replica_id]
        verdict = self._fleet.place(request, now, rng)
        request.exclude = own
        if isinstance(verdict, Choice) or verdict.reason.transient:
            return verdict
        return Blocked(Reason.BUSY)

    def placed(self, queued: QueuedRequest, replica_id: str, largest: int, now: float) -> None:
        """Account for a placement: the reserved request uses up its reservation, another one's work reduces the
        debts.

        A debt arises when others had to make room: the model's `largest` KV cache (tokens) does not hold two such
        requests.
        """
        mine, held = self._flow_of(queued), self.held
        for flow in [flow for flow in self._owed if flow[0] == mine[0] and flow != mine]:
            left, need = self._owed.pop(flow)
            if left > queued.work:
                self._owed[flow] = (left - queued.work, need)
        if queued.times_starved and 2 * need_of(queued) > largest > 0:
            already, need = self._owed.get(mine, NOTHING)
            owes = already + queued.work / queued.request.weight
            self._owed[mine] = (owes, min(need, need_of(queued)))
        if held is None:
            return
        if held.queued is queued:
            self.held = None
        elif replica_id == held.replica_id and mine[0] < held.band:
            self.held = replace(held, spare=held.spare - need_of(queued))
            if self.held.spare < 0:
                self._drop(held, now)

    def _reserve(self, queued: QueuedRequest, now: float) -> Reservation | None:
        replicas = self._fleet.replicas_of(self._model)
        return reserve(queued, replicas, now, self._stale_s, self._fleet.config.kv_fill)

    def _may_reserve(self, queued: QueuedRequest, now: float) -> bool:
        enough = queued.times_starved >= self._queue.rules.starvation_limit
        return enough and now >= self._rest_until and not self._owes(queued)

    def _owes(self, queued: QueuedRequest) -> bool:
        """Whether the tenant had a replica drained for a request no larger, and still owes work to others of the
        band."""
        if not self._owed or self._queue.band(queued.request.tier).active_flows <= 1:
            return False
        return need_of(queued) >= self._owed.get(self._flow_of(queued), NOTHING)[1]

    def _drop(self, held: Reservation, now: float) -> None:
        """End a reservation without a placement; none is made for as long as it lasted."""
        held.queued.times_starved = 0
        self._failed, self._rest_until = held, now + (now - held.since)
        self.held = None

    def _flow_of(self, queued: QueuedRequest) -> tuple[int, str]:
        return band_index(queued.request.tier), self._queue.rules.flow_of(queued.request.tenant_id)


def need_of(queued: QueuedRequest) -> int:
    """Tokens of KV cache that a request needs: prompt and estimated answer."""
    return queued.request.prompt_tokens + queued.request.output_tokens


def reserve(
    queued: QueuedRequest, replicas: Iterable[Replica], now: float, stale_s: float, fill: float
) -> Reservation | None:
    """Reserve the replica that should fit `queued` first: the one with most free KV cache of those that can hold it.

    A replica that is not idle is filled up to the share `fill` of its KV cache. None when no usable replica, except
    those that the request has failed on, can ever hold it.
    """
    need, excluded = need_of(queued), set(queued.request.exclude)
    able = [
        replica
        for replica in replicas
        if usable(replica, now, stale_s)
        and replica.status.replica_id not in excluded
        and not 0 < replica.kv_capacity < need
    ]
    if not able:
        return None
    best = max(
        able,
        key=lambda each: (each.kv_capacity - each.kv_tokens, -each.running, each.status.replica_id),
    )
    spare = int(fill * best.kv_capacity) - need
    return Reservation(
        queued, best.status.replica_id, band_index(queued.request.tier), need, now, spare=max(0, spare)
    )
