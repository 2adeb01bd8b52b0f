"""Where a KV cache in host memory pays: one engine with and without it, on the same requests.

The tier keeps what the engine's own cache evicts. It pays where conversations come back after their blocks were
evicted, and where bringing a token back takes less than computing it. Its size is what the profile states, else
HOST_SHARE of the host's memory, divided among the engines of the host; the link is PCI Express 5.0, each GPU's own
(`workers/kv_links.py`).
"""

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from sim.engine.step_model.interface import StepConfig
from sim.pool.tuning.chunks import CHUNK_S, WORKLOADS
from sim.pool.tuning.knee import LOAD, SEED, trial_of
from sim.pool.tuning.play import Played, Together
from workers.catalog import CatalogModel, EngineProfile, HostKind, KvOffload
from workers.wire import Capacity

HOST_SHARE = 0.25
"""Share of a host's memory for KV caches: the weights of sleeping models need most of the rest."""
REQUESTS = 1200
"""Requests of a run: enough for conversations to come back."""
SEEDS = tuple(range(SEED, SEED + 8))
"""Seeds of the requests; an engine with and one without a tier get the same ones."""


class TierFigures(msgspec.Struct, frozen=True):
    """One engine on one workload, without (`host_gb` 0) or with a tier: means over the seeds, times in seconds, shares
    from 0 to 1."""

    profile: str
    """MODEL:PROFILE."""
    workload: str
    cache_tokens: int
    """Tokens of the engine's own KV cache."""
    host_gb: float
    """Size of the tier in GB (1e9 bytes)."""
    host_tokens: int
    load_us: float
    """Microseconds to bring one token back."""
    prefill_us: float
    """Microseconds to compute one, at the beginning of a prompt."""
    knees_rps: tuple[float, ...]
    """Highest rate in requests/s with nine of ten requests in time, by seed."""
    rate_rps: float
    """Rate of the further figures."""
    hit_rate: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float

    @property
    def knee_rps(self) -> float:
        """The mean of the knees."""
        return fmean(self.knees_rps)


def with_tier(profile: EngineProfile, host_gb: float) -> Capacity:
    """Return the profile's capacity with `host_gb` GB of KV cache in host memory; 0 = without any.

    The profile must have the figure `kv_token_bytes`.
    """
    offload = KvOffload(1e9 * host_gb / 2**30) if host_gb else None
    return msgspec.structs.replace(profile, kv_offload=offload).capacity


def study(
    model: CatalogModel,
    profile: EngineProfile,
    host: HostKind,
    *,
    workloads: Sequence[str] = WORKLOADS,
    requests: int = REQUESTS,
    seeds: Sequence[int] = SEEDS,
    tick: Callable[[str], None] = lambda what: None,
) -> list[TierFigures]:
    """Return the figures without and with a tier on every workload; none where host memory or bytes are not known."""
    if host.ram_gb is None or "kv_token_bytes" not in profile.figures:
        return []
    host_gb = profile.tier_gb or HOST_SHARE * host.ram_gb.value / profile.instances
    rows = []
    for name in workloads:
        sizes = (0.0, host_gb)
        runs: dict[float, list[tuple[float, float, Played]]] = {size: [] for size in sizes}
        for seed in seeds:
            trial = trial_of(name, model, profile, requests=requests, seed=seed)
            near = rate = 0.0
            for size in sizes:
                tick(f"{model.name}:{profile.name} on {name}, {size:.0f} GB, seed {seed}")
                make = _maker(profile, size)
                near = trial.knee(make, near)
                rate = rate or LOAD * near
                runs[size].append((near, rate, trial.run(make, rate)))
        rows += [_figures(f"{model.name}:{profile.name}", name, profile, size, runs[size]) for size in sizes]
    return rows


def _maker(profile: EngineProfile, size: float) -> Callable[[], Together]:
    config = StepConfig(with_tier(profile, size), profile.block_size, CHUNK_S)
    return lambda: Together(config)


def _figures(
    label: str,
    workload: str,
    profile: EngineProfile,
    size: float,
    runs: Sequence[tuple[float, float, Played]],
) -> TierFigures:
    capacity = with_tier(profile, size)
    played = [each for _, _, each in runs]
    return TierFigures(
        profile=label,
        workload=workload,
        cache_tokens=capacity.kv_cache_tokens,
        host_gb=size,
        host_tokens=capacity.host_kv_tokens,
        load_us=1e6 * capacity.kv_load_s,
        prefill_us=1e6 / capacity.prefill_tokens_per_s,
        knees_rps=tuple(knee for knee, _, _ in runs),
        rate_rps=fmean(rate for _, rate, _ in runs),
        hit_rate=fmean(each.hit_rate for each in played),
        ttft_p50_s=fmean(each.ttft_p50_s for each in played),
        ttft_p90_s=fmean(each.ttft_p90_s for each in played),
        tpot_p50_s=fmean(each.tpot_p50_s for each in played),
    )
