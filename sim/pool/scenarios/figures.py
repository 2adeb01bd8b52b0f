"""Figures of records that scenarios judge by. Shares from 0 to 1, times in seconds."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from sim.pool.contract import Record
from sim.pool.scenarios.traffic import CAPACITY, TARGETS
from sim.pool.summary import ServiceLevel

LEVEL = ServiceLevel(TARGETS, CAPACITY.prefill_tokens_per_s)


def shares(records: Iterable[Record], replicas: int) -> list[float]:
    """Each replica's share of the dispatched requests, largest first; those without any count."""
    counts = Counter(record.replica_id for record in records if record.replica_id)
    total = max(1, sum(counts.values()))
    dealt = sorted((count / total for count in counts.values()), reverse=True)
    return dealt + [0.0] * (replicas - len(dealt))


def ttft(records: Iterable[Record], quantile: float) -> float:
    """A quantile of the time to the first token; infinite where a request in it never got one."""
    times = sorted(record.ttft_s if record.first_token_at >= 0 else np.inf for record in records)
    return float(times[min(len(times) - 1, int(quantile * len(times)))]) if times else float("nan")


def hit_rate(records: Iterable[Record]) -> float:
    """Cached prompt tokens / prompt tokens, of those that were answered."""
    done = [record for record in records if record.finished_at >= 0]
    prompts = sum(record.request.prompt_tokens for record in done)
    return sum(record.cached_tokens for record in done) / prompts if prompts else 0.0


def in_time(records: Sequence[Record]) -> float:
    """Share answered within both targets; a refused request is not."""
    met = sum(record.finished_at >= 0 and LEVEL.met(record) for record in records)
    return met / len(records) if records else float("nan")


def arrived(records: Iterable[Record], start_s: float, end_s: float) -> list[Record]:
    """Those that came in [start, end)."""
    return [record for record in records if start_s <= record.request.at < end_s]


def of_tenant(records: Iterable[Record], prefix: str) -> list[Record]:
    """Those of tenants whose name begins so."""
    return [record for record in records if record.request.tenant.startswith(prefix)]
