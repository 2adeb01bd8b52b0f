"""The combined capacity of one model's warm replicas."""

from dataclasses import dataclass

from scheduler.core.fleet import Fleet
from scheduler.core.replica import usable
from scheduler.core.rules import BANDS
from scheduler.core.waking import Coming
from scheduler.wire import BoundTo, PlaceRequest

MAX_PLACES_KEPT = 256
"""Sets of places for which what comes is kept."""
WARM_FRESH_S = 0.2
"""Seconds for which the sums over a model's replicas are used before they are computed again."""


@dataclass(frozen=True, slots=True)
class WarmCapacity:
    """Sums over the replicas of a model that take requests now."""

    ready: int
    """Replicas; all ranks of one are one."""
    slots: int
    kv_tokens: int
    ttft_targets_s: tuple[float, ...] = (0.0,) * len(BANDS)
    """Target for the first token by band."""
    largest_kv_tokens: int = 0
    """The largest KV cache of the model's replicas or ranks, warm or not, in tokens; 0 = not known."""
    ready_in_s: float | None = None
    """Without a ready replica: seconds until one serves, waking included; None = not known, or none is going to."""
    awaited: bool = False
    """Whether no replica is ready and one may come, whether or not its time is known."""

    @property
    def is_cold(self) -> bool:
        """Whether no replica is ready and the time until one is can be said."""
        return self.ready == 0 and self.ready_in_s is not None


class WarmPool:
    """The warm capacity of one model, cached for WARM_FRESH_S seconds or until `on_change`."""

    def __init__(self, model: str, fleet: Fleet, stale_s: float) -> None:
        """`stale_s`: seconds without a heartbeat after which a replica is not counted."""
        self.stale_s = stale_s
        self._model = model
        self._fleet = fleet
        self._capacity = WarmCapacity(0, 0, 0)
        self._fresh_until = float("-inf")
        self._coming: dict[tuple[BoundTo, bool], Coming] = {}
        self._places: tuple[frozenset[str], frozenset[str]] | None = None
        """The regions and classes of GPU in which replicas are or come, as of the same instant."""
        self._arrivals: object = None
        """The hosts in creation that they were computed from."""

    def at(self, now: float) -> WarmCapacity:
        """The capacity at `now` (monotonic seconds)."""
        if now >= self._fresh_until:
            known = self._fleet.replicas_of(self._model)
            ready = [replica for replica in known if usable(replica, now, self.stale_s)]
            self._capacity = WarmCapacity(
                len({replica.engine.replica_id for replica in ready}),
                sum(replica.slots for replica in ready),
                sum(replica.kv_capacity for replica in ready),
                tuple(
                    max((replica.status.targets.of(tier).ttft_s for replica in known), default=0.0)
                    for tier in BANDS
                ),
                max((replica.kv_capacity for replica in known), default=0),
                None if ready else self._fleet.ready_in_s(self._model, now),
                not ready and self._fleet.awaits(self._model, now),
            )
            self._fresh_until, self._coming, self._places = now + WARM_FRESH_S, {}, None
        return self._capacity

    def coming(self, request: PlaceRequest, now: float) -> Coming:
        """What comes to serve a request where it has to run; nothing while a replica there is ready."""
        pool = self.at(now)
        if not (request.regions or request.gpus or request.adapter):
            return Coming(pool.awaited, None if pool.ready else pool.ready_in_s)
        key = (self._narrowed(request), bool(request.adapter))
        found = self._coming.get(key)
        if found is None:
            found = self._fleet.coming(request, now, self.stale_s)
            if len(self._coming) < MAX_PLACES_KEPT:
                self._coming[key] = found
        return found

    def _narrowed(self, request: PlaceRequest) -> BoundTo:
        """What a request is bound to among the places in which anything is or comes: the other names, of which keys may
        have any number, make no difference."""
        waker = self._fleet.waker
        arrivals = None if waker is None else waker.arrivals
        if self._places is None or arrivals is not self._arrivals:
            found = [(each.engine.region, each.engine.gpu) for each in self._fleet.replicas_of(self._model)]
            found += [(each.region, each.gpu) for each in (arrivals or {}).get(self._model, ())]
            self._places = (
                frozenset(region.lower() for region, _ in found),
                frozenset(gpu.lower() for _, gpu in found),
            )
            self._arrivals = arrivals
        regions, gpus = (
            tuple(name for name in names if name in known) or ("",) * bool(names)
            for names, known in zip(request.bound_to, self._places, strict=True)
        )
        return regions, gpus

    def trouble(self, request: PlaceRequest) -> str:
        """What the last failed wake said where a request has to run; empty = none failed since a replica served."""
        waker = self._fleet.waker
        return "" if waker is None else waker.trouble(self._fleet.replicas_for(request))

    def on_change(self) -> None:
        """Compute the sums anew at the next call: replicas came, went or changed state."""
        self._fresh_until = float("-inf")
