"""A pool whose replicas state wrong speeds serves as much in time as one that states the right ones."""

import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from sim.pool.contract import RunResult, SimRequest
from sim.pool.penstock_routing import penstock
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.summary import service_levels, summarise
from tests.support.simulated import CAPACITY, MODEL, poisson, pool

SECONDS, WARMUP_S = 90.0, 30.0
KNOWN = (1.0, 1.0, 1.0)
WRONG = [
    (1 / 3, 3.0, 3.0), (3.0, 1 / 3, 1 / 3), (1 / 3, 1.0, 1.0), (3.0, 1.0, 1.0), (1.0, 3.0, 1.0), (1.0, 1 / 3, 1.0),
    (1.0, 1.0, 3.0), (1.0, 1.0, 1 / 3), (1.0, 3.0, 1 / 3), (1.0, 1 / 3, 3.0),
]  # fmt: skip
"""Stated over true R, alpha and beta."""


def long_prompts(rate: float, seconds: float, seed: int = 1) -> Iterator[SimRequest]:
    """Poisson arrivals of about 9,000 prompt tokens that no cache holds, and 500 of answer."""
    rng, now, key = random.Random(seed), 0.0, 0
    while (now := now + rng.expovariate(rate)) < seconds:
        prompt, answer = int(9000 * rng.uniform(0.8, 1.2)), int(500 * rng.uniform(0.8, 1.2))
        yield SimRequest(key, now, f"t{key % 5}", MODEL, prompt, answer)
        key += 1


def served(requests: list[SimRequest], replicas: int, factors: tuple[float, float, float]) -> RunResult:
    """Run `requests` on a pool that states R, alpha and beta wrong by `factors`."""
    rate, base, per_seq = factors
    stated = msgspec.structs.replace(
        CAPACITY,
        prefill_tokens_per_s=CAPACITY.prefill_tokens_per_s * rate,
        step_base_s=CAPACITY.step_base_s * base,
        step_per_seq_s=CAPACITY.step_per_seq_s * per_seq,
    )
    replicas_ = [replace(spec, stated=stated) for spec in pool(replicas)]
    return simulate(penstock(), requests, replicas_, RunConfig(seed=1, warmup_s=WARMUP_S))


def goodput(requests: list[SimRequest], factors: tuple[float, float, float]) -> float:
    return summarise(served(requests, 4, factors), service_levels(pool(1))).goodput_rps


def test_goodput_is_within_five_percent_of_that_with_known_figures() -> None:
    requests = list(long_prompts(1.9, SECONDS))
    known = goodput(requests, KNOWN)
    assert known > 0.8 * len(requests) / SECONDS
    for factors in WRONG:
        assert goodput(requests, factors) >= 0.95 * known, f"stated wrong by {factors}"


def test_with_shared_prefixes_too() -> None:
    requests = poisson(20.0, SECONDS / 2, 1)
    known = goodput(requests, KNOWN)
    for factors in WRONG[:2]:
        assert goodput(requests, factors) >= 0.95 * known, f"stated wrong by {factors}"


def test_an_underrated_engine_is_not_throttled_for_ever() -> None:
    """Batches that are held back show that the engine could do more, so they grow, and the queue ends."""
    requests = list(long_prompts(0.5, 2 * SECONDS))
    waits = {}
    for factors in (KNOWN, (1 / 3, 3.0, 3.0)):
        result = served(requests, 1, factors)
        late = [record for record in result.records if record.request.at > 1.5 * SECONDS]
        waits[factors] = sum(record.dispatched_at - record.request.at for record in late) / len(late)
    known_s, underrated_s = waits.values()
    assert known_s < 5.0
    assert underrated_s < known_s + 1.0
