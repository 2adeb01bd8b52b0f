"""Replays recorded requests against another pool, to predict how N hosts of kind K would have served this
traffic.

A recording has times, counts and salted hashes (scheduler/request_trace.py). A request that failed with its
replica and was tried again appears once for each attempt; only the last attempt is replayed. Caches are empty
at the start of a replay, so a short replay has a lower hit rate than the running platform had.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from core.errors import InvalidRequest
from core.money import ratio_per_mtok, usd_to_pico
from scheduler.request_trace import TracedRequest
from sim.pool.contract import RunResult
from sim.pool.network import Network
from sim.pool.pool import ReplicaSpec, pool_of
from sim.pool.registry import Variant, checked_prefix, names_of, policy
from sim.pool.run import simulate
from sim.pool.settings import Progress, RunConfig
from sim.pool.workloads.mooncake import Row, to_trace
from sim.pool.workloads.trace import TraceWorkload
from workers.catalog import Catalog, EngineProfile

MAX_REQUESTS = 500_000
"""Maximum number of requests in one replay; they need about 2 GB of memory with long prompts."""
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Figures:
    """How requests were served, in seconds and tokens; None = unknown or nothing to measure."""

    requests: int
    refused: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    hit_rate: float | None
    """Share of the answered requests' prompt tokens (0 to 1) that were cached."""
    gpu_hours: float | None = None
    usd_per_mtok: str | None = None
    """Exact decimal US dollars per million prompt and output tokens answered; None where the host has no price."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pool to simulate."""

    hosts: int
    """Number of hosts for each model."""
    kind: str | None = None
    """Kind of host; None = the kind of each model's default profile."""
    policy: str = "penstock"
    prefix: str = "mirrored"
    scale: float = 1.0
    """Factor on the arrival rate: the same requests in less time."""
    deadline_s: float = 30.0
    """Maximum seconds that a request may wait in the queue."""
    warmup_s: float = 0.0
    """Seconds of warm-up: earlier arrivals fill caches and are excluded from the figures."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The predicted service of a pool."""

    hosts: int
    host_kinds: dict[str, str]
    """Kind of host by model."""
    unvalidated: list[str]
    """Models whose figures no sweep validates."""
    replicas: int
    figures: Figures

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self)


def rows_of(requests: Iterable[tuple[str, TracedRequest]]) -> list[Row]:
    """Return recorded requests by model as rows of a trace, in order of time, which starts at the first
    request.

    Raises InvalidRequest when there are more than MAX_REQUESTS.
    """
    kept: list[tuple[int, str, TracedRequest]] = []
    for model, traced in requests:
        if traced.outcome == "failed":
            continue
        if len(kept) >= MAX_REQUESTS:
            raise InvalidRequest(
                f"more than {MAX_REQUESTS:,} requests were recorded; choose a shorter period"
            )
        kept.append((traced.at_ms, model, traced))
    kept.sort(key=lambda item: item[0])
    return [_row(model, traced, at_ms - kept[0][0]) for at_ms, model, traced in kept]


def _row(model: str, traced: TracedRequest, at_ms: int) -> Row:
    size = max(1, traced.block_tokens)
    return Row(
        timestamp=at_ms,
        input_length=traced.prompt_tokens,
        output_length=traced.output_tokens,
        # An estimate of the prompt or of a text block may be short of what the hashes cover.
        hash_ids=array("Q", traced.blocks[: traced.prompt_tokens // size]),
        tenant=traced.tenant_id,
        model=model,
        tier=traced.tier if traced.tier in ("priority", "batch") else "standard",
        weight=traced.weight if 0 < traced.weight <= 1e6 else 1.0,
        block_tokens=size,
        cached_tokens=traced.cached_tokens,
        queue_ms=traced.queue_ms,
        ttft_ms=traced.ttft_ms,
        total_ms=traced.total_ms,
        outcome=traced.outcome,
    )


def export(rows: Sequence[Row], path: Path) -> None:
    """Write rows as JSON lines that every command with a workload option can read.

    Raises InvalidRequest when `path` cannot be written.
    """
    encoder = msgspec.json.Encoder(enc_hook=list)  # for packed hashes, the one field that is no JSON
    try:
        with path.open("wb") as file:
            for row in rows:
                file.write(encoder.encode(row) + b"\n")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None


def measured(rows: Sequence[Row]) -> Figures | None:
    """Return the measured figures of the rows; None where the rows do not contain them."""
    known = [row for row in rows if row.outcome]
    if not known:
        return None
    done = [row for row in known if row.outcome == "done"]
    begun = [row for row in done if row.ttft_ms >= 0]
    per_token = [
        (row.total_ms - row.ttft_ms) / 1000 / (row.output_length - 1)
        for row in begun
        if row.output_length > 1
    ]
    return _figures(
        len(known),
        sum(row.outcome.startswith("refused") for row in known),
        [row.ttft_ms / 1000 for row in begun],
        per_token,
        sum(row.cached_tokens for row in done),
        sum(row.input_length for row in done),
    )


def replay(
    rows: Sequence[Row],
    catalog: Catalog,
    plan: Plan,
    on_progress: Callable[[Progress], None] | None = None,
) -> ReplayResult:
    """Simulate `rows` against the pool of `plan`.

    Raises InvalidRequest for a model, kind of host or policy that does not exist.
    """
    models = sorted({row.model for row in rows})
    profiles = {model: profile_on(catalog, model, plan.kind) for model in models}
    pool = pool_of(catalog, [f"{model}:{profile.name}" for model, profile in profiles.items()], plan.hosts)
    trace = to_trace(list(rows), "recorded traffic").within(max(spec.capacity.max_model_len for spec in pool))
    trace = trace.aligned(int(np.lcm.reduce([profile.block_size for profile in profiles.values()])))
    seconds = trace.span_s / plan.scale
    requests = TraceWorkload(trace, models, seeded_start=False).requests(
        rate=len(trace) / seconds, seconds=seconds, seed=plan.seed
    )
    variant = Variant(checked_prefix(plan.prefix), admission=True, deadline_s=plan.deadline_s)
    entry = policy(names_of(plan.policy)[0], variant)
    config = RunConfig(
        seed=plan.seed,
        network=entry.network(Network()),
        warmup_s=min(plan.warmup_s, seconds / 2),
        on_progress=on_progress,
    )
    result = simulate(entry.make, requests, pool, config, workload=trace.name)
    kinds = {model: profile.host_kind for model, profile in profiles.items()}
    bare = [model for model, profile in profiles.items() if not profile.sweep]
    return ReplayResult(plan.hosts, kinds, bare, len(pool), served(result, catalog, pool, kinds))


def profile_on(catalog: Catalog, model: str, kind: str | None) -> EngineProfile:
    """Return the model's first profile for a kind of host, or its default profile.

    Raises InvalidRequest listing the known kinds.
    """
    known = catalog.model(model)
    if kind is None:
        return known.profile()
    if kind not in catalog.hosts:
        raise InvalidRequest(
            f"the catalog has no host of kind {kind!r}; it has: {', '.join(catalog.hosts)}", param="kind"
        )
    for profile in known.profiles.values():
        if profile.host_kind == kind:
            return profile
    kinds = dict.fromkeys(profile.host_kind for profile in known.profiles.values())
    raise InvalidRequest(
        f"model {model} has no profile for {kind}; it has for: {', '.join(kinds)}", param="kind"
    )


def served(
    result: RunResult, catalog: Catalog, pool: Sequence[ReplicaSpec], kinds: dict[str, str]
) -> Figures:
    """Return the figures of a run."""
    records = [record for record in result.records if record.request.at >= result.warmup_s]
    done = [record for record in records if record.finished_at >= 0]
    tokens = sum(
        record.request.prompt_tokens + record.request.output_tokens
        for record in result.records
        if record.finished_at >= 0
    )
    figures = _figures(
        len(records),
        sum(bool(record.refused) for record in records),
        [record.ttft_s for record in done],
        [record.tpot_s for record in done if record.request.output_tokens > 1],
        sum(record.cached_tokens for record in done),
        sum(record.request.prompt_tokens for record in done),
    )
    cost = _cost_pico(catalog, pool, kinds, result.seconds)
    return replace(
        figures,
        gpu_hours=result.gpu_hours,
        usd_per_mtok=None if cost is None else ratio_per_mtok(cost, tokens),
    )


def _cost_pico(
    catalog: Catalog, pool: Sequence[ReplicaSpec], kinds: dict[str, str], seconds: float
) -> int | None:
    """Return the cost of the pool's hosts for the given time in picodollars; None where a host has no price."""
    prices = catalog.host_prices
    hosts = {spec.host: kinds[spec.model] for spec in pool}
    if any(kind not in prices for kind in hosts.values()):
        return None
    per_hour = sum(usd_to_pico(prices[kind].usd_per_hour) for kind in hosts.values())
    return per_hour * round(seconds * 1000) // (SECONDS_PER_HOUR * 1000)


def _figures(
    requests: int, refused: int, ttft: list[float], tpot: list[float], cached: int, prompt: int
) -> Figures:
    return Figures(
        requests,
        refused,
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p95_s=_quantile(ttft, 0.95),
        ttft_p99_s=_quantile(ttft, 0.99),
        tpot_p50_s=_quantile(tpot, 0.5),
        tpot_p95_s=_quantile(tpot, 0.95),
        hit_rate=cached / prompt if prompt else None,
    )


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
