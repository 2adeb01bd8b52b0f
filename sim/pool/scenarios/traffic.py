"""Small pools and explicit requests, so that every scenario states exactly what arrives when."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sim.engine.step_model.engine import StepConfig
from sim.pool.contract import SimRequest
from sim.pool.network import stream as generator
from sim.pool.pool import ReplicaSpec
from sim.pool.workloads.hashes import key_of, stream
from workers.wire import Capacity, Targets

MODEL = "model"
BLOCK = 64
"""Number of tokens per prefix block."""
CAPACITY = Capacity(
    prefill_tokens_per_s=7_000,
    step_base_s=0.0166,
    step_per_seq_s=0.000188,
    step_per_kv_token_s=2.4e-8,
    max_num_seqs=256,
    kv_cache_tokens=440_000,
    max_model_len=65_536,
    gpus=2,
)
"""Capacity of roughly a 70B model on two H100 GPUs; constant, so that catalog changes do not affect any limit."""
TARGETS = Targets(ttft_s=2.0, tpot_s=0.1)
"""Service targets in seconds, by which every scenario judges requests."""


def pool(replicas: int, *, kv_tokens: int = CAPACITY.kv_cache_tokens, **changes: object) -> list[ReplicaSpec]:
    """Return identical replicas r0, r1, ...; `changes` are fields of their ReplicaSpec."""
    capacity = CAPACITY
    if kv_tokens != capacity.kv_cache_tokens:
        fields = {name: getattr(capacity, name) for name in capacity.__struct_fields__}
        capacity = Capacity(**(fields | {"kv_cache_tokens": kv_tokens}))
    make: Callable[..., ReplicaSpec] = replace
    spec = ReplicaSpec("", MODEL, StepConfig(capacity), TARGETS)
    return [make(spec, replica_id=f"r{number}", **changes) for number in range(replicas)]


def rng_of(scenario: str, seed: int) -> random.Random:
    """Return the random generator of a scenario's requests."""
    return generator(seed, f"scenario {scenario}")


def poisson(rng: random.Random, rate: float, start_s: float, end_s: float) -> list[float]:
    """Return Poisson arrival times in seconds, at `rate` per second."""
    times, at = [], start_s + rng.expovariate(rate)
    while at < end_s:
        times.append(at)
        at += rng.expovariate(rate)
    return times


def make_request(
    at: float,
    tenant: str,
    prompt: int,
    output: int,
    own: str | int,
    *,
    shared: str = "",
    shared_tokens: int = 0,
) -> SimRequest:
    """Return a request whose first `shared_tokens` are the tenant's text `shared` and whose remainder is the
    text `own`.
    """
    common = shared_tokens // BLOCK
    blocks = stream(key_of(tenant, "shared", shared), 0, common)
    blocks += stream(key_of(tenant, "own", own), common, prompt // BLOCK)
    return SimRequest(0, at, tenant, MODEL, prompt, output, blocks, BLOCK, session=f"{tenant}/{own}")


def conversation(
    times: Iterable[float], tenant: str, own: str | int, *, opening: int, turn: int, output: int
) -> list[SimRequest]:
    """Return a conversation: every prompt is the previous prompt, its answer and `turn` further tokens."""
    text, prompt, requests = key_of(tenant, "conversation", own), opening, []
    for at in times:
        whole, after = prompt // BLOCK, (prompt + output) // BLOCK
        requests.append(
            SimRequest(
                0,
                at,
                tenant,
                MODEL,
                prompt,
                output,
                stream(text, 0, whole),
                BLOCK,
                stream(text, whole, after),
                session=f"{tenant}/{own}",
            )
        )
        prompt += output + turn
    return requests


def merged(*streams: Iterable[SimRequest]) -> list[SimRequest]:
    """Return the requests of all streams in order of arrival, with keys."""
    together: Sequence[SimRequest] = sorted(
        (request for each in streams for request in each), key=lambda request: (request.at, request.tenant)
    )
    return [replace(request, key=key) for key, request in enumerate(together)]
