"""Equal shed rates: a gate that lets a published policy refuse as many requests as Penstock's, at the highest
loads.

Published routers refuse no request, and a policy that may refuse serves the remaining requests better. To keep
the comparison fair, the gate sheds the same average share, by the policy's own estimate of its load: it refuses
arrivals while the estimate is above its recent (1 - rate) quantile.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from sim.pool.baselines.base import Baseline
from sim.pool.contract import Decision, Refuse, ReplicaView, SimRequest
from workers.wire import KvDelta

_WINDOW = 400
"""Number of arrivals over which the quantile is taken."""
_WARM = 20
_CORRECTION = 15.0
"""Gain of the correction of the quantile by the difference between the actual and the required shed rate."""
_GOLDEN = 0.618033988749895


class QuantileShedder:
    """Decides for each arrival whether it is shed: `rate` of them in the long run, at the highest loads."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._seen = 0
        self._shed = 0

    def sheds(self, load: float) -> bool:
        """Return whether this arrival is refused, given the policy's present load."""
        self._seen += 1
        load += 1e-6 * (self._seen * _GOLDEN % 1.0)  # equal loads are shed evenly over time
        self._note(load)
        if self.rate <= 0.0 or self._seen <= _WARM:
            return False
        behind = self.rate - self._shed / self._seen
        share = min(1.0, max(0.0, self.rate + _CORRECTION * behind))
        if bisect_left(self._sorted, load) < (1.0 - share) * len(self._sorted):
            return False
        self._shed += 1
        return True

    def _note(self, load: float) -> None:
        self._recent.append(load)
        insort(self._sorted, load)
        if len(self._recent) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]


class SheddingPolicy:
    """A published policy behind a gate; requests that are not shed reach it unchanged."""

    def __init__(self, policy: Baseline, rate: float) -> None:
        self.name = policy.name
        self.central = policy.central
        self.wants_kv_events = policy.wants_kv_events
        self._policy = policy
        self._gate = QuantileShedder(rate)
        self._refused: list[Decision] = []
        self._admitted: set[int] = set()

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Shed the request or pass it on. A retry after a failure was admitted before and is passed on."""
        if request.key not in self._admitted and self._gate.sheds(self._policy.load(request, router)):
            self._refused.append(Refuse(request.key, "shed", 1.0))
            return
        self._admitted.add(request.key)
        self._policy.arrive(request, router, now)

    def decide(self, now: float) -> list[Decision]:
        """Return the refusals, then the policy's own decisions."""
        refused, self._refused = self._refused, []
        return refused + self._policy.decide(now)

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Pass the event to the policy."""
        self._policy.first_token(key, replica_id, now)

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None:
        """Pass the event to the policy."""
        self._policy.progress(key, replica_id, produced, now)

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None:
        """Pass the event to the policy."""
        if not failed:
            self._admitted.discard(key)
        self._policy.finished(
            key,
            replica_id,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            failed=failed,
            now=now,
        )

    def router_lost(self, router: int, now: float) -> None:
        """Pass the event to the policy."""
        self._policy.router_lost(router, now)

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Pass the event to the policy."""
        self._policy.metrics(views, now)

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Pass the event to the policy."""
        self._policy.kv_events(delta, now)

    def next_wake(self, now: float) -> float | None:
        """Return the policy's next wake."""
        return self._policy.next_wake(now)
