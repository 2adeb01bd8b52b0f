"""A small world for tests of the simulator: Poisson arrivals over shared prefixes, and round robin."""

import random
from collections.abc import Callable, Sequence

from sim.engine.step_model.engine import StepConfig
from sim.pool.contract import Decision, Dispatch, ReplicaView, SimRequest
from sim.pool.pool import ReplicaSpec
from sim.pool.settings import RoutingSetup
from workers.wire import Capacity, KvDelta, ReplicaState, Targets

MODEL = "m"
CAPACITY = Capacity(
    prefill_tokens_per_s=7000,
    step_base_s=0.0166,
    step_per_seq_s=0.000188,
    step_per_kv_token_s=2.4e-8,
    max_num_seqs=256,
    kv_cache_tokens=440_000,
    max_model_len=32_768,
    gpus=2,
)


def pool(replicas: int, **changes: object) -> list[ReplicaSpec]:
    """`replicas` equal replicas named r0, r1, ..."""
    spec = ReplicaSpec("", MODEL, StepConfig(CAPACITY), Targets(2.0, 0.1))
    return [_replace(spec, replica_id=f"r{number}", **changes) for number in range(replicas)]


def poisson(
    rate: float,
    seconds: float,
    seed: int,
    *,
    prompt: int = 1500,
    output: int = 150,
    tenants: int = 10,
    families: int = 20,
) -> list[SimRequest]:
    """Poisson arrivals; each request shares the first half of its prompt with its family."""
    rng = random.Random(seed)
    now, requests = 0.0, []
    while (now := now + rng.expovariate(rate)) < seconds:
        family, key = rng.randrange(families), len(requests)
        tokens = max(64, int(rng.expovariate(1 / prompt))) % 16_000
        shared = [hash((family, number)) & 0xFFFFFFFFFFFF for number in range(prompt // 128)]
        own = [hash((family, key, number)) & 0xFFFFFFFFFFFF for number in range(tokens // 64)]
        blocks = tuple((shared + own)[: tokens // 64])
        answer = max(1, int(rng.expovariate(1 / output))) % 2000 + 1
        requests.append(SimRequest(key, now, f"t{family % tenants}", MODEL, max(64, tokens), answer, blocks))
    return requests


class RoundRobin:
    """Every API process goes round the replicas that it believes ready."""

    name = "round_robin"
    central = False
    wants_kv_events = False

    def __init__(self, setup: RoutingSetup) -> None:
        self.views: Sequence[ReplicaView] = ()
        self.heard: list[tuple[float, Sequence[ReplicaView]]] = []
        self._next = [setup.rng.randrange(1000) for _ in range(setup.routers)]
        self._due: list[tuple[int, int]] = []

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        self._due.append((request.key, router))

    def decide(self, now: float) -> list[Decision]:
        ready = [view.replica_id for view in self.views if view.state is ReplicaState.READY]
        if not ready:
            return []
        decisions: list[Decision] = []
        for key, router in self._due:
            self._next[router] += 1
            decisions.append(Dispatch(key, ready[self._next[router] % len(ready)]))
        self._due.clear()
        return decisions

    def first_token(self, key: int, replica_id: str, now: float) -> None: ...

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None: ...

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None: ...

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        self.views = views
        self.heard.append((now, views))

    def kv_events(self, delta: KvDelta, now: float) -> None: ...

    def next_wake(self, now: float) -> float | None:
        return None


def _replace(spec: ReplicaSpec, **changes: object) -> ReplicaSpec:
    from dataclasses import replace

    make: Callable[..., ReplicaSpec] = replace
    return make(spec, **changes)
