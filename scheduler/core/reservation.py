"""One replica kept free for a request that fits nowhere and has been overtaken too often.

Without it a large prompt starves under steady small traffic, or all of its pool has to wait until it fits. One replica
drains for it while the others go on serving; it may still be placed on any of them should it fit there sooner.

Two things keep the others from starving in its place. A reservation ends after `QueueRules.reservation_s`, or when it
is plain that higher bands do not let the replica drain; as long a time follows without any. And whoever had a replica
drain for a large request has that again only after the other tenants of its band have been given as much work. The
counters cannot see to that: a light tenant that seldom waits is lifted, whenever its next request comes, to the counter
of the one that does. Large requests of whoever may not have a reservation hold nobody up.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.core.fair_queue import FairQueue, band_index
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest
from scheduler.core.policy import Blocked, Choice, Reason, Rng
from scheduler.core.replica import Replica
from scheduler.core.warm import usable

NOTHING = (0.0, sys.maxsize)
"""Owed by whoever has had no replica drain: no work, and no need is as large."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A replica that takes nobody else of the request's band, or of a lower one, while it lasts."""

    queued: QueuedRequest
    replica_id: str
    band: int
    need: int
    """Tokens of KV cache that the request plans with."""
    since: float
    """When it was made; moving to another replica does not prolong it."""
    spare: int
    """Tokens that higher bands may still be given there before it is plain that the replica does not drain."""

    def keeps_out(self, queued: QueuedRequest) -> bool:
        """Whether `queued` must not go to the replica. Bands are strict: none makes room for a lower one."""
        return queued is not self.queued and band_index(queued.request.tier) >= self.band

    def as_large(self, queued: QueuedRequest) -> bool:
        """Whether `queued` needs as much, and is of no higher band."""
        return need_of(queued) >= self.need and band_index(queued.request.tier) >= self.band

    def goes_before(self, queued: QueuedRequest) -> bool:
        """Whether `queued` needs as much and therefore waits its turn: it would fit no better."""
        return queued is not self.queued and self.as_large(queued)


class Reservations:
    """At most one at a time for a model, who holds it, and who may have the next."""

    def __init__(self, model: str, queue: FairQueue, fleet: Fleet, stale_s: float) -> None:
        self.held: Reservation | None = None
        self._model = model
        self._queue = queue
        self._fleet = fleet
        self._stale_s = stale_s
        self._rest_until = float("-inf")
        self._failed: Reservation | None = None
        """The last that came to nothing, while its request waits or the others have their time."""
        self._owed: dict[tuple[int, str], tuple[float, int]] = {}
        """By band and line: the work that others are to be given before its next, and the least need of those placed.
        Few: every large one that is placed lowers what the others owe by about as much as one of them can."""

    def record_starved(self, skipped: Iterable[QueuedRequest], now: float) -> None:
        """Those `passed` over fitted nowhere while another went, or nobody could because of them.

        The first to whom this has happened too often gets a replica to itself. It is in fair order: only whoever has
        the turn, or is within Q of it, is ever passed over.
        """
        for queued in skipped:
            queued.times_starved += 1
            if self.held is None and self._may_reserve(queued, now):
                self.held = self._reserve(queued, now)

    def is_blocked(self, queued: QueuedRequest, deferred_need: int, now: float) -> bool:
        """Whether `queued` need not be tried: one that goes before it, or was set deferred, needs no more than it."""
        if self.held is not None and self.held.goes_before(queued):
            return True
        return (
            need_of(queued) >= deferred_need and not queued.request.exclude and self.is_deferred(queued, now)
        )

    def is_deferred(self, queued: QueuedRequest, now: float) -> bool:
        """Whether nobody is held up for `queued` though it has the turn and fits nowhere: a replica may not be kept for
        it now, so that it could be long until it fits."""
        failed = self._failed
        if failed is not None and failed.queued.outcome is not None and now >= self._rest_until:
            self._failed = failed = None
        if failed is not None and failed.as_large(queued):
            return True
        return self._owes(queued)

    def renewed(self, now: float) -> Reservation | None:
        """The one that is held now: moved if its replica takes nobody any more, ended if its time is over."""
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
        """Where a ticket can go: anywhere but to a replica that is kept free for another."""
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
        """A ticket was placed: the holder's reservation is used up, another's work is what was owed to it.

        Owed is what others had to make room for: a request of which the model's `largest` KV cache does not hold two,
        so that a replica had to drain for it, reserved or not.
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
        """Whether its tenant has had a replica drain for one no larger, and others of the band are still behind."""
        if not self._owed or self._queue.band(queued.request.tier).active_flows <= 1:
            return False
        return need_of(queued) >= self._owed.get(self._flow_of(queued), NOTHING)[1]

    def _drop(self, held: Reservation, now: float) -> None:
        """It has come to nothing: the others go on for as long as it lasted."""
        held.queued.times_starved = 0
        self._failed, self._rest_until = held, now + (now - held.since)
        self.held = None

    def _flow_of(self, queued: QueuedRequest) -> tuple[int, str]:
        return band_index(queued.request.tier), self._queue.rules.flow_of(queued.request.tenant_id)


def need_of(queued: QueuedRequest) -> int:
    """Tokens of KV cache that a request plans with."""
    return queued.request.prompt_tokens + queued.request.output_tokens


def reserve(
    queued: QueuedRequest, replicas: Iterable[Replica], now: float, stale_s: float, fill: float
) -> Reservation | None:
    """Keep the replica that should fit `queued` soonest: of those that can hold it, the one with most free KV cache.

    A replica that is not idle is filled up to the share `fill` of its KV cache. None where no usable replica that the
    request has not failed on could ever hold it.
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
