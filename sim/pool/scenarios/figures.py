"""Figures computed from records, which scenarios assert on. Shares are 0 to 1, times are in seconds."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from sim.pool.contract import Record
from sim.pool.scenarios.traffic import CAPACITY, TARGETS
from sim.pool.summary import ServiceLevel

LEVEL = ServiceLevel(TARGETS, CAPACITY)


def shares(records: Iterable[Record], replicas: int) -> list[float]:
    """Return each replica's share of the dispatched requests, largest first; replicas without requests are
    included.
    """
    counts = Counter(record.replica_id for record in records if record.replica_id)
    total = max(1, sum(counts.values()))
    dealt = sorted((count / total for count in counts.values()), reverse=True)
    return dealt + [0.0] * (replicas - len(dealt))


def ttft(records: Iterable[Record], quantile: float) -> float:
    """Return a quantile of the time to first token; infinite where it falls on a request without a first token."""
    times = sorted(record.ttft_s if record.first_token_at >= 0 else np.inf for record in records)
    return float(times[min(len(times) - 1, int(quantile * len(times)))]) if times else float("nan")


def hit_rate(records: Iterable[Record]) -> float:
    """Return cached prompt tokens / prompt tokens of the answered requests."""
    done = [record for record in records if record.finished_at >= 0]
    prompts = sum(record.request.prompt_tokens for record in done)
    return sum(record.cached_tokens for record in done) / prompts if prompts else 0.0


def in_time(records: Sequence[Record]) -> float:
    """Return the share of requests answered within both targets; refused requests count as missed."""
    met = sum(record.finished_at >= 0 and LEVEL.met(record) for record in records)
    return met / len(records) if records else float("nan")


def arrived(records: Iterable[Record], start_s: float, end_s: float) -> list[Record]:
    """Return the records of requests that arrived in [start_s, end_s)."""
    return [record for record in records if start_s <= record.request.at < end_s]


def of_tenant(records: Iterable[Record], prefix: str) -> list[Record]:
    """Return the records of tenants whose names begin with `prefix`."""
    return [record for record in records if record.request.tenant.startswith(prefix)]
