"""Where a KV cache in host memory pays: one engine with and without it, on the same requests.

The tier keeps what the engine's own cache evicts. It pays where conversations come back after their blocks were
evicted, and where bringing a token back takes less than computing it. Its size is HOST_SHARE of the host's memory,
divided among the engines of the host; the link is PCI Express 5.0, each GPU's own (`workers/kv_links.py`).
"""

from collections.abc import Callable, Sequence

import msgspec

from sim.engine.step_model.interface import StepConfig
from sim.pool.tuning.chunks import CHUNK_S, WORKLOADS
from sim.pool.tuning.knee import LOAD, trial_of
from sim.pool.tuning.play import Together
from workers.catalog import CatalogModel, EngineProfile, HostKind, KvOffload
from workers.wire import Capacity

HOST_SHARE = 0.25
"""Share of a host's memory for KV caches: the weights of sleeping models need most of the rest."""
REQUESTS = 1200
"""Requests of a run: enough for conversations to come back."""


class TierFigures(msgspec.Struct, frozen=True):
    """One engine on one workload, without (`host_gb` 0) or with a tier. Times in seconds, shares from 0 to 1."""

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
    knee_rps: float
    """Highest rate in requests/s with nine of ten requests in time."""
    rate_rps: float
    """Rate of the further figures."""
    hit_rate: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float


def with_tier(profile: EngineProfile, host_gb: float) -> Capacity:
    """Return the profile's capacity with `host_gb` GB of KV cache in host memory; 0 = without any.

    The profile must have the figure `kv_token_bytes`.
    """
    return msgspec.structs.replace(profile, kv_offload=KvOffload(1e9 * host_gb / 2**30)).capacity


def study(
    model: CatalogModel,
    profile: EngineProfile,
    host: HostKind,
    *,
    workloads: Sequence[str] = WORKLOADS,
    requests: int = REQUESTS,
    tick: Callable[[str], None] = lambda what: None,
) -> list[TierFigures]:
    """Return the figures without and with a tier on every workload; none where host memory or bytes are not known."""
    if host.ram_gb is None or "kv_token_bytes" not in profile.figures:
        return []
    host_gb = HOST_SHARE * host.ram_gb.value / profile.instances
    rows = []
    for name in workloads:
        trial = trial_of(name, model, profile, requests=requests)
        near = rate = 0.0
        for size in (0.0, host_gb):
            tick(f"{model.name}:{profile.name} on {name}, {size:.0f} GB")
            capacity = with_tier(profile, size)

            def make(capacity: Capacity = capacity) -> Together:
                return Together(StepConfig(capacity, profile.block_size, CHUNK_S))

            near = trial.knee(make, near)
            rate = rate or LOAD * near
            said = trial.run(make, rate)
            rows.append(
                TierFigures(
                    f"{model.name}:{profile.name}", name, capacity.kv_cache_tokens, size, capacity.host_kv_tokens,
                    1e6 * capacity.kv_load_s, 1e6 / capacity.prefill_tokens_per_s, near, rate,
                    said.hit_rate, said.ttft_p50_s, said.ttft_p90_s, said.tpot_p50_s,
                )
            )  # fmt: skip
    return rows
