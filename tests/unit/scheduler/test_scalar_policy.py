"""Deciding among few replicas in plain numbers is the same decision as with vectors over all of them."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.fleet import Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import SCALAR_MAX_REPLICAS, Choice, place, place_vectorised
from scheduler.wire import PlaceRequest
from tests.support.scheduling import MODEL, beat, replica
from workers.wire import ReplicaState

CHAIN = [7 + 11 * place for place in range(80)]


def wanted(rng: random.Random, number: int) -> PlaceRequest:
    """A prompt that shares none, some or all of its first 40 blocks with others."""
    shared, own = rng.choice((0, 5, 36, 40)), rng.randrange(1, 9)
    blocks = CHAIN[:shared] + [1000 * (number + 1) + block for block in range(own)]
    exclude = [f"host/r{rng.randrange(12)}" for _ in range(rng.choice((0, 0, 1, 3)))]
    tokens, answer = 64 * len(blocks), rng.randrange(1, 400)
    return PlaceRequest(
        f"r{number}", "tenant", MODEL, tokens, answer, blocks=blocks, block_tokens=64, exclude=exclude
    )


@settings(deadline=None, max_examples=80)
@given(st.randoms(use_true_random=False), st.integers(1, SCALAR_MAX_REPLICAS), st.integers(0, 50))
def test_few_and_many_decide_alike(rng: random.Random, replicas: int, before: int) -> None:
    fleet = Fleet()
    states = (ReplicaState.READY, ReplicaState.READY, ReplicaState.READY, ReplicaState.LOADING)
    statuses = [
        replica(
            f"host/r{row}",
            slots=rng.randrange(1, 9),
            kv=rng.randrange(5_000, 60_000),
            state=rng.choice(states),
        )
        for row in range(replicas)
    ]
    for _ in range(3):
        fleet.heartbeat(beat(*statuses), 0.0)
    pool = fleet._pools[MODEL]
    for number in range(before + 1):
        now, request, seed = 0.05 * number, wanted(rng, number), rng.getrandbits(32)
        alike = place_vectorised(request, pool, now, random.Random(seed))
        verdict = place(request, pool, now, random.Random(seed))
        assert verdict == alike
        if isinstance(verdict, Choice):
            status = verdict.replica.status
            entry = ActivePlacement(
                "api", "tenant", MODEL, status.replica_id, status.boot_id, request.prompt_tokens,
                verdict.hit_tokens, request.output_tokens, produced=0, prefilled=False, placed_at=now,
                blocks=request.blocks, block_tokens=64,
            )  # fmt: skip
            fleet.on_open(entry)
            if rng.random() < 0.6:
                fleet.on_prefill(entry, now)
                fleet.on_close(entry, None, now)
