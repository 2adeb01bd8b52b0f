"""The figures of one run: goodput within the SLO, latencies, hits, refusals, fairness, GPU hours, cost.

Arrivals of the warm-up are excluded from everything but GPU hours. Requests that no replica could ever take
(`too_long`) are the workload's fault, not the policy's, and are excluded too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.pool.cluster import TOO_LONG
from sim.pool.contract import Record, RunResult
from sim.pool.fairness import fairness
from sim.pool.pool import ReplicaSpec
from workers.step_time import own_prefill_s
from workers.wire import Capacity, Targets

Floats = NDArray[np.float64]
LOST = frozenset(("attempts_failed", "api_process_died"))
"""Reasons for requests that ended because an engine or API process died, not by a refusal."""


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """SLO of an answer: the first token within ttft_s beside its own prefill, the further ones at tpot_s on average
    (seconds), as its tier is promised."""

    targets: Targets
    capacity: Capacity

    def met(self, record: Record) -> bool:
        """Return whether a finished request met the SLO."""
        promised = self.targets.of(record.request.tier)
        own_s = own_prefill_s(self.capacity, record.request.prompt_tokens)
        in_time = record.ttft_s <= promised.ttft_s + own_s
        return in_time and record.tpot_s <= promised.tpot_s


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """The figures of one tenant."""

    requests: int
    refused: int
    ttft_p50_s: float
    ttft_p99_s: float
    slo_met: float
    """Share of the tenant's requests (0 to 1) that were answered within the SLO."""
    tokens: int
    """Number of prompt and output tokens of the tenant's finished requests."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run, in seconds, tokens, and shares from 0 to 1."""

    policy: str
    workload: str
    load: float
    seed: int
    requests: int
    finished: int
    goodput_rps: float
    """Requests answered within the SLO, per second of offered load."""
    offered_rps: float
    slo_met: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    hit_rate: float
    """Cached tokens / prompt tokens, 0 to 1."""
    shed_rate: float
    """Refused requests / requests, 0 to 1."""
    lost_rate: float
    """Share of requests (0 to 1) that ended without an answer because of faults, not of a decision."""
    jain: float
    max_service_gap: float
    gpu_hours: float
    usd_per_mtok: float
    """US dollars for the held GPUs, per million prompt and output tokens answered; 0 where the catalog has no
    price.
    """
    lifetime_s: float
    """Mean seconds from arrival to end of an answer."""
    mean_waiting: float
    """Mean number of requests that wait for their first token, in any queue, while load is offered."""
    max_waiting: int
    preemptions: int
    retried: int
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Number of requests without an answer, by reason."""
    tenants: Mapping[str, TenantFigures] = field(default_factory=dict)


def service_levels(pool: Sequence[ReplicaSpec]) -> dict[str, ServiceLevel]:
    """Return each model's SLO, from its first replica."""
    levels: dict[str, ServiceLevel] = {}
    for spec in pool:
        levels.setdefault(spec.model, ServiceLevel(spec.targets, spec.capacity))
    return levels


def summarise(result: RunResult, levels: Mapping[str, ServiceLevel]) -> Summary:
    """Return the figures of `result`; `levels` are the SLOs by model, from `service_levels`."""
    start, end = result.warmup_s, result.measured_until_s
    records = [
        record
        for record in result.records
        if start <= record.request.at <= end and record.refused != TOO_LONG
    ]
    done = [record for record in records if record.finished_at >= 0]
    lost = sum(record.refused in LOST for record in records)
    met = sum(levels[record.request.model].met(record) for record in done)
    ttft = np.array([record.ttft_s for record in done])
    tpot = np.array([record.tpot_s for record in done if record.request.output_tokens > 1])
    prompt = sum(record.request.prompt_tokens for record in done)
    seconds = max(end - start, 1e-9)
    fair = fairness(result.records, start, end)
    waiting_mean, waiting_max = waiting(records, start, end)
    return Summary(
        policy=result.policy,
        workload=result.workload,
        load=result.load,
        seed=result.seed,
        requests=len(records),
        finished=len(done),
        goodput_rps=met / seconds,
        offered_rps=len(records) / seconds,
        slo_met=met / len(records) if records else 1.0,
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p90_s=_quantile(ttft, 0.9),
        ttft_p99_s=_quantile(ttft, 0.99),
        tpot_p50_s=_quantile(tpot, 0.5),
        tpot_p99_s=_quantile(tpot, 0.99),
        hit_rate=sum(record.cached_tokens for record in done) / prompt if prompt else 0.0,
        shed_rate=_share(len(records) - len(done) - lost, len(records)),
        lost_rate=_share(lost, len(records)),
        jain=fair.jain,
        max_service_gap=fair.max_service_gap,
        gpu_hours=result.gpu_hours,
        usd_per_mtok=_usd_per_mtok(result),
        lifetime_s=float(np.mean([record.finished_at - record.request.at for record in done]))
        if done
        else 0.0,
        mean_waiting=waiting_mean,
        max_waiting=waiting_max,
        preemptions=sum(record.preemptions for record in records),
        retried=sum(record.attempts > 1 for record in records),
        refusals=_count(record.refused for record in records if record.refused),
        tenants=_tenants(records, levels),
    )


def waiting(records: Sequence[Record], start: float, end: float) -> tuple[float, int]:
    """Return mean over [start, end] and maximum of the requests that wait for their first token."""
    begins = np.sort([record.request.at for record in records if record.first_token_at >= 0])
    ends = np.sort([record.first_token_at for record in records if record.first_token_at >= 0])
    if not len(begins) or end <= start:
        return 0.0, 0
    area = (np.clip(ends, start, end) - np.clip(begins, start, end)).sum()
    after_each = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return float(area / (end - start)), int(after_each.max())


def over_time(
    result: RunResult, buckets: int, levels: Mapping[str, ServiceLevel]
) -> list[tuple[float, float, float, float]]:
    """Return, per time bucket: start, median TTFT of its arrivals, waiting requests at its end, share within
    the SLO.

    A bucket without answers has a TTFT of NaN and a share of 0.
    """
    width = max(result.arrivals_s, 1e-9) / buckets
    rows = []
    arrivals = np.array([record.request.at for record in result.records])
    seen = np.array([record.first_token_at for record in result.records])
    for number in range(buckets):
        low, high = number * width, (number + 1) * width
        inside = [result.records[index] for index in np.flatnonzero((arrivals >= low) & (arrivals < high))]
        done = [record for record in inside if record.finished_at >= 0]
        median = float(np.median([record.ttft_s for record in done])) if done else float("nan")
        waits = int(((arrivals <= high) & (seen > high)).sum())
        met = sum(levels[record.request.model].met(record) for record in done)
        rows.append((low, median, float(waits), met / len(inside) if inside else 0.0))
    return rows


def _tenants(records: Sequence[Record], levels: Mapping[str, ServiceLevel]) -> dict[str, TenantFigures]:
    by_tenant: dict[str, list[Record]] = {}
    for record in records:
        by_tenant.setdefault(record.request.tenant, []).append(record)
    figures = {}
    for tenant, mine in sorted(by_tenant.items()):
        done = [record for record in mine if record.finished_at >= 0]
        ttft = np.array([record.ttft_s for record in done])
        figures[tenant] = TenantFigures(
            requests=len(mine),
            refused=len(mine) - len(done),
            ttft_p50_s=_quantile(ttft, 0.5),
            ttft_p99_s=_quantile(ttft, 0.99),
            slo_met=sum(levels[record.request.model].met(record) for record in done) / len(mine),
            tokens=sum(record.request.prompt_tokens + record.request.output_tokens for record in done),
        )
    return figures


def _usd_per_mtok(result: RunResult) -> float:
    done = [record.request for record in result.records if record.finished_at >= 0]
    tokens = sum(request.prompt_tokens + request.output_tokens for request in done)
    return result.gpu_hours * result.usd_per_gpu_hour / (tokens / 1e6) if tokens else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def _count(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts
