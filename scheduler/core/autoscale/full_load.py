"""Full load: the highest rate of requests at which a number of replicas keeps every margin, and that of full batches.

`needed` of capacity.py answers how many replicas a rate needs; `full_load` is its inverse. Both use the fitted figures
of an engine profile and no other.
"""

import msgspec

from scheduler.core.autoscale.capacity import DEFAULT_MARGINS, MIN_RATE, Load, Margins, shortfall
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity, Targets

MAX_RATE = 1e6
"""Requests per second beyond which no load is searched."""
RELATIVE_ERROR = 1e-6
"""Where the search of the rate ends."""


class FullLoad(msgspec.Struct, frozen=True):
    """The highest load of a number of replicas."""

    rate: float
    """Requests per second; 0 when no rate keeps the margins."""
    limit: str
    """What would be missed above it, in the words of `shortfall`."""


def full_load(
    mix: Load, replicas: int, capacity: Capacity, targets: Targets, margins: Margins = DEFAULT_MARGINS
) -> FullLoad:
    """The highest rate of requests like those of `mix` (its own rate is ignored) that `replicas` (at least 1) take.

    Every law of capacity.py is monotone in the rate, so it is found by doubling and bisection, to RELATIVE_ERROR.
    """

    def lack(rate: float) -> str:
        return shortfall(msgspec.structs.replace(mix, rate=rate), replicas, capacity, targets, margins)

    low, high = 0.0, 2.0 * MIN_RATE
    while not (limit := lack(high)):
        if high >= MAX_RATE:
            return FullLoad(high, "")
        low, high = high, 2.0 * high
    if low == 0.0:
        return FullLoad(0.0, limit)
    while high - low > RELATIVE_ERROR * low:
        middle = (low + high) / 2.0
        if found := lack(middle):
            high, limit = middle, found
        else:
            low = middle
    return FullLoad(low, limit)


def saturated_rate(mix: Load, capacity: Capacity) -> float:
    """Requests per second of one replica whose batch is always full, however long its customers wait.

    A closed loop of B sequences: B / (o*t(B)/accept + B*s), with t(B) the seconds of a step that decodes B sequences
    with half their answers written, and s those of a request's prefill. B is the engine's limit of sequences, or as
    many as fit into the KV cache.
    """
    tokens = mix.prompt + mix.output / 2.0
    batch = min(float(capacity.max_num_seqs), capacity.kv_cache_tokens / tokens)
    decode = mix.output * decode_step_s(capacity, batch, batch * tokens) / capacity.accept_per_step
    return batch / (decode + batch * prefill_s(capacity, mix.uncached, mix.prompt))
