"""Blocks of a run, and intervals by resampling them.

Requests that arrive within seconds of each other share queues and batches: they are no independent observations, and
neither are a few seeds enough for a t interval. A run is divided into blocks about as long as an answer lives. All
policies of a seed serve the same blocks, so differences are resampled in pairs (block bootstrap, Künsch 1989).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.pool.cluster import TOO_LONG
from sim.pool.contract import RunResult
from sim.pool.summary import ServiceLevel

RESAMPLES = 200
"""Resamples of an interval."""
_DIGITS = 4
"""Significant digits kept of a TTFT."""
_SEED = 20_261_124

Floats = NDArray[np.float64]
Block = Mapping[str, Any]
"""`s`: seconds; `n`: requests; `met`: of them in time; `ttft`: seconds to the first token of those that got one."""
Pairs = Sequence[tuple[Block, Block]]
"""Blocks of two policies with the same arrivals."""
Statistic = Callable[[Sequence[Block]], float]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A figure with its 95 % interval; NaN bounds where there are too few blocks."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2.0

    def verdict(self, neutral: float = 0.0) -> str:
        """Return `above` or `below` where `neutral` is outside the interval, else `same`."""
        if self.low > neutral:
            return "above"
        return "below" if self.high < neutral else "same"


def blocks_of(result: RunResult, levels: Mapping[str, ServiceLevel], seconds: float) -> list[dict[str, Any]]:
    """Return the blocks of a run between warm-up and cool-down, each of `seconds`; a rest is spread over all."""
    start, end = result.warmup_s, result.measured_until_s
    count = max(1, int((end - start) / seconds + 1e-9))
    length = (end - start) / count
    blocks: list[dict[str, Any]] = [
        {"s": round(length, 3), "n": 0, "met": 0, "ttft": []} for _ in range(count)
    ]
    for record in result.records:
        at = record.request.at
        if not start <= at <= end or record.refused == TOO_LONG:
            continue
        block = blocks[min(count - 1, int((at - start) / length))]
        block["n"] += 1
        if record.finished_at >= 0:
            block["met"] += levels[record.request.model].met(record)
            block["ttft"].append(float(f"{record.ttft_s:.{_DIGITS}g}"))
    return blocks


def goodput(blocks: Sequence[Block]) -> float:
    """Return requests in time per second."""
    met, seconds = (float(sum(block[name] for block in blocks)) for name in ("met", "s"))
    return met / max(1e-9, seconds)


def ttft(share: float) -> Statistic:
    """Return the statistic of a quantile of the TTFT, in seconds; NaN where no request got a first token."""

    def quantile(blocks: Sequence[Block]) -> float:
        values = np.concatenate([block["ttft"] for block in blocks])
        return float(np.quantile(values, share)) if len(values) else float("nan")

    return quantile


def bounds(blocks: Sequence[Block], statistic: Statistic) -> Bounds:
    """Return a statistic with its interval."""
    blocks = [_with_array(block) for block in blocks]
    values = [statistic([blocks[index] for index in chosen]) for chosen in _resamples(len(blocks))]
    return _bounds(statistic(blocks), values)


def ratio(pairs: Pairs, statistic: Statistic) -> Bounds:
    """Return the first policy's statistic over the second's, with its interval: both are resampled alike."""

    def one(chosen: Pairs) -> float:
        other = statistic([theirs for _, theirs in chosen])
        return statistic([ours for ours, _ in chosen]) / other if other else float("nan")

    pairs = [(_with_array(ours), _with_array(theirs)) for ours, theirs in pairs]
    return _bounds(one(pairs), [one([pairs[index] for index in chosen]) for chosen in _resamples(len(pairs))])


def _with_array(block: Block) -> Block:
    """Return the block with its TTFTs as an array, which is not converted again in every resample."""
    return {**block, "ttft": np.asarray(block["ttft"], dtype=np.float64)}


def _resamples(count: int) -> list[list[int]]:
    rng = np.random.default_rng(_SEED)
    drawn: list[list[int]] = rng.integers(0, count, (RESAMPLES, count)).tolist() if count else []
    return drawn


def _bounds(value: float, values: Sequence[float]) -> Bounds:
    known: Floats = np.array([each for each in values if np.isfinite(each)])
    if len(known) < RESAMPLES // 2:
        return Bounds(value, float("nan"), float("nan"))
    low, high = np.quantile(known, (0.025, 0.975)).tolist()
    return Bounds(value, low, high)
