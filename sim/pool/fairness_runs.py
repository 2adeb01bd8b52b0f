"""Measures the cost of fairness: backlogged tenants with documents of their own, under several queues.

Every queue serves the same tenants on the same pool. Throughput counts prompt and output tokens of finished
requests, cached or not, as Sheng et al. (OSDI'24) and Cao et al. (arXiv 2501.14312) do; service counts what was
charged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig, fifo, plain_vtc
from sim.pool.contract import Record
from sim.pool.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT, fairness
from sim.pool.fairness_load import Backlog, ClosedLoop
from sim.pool.penstock_routing import PenstockOptions, penstock
from sim.pool.pool import pool_of
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.workloads.sessions import Tokens
from workers.catalog import Catalog

PATIENCE_S = 3600.0
"""Queue deadline in seconds, long enough that no request is abandoned."""
DRAIN_S = 60.0
"""Seconds for which a run may continue after its last arrival."""
BASE = "vtc"
"""Name of the queue with which throughput is compared."""
OURS = "penstock"
"""Name of Penstock's queue."""


@dataclass(frozen=True, slots=True)
class FairnessCase:
    """A pool and its tenants."""

    name: str
    about: str
    replicas: int
    backlog: Backlog


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run, between warm-up and end."""

    tokens_per_s: float
    requests_per_s: float
    hit_rate: float
    jain: float
    max_gap: float
    """Largest difference in weighted tokens per weight that arose between two tenants while both waited."""
    bound: float
    """2 * max(w_p * L_in, w_q * M) / least weight + Q, with the longest prompt and the most tokens in flight
    observed.
    """


def _backlog(weights: tuple[float, ...], documents: int) -> Backlog:
    return Backlog(
        weights=weights,
        concurrency=48,
        documents=documents,
        document=Tokens(4_000, 12_000),
        question=Tokens(16, 400, mean=100),
        answer=Tokens(8, 256, mean=40, sigma=0.5),
    )


CASES = (
    FairnessCase("one replica", "the published setting: eight equal tenants, one server", 1, _backlog((1.0,) * 8, 12)),
    FairnessCase("four replicas", "eight equal tenants, one pool", 4, _backlog((1.0,) * 8, 48)),
    FairnessCase(
        "weights 1 and 2", "the same, half of the tenants with twice the share", 4, _backlog((1.0, 2.0) * 4, 48)
    ),
)  # fmt: skip


def queues() -> Mapping[str, PenstockOptions]:
    """Return the queues that are compared. `vtc_spread` is plain VTC behind a load balancer without prefix routing."""
    return {
        "fifo": _options("fifo", fifo()),
        "vtc_spread": replace(_options("vtc_spread", plain_vtc()), blind=True),
        BASE: _options(BASE, plain_vtc()),
        OURS: _options(OURS, SchedulerConfig()),
    }


def ablated() -> Mapping[str, PenstockOptions]:
    """Return Penstock's queue with only each tenant's next request eligible."""
    name = "no reordering"
    return {name: _options(name, SchedulerConfig(queue=QueueRules(reorder_window=1)))}


def _options(name: str, state: SchedulerConfig) -> PenstockOptions:
    unrefused = replace(state, admission=AdmissionRules(enabled=False))
    return PenstockOptions(deadline_s=PATIENCE_S, state=unrefused, name=name)


def play(
    scene: FairnessCase, options: PenstockOptions, catalog: Catalog, model: str, seconds: float, seed: int
) -> Figures:
    """Run for `seconds`, of which the first third is warm-up; the same arguments give the same figures."""
    pool = pool_of(catalog, [model], 1)[: scene.replicas]
    callers = ClosedLoop(scene.backlog, model, seconds, seed)
    start = seconds / 3
    config = RunConfig(seed=seed, warmup_s=start, drain_s=DRAIN_S, next_request=callers.next_request)
    records = simulate(
        penstock(options), callers.initial_requests(), pool, config, workload=scene.name
    ).records
    done = [record for record in records if start <= record.finished_at < seconds]
    if not done:
        raise ValueError(f"nothing was served between {start:.0f} and {seconds:.0f} s: the run is too short")
    prompt = sum(record.request.prompt_tokens for record in done)
    output = sum(record.request.output_tokens for record in done)
    measured = fairness(records, start, seconds)
    return Figures(
        tokens_per_s=(prompt + output) / (seconds - start),
        requests_per_s=len(done) / (seconds - start),
        hit_rate=sum(record.cached_tokens for record in done) / prompt,
        jain=measured.jain,
        max_gap=measured.max_service_gap,
        bound=gap_bound(records, options.state.queue.slack, min(scene.backlog.weights)),
    )


def gap_bound(records: Sequence[Record], slack: float, least_weight: float) -> float:
    """Return the largest possible gap of two backlogged tenants (Sheng et al., theorem 4.4, plus Q)."""
    longest = max(record.request.prompt_tokens for record in records)
    worst = 2.0 * max(INPUT_WEIGHT * longest, OUTPUT_WEIGHT * most_in_flight(records))
    return worst / least_weight + slack


def most_in_flight(records: Sequence[Record]) -> float:
    """Return M: the most uncached prompt and output tokens of requests that ran at the same time."""
    changes = sorted(_changes(records))
    return float(np.cumsum([tokens for _, tokens in changes]).max(initial=0.0))


def _changes(records: Sequence[Record]) -> Iterator[tuple[float, int]]:
    for record in records:
        if record.dispatched_at >= 0 and record.finished_at >= 0:
            tokens = record.request.prompt_tokens - record.cached_tokens + record.request.output_tokens
            yield record.dispatched_at, tokens
            yield record.finished_at, -tokens
