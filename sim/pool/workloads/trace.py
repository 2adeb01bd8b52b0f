"""A trace in memory, and the workload that replays it at any rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidRequest
from sim.pool.contract import SimRequest
from sim.pool.workloads.hashes import Hashes, key_of, salted

MAX_REQUESTS = 20_000_000
"""Maximum number of requests in one run."""


@dataclass(frozen=True, slots=True)
class Label:
    """The tenant of a request and what the request asks for."""

    tenant: str
    model: str = ""
    """Name of the model; empty = the model that the run is about."""
    tier: str = "standard"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of a trace, one entry per request, in order of arrival."""

    name: str
    at_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    labels: tuple[Label, ...]
    label: NDArray[np.int64]
    """Index of each request's label in `labels`."""
    session: NDArray[np.int64]
    """Number of each request's conversation."""
    chain: Hashes
    """Chained hashes of the whole prompt blocks of all requests, concatenated."""
    offsets: NDArray[np.int64]
    """Start of each request's hashes in `chain`; one entry more than there are requests."""
    block_tokens: NDArray[np.int64]
    """Number of prompt tokens in each block of a request."""

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last plus one mean gap, after which the trace may repeat."""
        if len(self) < 2:
            return 1.0
        length = float(self.at_s[-1] - self.at_s[0])
        return max(length * len(self) / (len(self) - 1), 1e-3)

    def within(self, context: int) -> "Trace":
        """Return the trace without requests whose prompt and answer exceed `context` tokens.

        Raises InvalidRequest when no request is left.
        """
        keep = (self.prompt_tokens + self.output_tokens <= context).nonzero()[0]
        if not len(keep):
            raise InvalidRequest(f"{self.name} has no request that fits a context of {context:,} tokens")
        return self if len(keep) == len(self) else self.rows(keep)

    def rows(self, keep: NDArray[np.int64]) -> "Trace":
        """Return the trace with only these rows."""
        counts = np.diff(self.offsets)[keep]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        pieces = [self.chain[self.offsets[row] : self.offsets[row + 1]] for row in keep]
        return Trace(
            self.name,
            self.at_s[keep],
            self.prompt_tokens[keep],
            self.output_tokens[keep],
            self.labels,
            self.label[keep],
            self.session[keep],
            np.concatenate(pieces) if pieces else self.chain[:0],
            offsets,
            self.block_tokens[keep],
        )

    def aligned(self, size: int) -> "Trace":
        """Return the trace with blocks rounded down to multiples of `size` tokens, the engine's block size.

        Prefixes that reached slightly further are underestimated. Blocks shorter than the engine's cannot be
        cached.
        """
        return replace(self, block_tokens=self.block_tokens - self.block_tokens % size)


class TraceWorkload:
    """Replays a trace.

    A run of n = rate x seconds requests takes n consecutive rows, and scales their times to `seconds`, which keeps the
    shape of bursts. Consecutive seeds take consecutive parts of the trace, so runs of one length share no rows as long
    as the trace has enough. After the last row the trace repeats with different hashes, so that the repetition adds no
    cache hits.

    Rows with the same rounded time are spread at random up to the next time.
    """

    def __init__(self, trace: Trace, models: Sequence[str], *, seeded_start: bool = True) -> None:
        """`models`: a row whose own model is not among them uses the first. `seeded_start` False = always start
        at the first row.
        """
        self.name = trace.name
        self.models = tuple(models)
        self.trace = trace
        self._seeded_start = seeded_start
        known = set(models)
        self._models = [label.model if label.model in known else self.models[0] for label in trace.labels]

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        """Yield the requests; see Workload.requests."""
        count = check_run(rate, seconds)
        rng = np.random.default_rng(seed)
        rows = len(self.trace)
        first = (seed - 1) * count % rows if self._seeded_start else 0
        index = np.arange(first, first + count)
        times = self._spread(rng)[index % rows] + (index // rows) * self.trace.span_s
        if count:
            times -= times[0]
            pace = seconds / (times[-1] * count / (count - 1)) if count > 1 and times[-1] > 0 else 1.0
            times *= pace
        for key, (row, at) in enumerate(zip(index.tolist(), times.tolist(), strict=True)):
            yield self._request(key, at, row % rows, row // rows)

    def _request(self, key: int, at: float, row: int, turn: int) -> SimRequest:
        trace = self.trace
        number = int(trace.label[row])
        label = trace.labels[number]
        size = int(trace.block_tokens[row])
        chain = trace.chain[trace.offsets[row] : trace.offsets[row + 1]] if size else trace.chain[:0]
        return SimRequest(
            key,
            at,
            label.tenant,
            self._models[number],
            max(1, int(trace.prompt_tokens[row])),
            max(1, int(trace.output_tokens[row])),
            salted(chain, key_of(label.tenant, turn)) if len(chain) else (),
            size or 64,
            session=f"{label.tenant}/{trace.session[row]}/{turn}",
            tier=label.tier,
            weight=label.weight,
        )

    def _spread(self, rng: np.random.Generator) -> NDArray[np.float64]:
        times = self.trace.at_s
        _, first, counts = np.unique(times, return_index=True, return_counts=True)
        if len(counts) == len(times):
            return times
        ends = np.append(times[first[1:]], times[0] + self.trace.span_s)
        gaps = np.repeat(ends - times[first], counts)
        shifts = np.where(np.repeat(counts, counts) > 1, rng.random(len(times)), 0.0)
        return np.sort(times + shifts * np.maximum(gaps, 0.0))


def check_run(rate: float, seconds: float) -> int:
    """Return how many requests a run has. Raises InvalidRequest for an invalid rate or length."""
    if not 0 < rate < 1e6 or not 0 < seconds < 1e8:
        raise InvalidRequest(
            f"a run of {seconds:g} s at {rate:g} requests/s is none: both must be above zero"
        )
    count = round(rate * seconds)
    if count > MAX_REQUESTS:
        raise InvalidRequest(f"{count:,} requests are more than one run takes ({MAX_REQUESTS:,})")
    return count
