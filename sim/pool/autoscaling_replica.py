"""A replica fast enough for whole days: the step-time model with its steps smoothed into rates.

Between two events (a completed prompt or answer) prefill and decoding advance at constant rates. A step of
`decode_step_s` seconds yields `accept` tokens per sequence; one that carries a chunk of prompt takes the chunk's
share of the prompt's `prefill_s` longer. The formulas (workers/step_time.py) are those of the stepwise engine, with
two events per request instead of hundreds of steps.
"""

import math
from collections import OrderedDict, deque
from heapq import heappop, heappush

from sim.pool.autoscaling_load import Arrival
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity


class RunningRequest:
    """A request on a replica."""

    __slots__ = ("arrival", "cached", "first_at", "uncached")

    def __init__(self, arrival: Arrival, cached: int) -> None:
        self.arrival = arrival
        self.cached = cached
        self.uncached = max(1, arrival.prompt - cached)
        self.first_at = -1.0


class FluidReplica:
    """A replica with prefill in order of arrival, decoding shared by all requests, and an LRU cache of
    conversations.
    """

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.prefills: deque[RunningRequest] = deque()
        self.unprefilled = 0.0
        """Number of uncached prompt tokens that wait or are being prefilled."""
        self.kv_tokens = 0.0
        """Number of KV tokens of decoding sequences, assuming half of each answer."""
        self._decodes: list[tuple[float, int, RunningRequest]] = []
        self._done_tokens = 0.0
        """Tokens that a sequence decoding since the start of the simulation would have generated."""
        self._head_left = 0.0
        self._now = 0.0
        self._prefill_rate = 0.0
        self._decode_rate = 0.0
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._cache_tokens = 0

    @property
    def running(self) -> int:
        """Number of requests on the replica."""
        return len(self.prefills) + len(self._decodes)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache (0 to 1) that running requests use."""
        return self.kv_tokens / self.capacity.kv_cache_tokens

    def cached(self, arrival: Arrival) -> int:
        """Return how many prompt tokens of `arrival` are in the cache."""
        return min(arrival.prefix, self._cache.get(arrival.session, 0))

    def add(self, run: RunningRequest, now: float) -> None:
        """Add a request that arrives at `now`."""
        self._advance(now)
        if not self.prefills:
            self._head_left = float(run.uncached)
        self.prefills.append(run)
        self.unprefilled += run.uncached
        self._update_rates()

    def next_at(self) -> float:
        """Return the time of the next completed prompt or answer; infinity when idle."""
        at = math.inf
        if self.prefills and self._prefill_rate > 0.0:
            at = self._now + self._head_left / self._prefill_rate
        if self._decodes and self._decode_rate > 0.0:
            at = min(at, self._now + max(0.0, self._decodes[0][0] - self._done_tokens) / self._decode_rate)
        return at

    def step(self, now: float) -> list[RunningRequest]:
        """Advance to `now`, a time that `next_at` returned, and return the requests that ended."""
        self._advance(now)
        ended: list[RunningRequest] = []
        if self.prefills and self._head_left <= 1e-6 * self._prefill_rate:
            self._first_token(now, ended)
        while self._decodes and self._decodes[0][0] - self._done_tokens <= 1e-6 * self._decode_rate:
            run = heappop(self._decodes)[2]
            self.kv_tokens -= _held(run)
            ended.append(run)
        for run in ended:
            self._store_prefix(run.arrival.session, run.arrival.prompt + run.arrival.output)
        self._update_rates()
        return ended

    def clear_cache(self) -> None:
        """Empty the cache after a sleep or stop."""
        self._cache.clear()
        self._cache_tokens = 0

    def _first_token(self, now: float, ended: list[RunningRequest]) -> None:
        run = self.prefills.popleft()
        self.unprefilled = max(0.0, self.unprefilled - run.uncached)
        run.first_at = now
        if run.arrival.output <= 1:
            ended.append(run)
        else:
            self.kv_tokens += _held(run)
            heappush(self._decodes, (self._done_tokens + run.arrival.output - 1, run.arrival.key, run))
        if self.prefills:
            self._head_left = float(self.prefills[0].uncached)

    def _advance(self, now: float) -> None:
        elapsed = now - self._now
        if elapsed > 0.0:
            if self.prefills:
                self._head_left -= elapsed * self._prefill_rate
            self._done_tokens += elapsed * self._decode_rate
        self._now = now

    def _update_rates(self) -> None:
        """Set the rates until the next event. A prompt waits while the batch or the cache is full."""
        capacity, batch = self.capacity, len(self._decodes)
        decode_s = decode_step_s(capacity, batch, self.kv_tokens) if batch else 0.0
        fits = bool(self.prefills) and batch < capacity.max_num_seqs
        if fits and batch:
            fits = self.kv_tokens + self.prefills[0].arrival.prompt <= capacity.kv_cache_tokens
        if fits:
            head = self.prefills[0]
            prefill_s_per_token = prefill_s(capacity, head.uncached, head.arrival.prompt) / head.uncached
            step_s = decode_s + capacity.max_batched_tokens * prefill_s_per_token
            self._prefill_rate = capacity.max_batched_tokens / step_s
        else:
            step_s = decode_s
            self._prefill_rate = 0.0
        self._decode_rate = capacity.accept_per_step / step_s if batch else 0.0

    def _store_prefix(self, session: int, tokens: int) -> None:
        self._cache_tokens += tokens - self._cache.pop(session, 0)
        self._cache[session] = tokens
        while self._cache_tokens > self.capacity.kv_cache_tokens:
            self._cache_tokens -= self._cache.popitem(last=False)[1]


def _held(run: RunningRequest) -> float:
    return run.arrival.prompt + run.arrival.output / 2.0
