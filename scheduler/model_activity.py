"""What customers see of each model: whether it can serve, how fast its answers were, how many it refused.

Fed by the events of requests and by the replicas of each snapshot, and bounded: a model without replicas and without
recent requests is forgotten.
"""

import statistics
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from scheduler.core.placement import ActivePlacement
from scheduler.core.rules import BANDS, band_index
from scheduler.listeners import Listener
from scheduler.messages import PlaceRefused
from scheduler.wire import ModelView, Placement, Released, TierView
from workers.wire import ReplicaState, ReplicaStatus

WINDOW_S = 600.0
"""Seconds of requests that the figures are of."""
BUCKET_S = 60.0
"""Seconds that are counted together; the oldest are dropped together."""
SAMPLES = 256
"""Answers whose times are kept per model and tier."""
MIN_TOKENS = 8
"""Output tokens of the shortest answer whose speed counts."""
START_S = 120.0
"""Seconds in which a starting replica is expected to serve where no start of its model was seen; of a known time,
twice as long."""
MAX_MODELS = 1024
"""Models that are kept."""
FORGET_S = 86_400.0
"""Seconds after which a model without replicas is forgotten."""


@dataclass(slots=True)
class _Bucket:
    """Requests of one tier in BUCKET_S."""

    began: float
    placed: int = 0
    failed: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Tier:
    """Recent requests of one tier of a model."""

    ttft: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Instant and seconds to the first token, the wait for a replica included."""
    speed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Instant and output tokens per second after the first token."""
    buckets: deque[_Bucket] = field(default_factory=deque)

    def bucket(self, now: float) -> _Bucket:
        """The counts of the present."""
        if not self.buckets or now - self.buckets[-1].began >= BUCKET_S:
            self.expire(now)
            self.buckets.append(_Bucket(now))
        return self.buckets[-1]

    def expire(self, now: float) -> None:
        """Drop what is older than WINDOW_S."""
        while self.buckets and now - self.buckets[0].began > WINDOW_S:
            self.buckets.popleft()
        for samples in (self.ttft, self.speed):
            while samples and now - samples[0][0] > WINDOW_S:
                samples.popleft()

    def view(self, tier: str) -> TierView:
        """The figures of what is kept."""
        placed = sum(bucket.placed for bucket in self.buckets)
        failed = sum(bucket.failed for bucket in self.buckets)
        asked = placed + sum(bucket.refused for bucket in self.buckets)
        return TierView(
            tier,
            requests=asked,
            availability=max(0, placed - failed) / asked if asked else None,
            ttft_p50_s=statistics.median(value for _, value in self.ttft) if self.ttft else None,
            tokens_per_s=statistics.median(value for _, value in self.speed) if self.speed else None,
        )


@dataclass(slots=True)
class _Model:
    """One model. Times are monotonic seconds."""

    seen_at: float
    last_ready_at: float | None = None
    start_s: float | None = None
    """Seconds that the last start of a replica took."""
    starting: dict[str, float] = field(default_factory=dict)
    """By replica that is to serve: since when it does not."""
    tiers: dict[str, _Tier] = field(default_factory=dict)

    def observe(self, replicas: Sequence[ReplicaStatus], now: float) -> float | None:
        """Take the states of its replicas. Seconds until one can serve: 0 = now, None = none is going to."""
        coming: dict[str, float] = {}
        for replica in replicas:
            name = replica.replica_id
            if replica.state is ReplicaState.READY:
                self.last_ready_at = now
                if (since := self.starting.get(name)) is not None:
                    self.start_s = now - since
            elif replica.state in (ReplicaState.LOADING, ReplicaState.FAILED):
                coming[name] = self.starting.get(name, now)
        self.starting = coming
        if self.last_ready_at == now:
            return 0.0
        waits = [wait for since in coming.values() if (wait := self._wait_s(now - since)) is not None]
        return min(waits, default=None)

    def _wait_s(self, elapsed_s: float) -> float | None:
        expected_s = self.start_s or 0.0
        return max(0.0, expected_s - elapsed_s) if elapsed_s <= max(START_S, 2 * expected_s) else None


class ModelActivity(Listener):
    """The models that have or had replicas, with the recent requests of each tier."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """Count a request that got a replica."""
        if (found := self._tier(placement.model, tier)) is not None:
            found.bucket(at).placed += 1

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """Count a request that no replica could serve; a tenant that exceeds its share is not the platform's lack."""
        if refusal.status == 503 and (found := self._tier(model, refusal.tier)) is not None:
            found.bucket(at).refused += 1

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """Keep the time to the first token."""
        if placement is not None and (found := self._tier(placement.model, placement.tier)) is not None:
            found.ttft.append((at, at - placement.placed_at + placement.queued_s))

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Keep the speed of an answer, and count a replica's failure."""
        if placement is None or (found := self._tier(placement.model, placement.tier)) is None:
            return
        if released.failed:
            found.bucket(at).failed += 1
        elif placement.first_token_at and released.output_tokens >= MIN_TOKENS:
            took_s = at - placement.first_token_at
            if took_s > 0.0:
                found.speed.append((at, (released.output_tokens - 1) / took_s))

    def views(
        self, replicas: Sequence[ReplicaStatus], now: float, unix_ms: int, created: Set[str] = frozenset()
    ) -> list[ModelView]:
        """What is known of each model; `replicas` are all of the pool, `unix_ms` is the time of day at `now`, and
        hosts are or may be created for the models `created`.
        """
        by_model: dict[str, list[ReplicaStatus]] = {}
        for replica in replicas:
            by_model.setdefault(replica.model, []).append(replica)
        for name in by_model.keys() | created:
            if name not in self._models and len(self._models) < MAX_MODELS:
                self._models[name] = _Model(now)
        views = []
        for name, model in list(self._models.items()):
            if name in by_model or name in created:
                model.seen_at = now
            elif now - model.seen_at > FORGET_S:
                del self._models[name]
                continue
            wait_s = model.observe(by_model.get(name, ()), now)
            last_ms = None
            if model.last_ready_at is not None:
                last_ms = unix_ms - int((now - model.last_ready_at) * 1000)
            for tier in model.tiers.values():
                tier.expire(now)
            tiers = [model.tiers[band].view(band) for band in BANDS if band in model.tiers]
            views.append(ModelView(name, wait_s, last_ms, tiers))
        return views

    def _tier(self, model: str, tier: str) -> _Tier | None:
        """Where the requests of a tier are kept; None of a model that never had a replica."""
        known = self._models.get(model)
        return known.tiers.setdefault(BANDS[band_index(tier)], _Tier()) if known is not None else None
