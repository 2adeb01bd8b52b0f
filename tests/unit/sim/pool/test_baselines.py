"""Each published policy's decision on states made by hand, and the failure modes that its project has seen."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sim.pool.baselines.base import Baseline
from sim.pool.baselines.cache_aware import CacheAware, SmallestTree, VllmRouter
from sim.pool.baselines.classic import LeastRequest, PowerOfTwo, Random, RoundRobin, SessionHash
from sim.pool.baselines.dynamo import Dynamo, LMetric, QueuedDynamo
from sim.pool.baselines.llmd import Blend, FlowControl, Sticky, queue_scores
from sim.pool.baselines.llmd_latency import OnlineModel, PredictedLatency, affine, latency_scores
from sim.pool.baselines.loadaware import LoadAware
from sim.pool.baselines.prefix_index import ApproximateIndex, BlockIndex
from sim.pool.contract import Dispatch, Refuse, ReplicaView, SimRequest
from workers.wire import Capacity, KvDelta, ReplicaState, Targets

BLOCK = 64
ALL = (
    Random, RoundRobin, LeastRequest, PowerOfTwo, SessionHash, CacheAware, SmallestTree, VllmRouter, LoadAware, Dynamo,
    QueuedDynamo, LMetric, Blend, Sticky, FlowControl, PredictedLatency,
)  # fmt: skip


def view(name: str, **changes: object) -> ReplicaView:
    facts: dict[str, object] = {
        "replica_id": name,
        "model": "m",
        "boot_id": "1",
        "state": ReplicaState.READY,
        "capacity": Capacity(10_000.0, 0.02, 0.0002),
        "targets": Targets(),
        "running": 0,
        "waiting": 0,
        "kv_usage": 0.0,
        "scraped_at": 0.0,
    }
    return ReplicaView(**{**facts, **changes})  # type: ignore[arg-type]


def request(key: int, blocks: Sequence[int] = (), prompt: int | None = None, session: str = "") -> SimRequest:
    tokens = len(blocks) * BLOCK + 10 if prompt is None else prompt
    return SimRequest(key, 0.0, "t", "m", tokens, 10, tuple(blocks), BLOCK, session=session)


def policy(kind: type[Baseline], *views: ReplicaView, seed: int = 1) -> Baseline:
    made = kind(random.Random(seed))
    made.metrics(views or [view("a"), view("b"), view("c")], 0.0)
    return made


def route(made: Baseline, asked: SimRequest, now: float = 0.0, router: int = 0) -> str:
    made.arrive(asked, router, now)
    (decision,) = made.decide(now)
    assert isinstance(decision, Dispatch)
    assert decision.key == asked.key
    return decision.replica_id


def finish(made: Baseline, asked: SimRequest, where: str, *, failed: bool = False) -> None:
    made.finished(
        asked.key, where, prompt_tokens=asked.prompt_tokens, cached_tokens=0, output_tokens=10, failed=failed, now=1.0
    )  # fmt: skip


def stored(made: Baseline, where: str, blocks: Sequence[int]) -> None:
    made.kv_events(KvDelta(where, "1", 1, stored=list(blocks)), 0.0)


# What all have in common


@pytest.mark.parametrize("kind", ALL)
def test_dispatches_at_once_to_ready_replicas_of_the_model_only(kind: type[Baseline]) -> None:
    made = policy(
        kind, view("asleep", state=ReplicaState.ASLEEP), view("b"), view("other", model="x"), view("c")
    )
    chosen = {route(made, request(key, range(key, key + 4), session=f"s{key}")) for key in range(60)}
    assert chosen <= {"b", "c"}


@pytest.mark.parametrize("kind", ALL)
def test_waits_while_nothing_is_ready_and_goes_on_when_something_is(kind: type[Baseline]) -> None:
    made = kind(random.Random(1))
    made.arrive(request(1), 0, 0.0)
    assert made.decide(0.0) == []
    made.metrics([view("a")], 0.1)
    assert [decision.key for decision in made.decide(0.1)] == [1]


@pytest.mark.parametrize("kind", ALL)
def test_counters_return_to_zero_whatever_happens(kind: type[Baseline]) -> None:
    made = policy(kind)
    sent = [
        (each := request(key, range(key % 3, key % 3 + 3)), route(made, each, router=key % 2))
        for key in range(40)
    ]
    for asked, where in sent[:20]:
        made.first_token(asked.key, where, 0.5)
    for number, (asked, where) in enumerate(sent[:30]):
        finish(made, asked, where, failed=number % 7 == 0)
    made.router_lost(0, 2.0)
    made.router_lost(1, 2.0)
    endpoints = [each for router in made.routers.values() for each in router.endpoints.values()]
    assert {(each.requests, each.prefill_tokens) for each in endpoints} <= {(0, 0)}
    if isinstance(made, Dynamo):
        assert not any(made._active.values())


@pytest.mark.parametrize("kind", ALL)
def test_a_replica_that_failed_a_request_is_avoided_for_it(kind: type[Baseline]) -> None:
    made = policy(kind, view("a"), view("b"))
    asked = request(1, range(5), session="s")
    first = route(made, asked)
    finish(made, asked, first, failed=True)
    assert route(made, asked, 1.0) != first


@pytest.mark.parametrize("kind", ALL)
def test_a_replica_that_left_and_came_back_starts_from_nothing(kind: type[Baseline]) -> None:
    made = policy(kind, view("a"))
    asked = request(1, range(5))
    route(made, asked)
    made.metrics([], 1.0)
    made.metrics([view("a", boot_id="2"), view("b")], 2.0)
    finish(made, asked, "a", failed=True)
    assert {each.requests for router in made.routers.values() for each in router.endpoints.values()} == {0}


@pytest.mark.parametrize("kind", ALL)
def test_same_seed_same_decisions(kind: type[Baseline]) -> None:
    runs = [
        [
            route(made, request(key, range(key % 5, 9), session=str(key % 7)), router=key % 3)
            for key in range(60)
        ]
        for made in (policy(kind, seed=4), policy(kind, seed=4))
    ]
    assert runs[0] == runs[1]


# Policies that know nothing of prompts


def test_round_robin_visits_all_in_turn_per_router() -> None:
    made = policy(RoundRobin)
    mine = [route(made, request(key), router=0) for key in range(6)]
    assert Counter(mine) == {"a": 2, "b": 2, "c": 2}
    assert mine[:3] == mine[3:]


def test_least_request_counts_only_its_own_router() -> None:
    made = policy(LeastRequest, view("a"), view("b"))
    first = route(made, request(1), router=0)
    assert route(made, request(2), router=0) != first
    chosen = {route(policy(LeastRequest, seed=seed), request(1), router=1) for seed in range(30)}
    assert chosen == {"a", "b", "c"}, "ties are broken at random"


def test_routers_that_do_not_share_counts_pile_on_the_same_replica() -> None:
    """dynamo #589: N routers all pick the best replica inside one metrics cycle; here by the same knowledge."""
    made = policy(LeastRequest, view("a"), view("b"))
    for key, router in ((1, 0), (2, 1), (3, 2)):
        made.router(router).endpoints["a"].requests = 5
        assert route(made, request(key), router=router) == "b"


def test_power_of_two_takes_the_less_loaded_of_two() -> None:
    made = policy(PowerOfTwo, view("a"), view("b"))
    made.router(0).endpoints["a"].requests = 1
    assert route(made, request(1)) == "b"


def test_session_hash_keeps_a_session_and_moves_few_when_a_replica_goes() -> None:
    made = policy(SessionHash)
    before = {name: route(made, request(key, session=name)) for key, name in enumerate(map(str, range(300)))}
    again = {
        name: route(made, request(1000 + key, session=name)) for key, name in enumerate(map(str, range(300)))
    }
    assert before == again
    assert min(Counter(before.values()).values()) > 60
    made.metrics([view("a"), view("b")], 1.0)
    after = {
        name: route(made, request(2000 + key, session=name)) for key, name in enumerate(map(str, range(300)))
    }
    assert all(after[name] == where for name, where in before.items() if where != "c")


# SGLang


def test_cache_aware_follows_the_longest_match_above_the_threshold() -> None:
    made = policy(CacheAware)
    first = route(made, request(1, range(10)))
    assert route(made, request(2, [*range(10), 50, 51])) == first
    assert route(made, request(3, range(2), prompt=BLOCK * 10)) != first, "0.2 matched is a miss"


def test_cache_aware_sends_misses_to_the_shortest_queue() -> None:
    made = policy(CacheAware, view("a"), view("b"))
    first = route(made, asked := request(1, range(10)))
    assert route(made, request(2, prompt=60)) != first
    finish(made, asked, first)
    assert route(made, request(3, range(100, 200))) == first, (
        "its tree is the larger one, its queue the shorter"
    )


def test_older_cache_aware_sends_misses_to_the_smallest_tree() -> None:
    made = policy(SmallestTree, view("a"), view("b"))
    first = route(made, request(1, range(10)))
    others = [route(made, request(key, prompt=60)) for key in range(2, 8)]
    assert first not in others


def test_cache_aware_drops_affinity_when_unbalanced() -> None:
    """sglang #32195: beyond 64 requests and 1.5 times, the prefix no longer counts."""
    made = policy(CacheAware, view("a"), view("b"))
    warm = route(made, request(0, range(10)))
    for key in range(1, 65):
        assert route(made, request(key, range(10))) == warm
    assert route(made, request(65, range(10))) != warm


def test_older_cache_aware_death_spiral_of_the_smallest_tree() -> None:
    """sglang #14532: a replica that has just come has the smallest tree and takes every miss."""
    made = policy(SmallestTree, view("a"), view("b"))
    for key in range(200):
        finish(made, asked := request(key, [key * 100 + n for n in range(20)]), route(made, asked))
    made.metrics([view("a"), view("b"), view("new")], 1.0)
    assert {route(made, request(key, [key * 100 + n for n in range(5)])) for key in range(1000, 1060)} == {
        "new"
    }


def test_cache_aware_believes_in_what_was_evicted_long_ago() -> None:
    made = policy(CacheAware, view("a"), view("b"))
    first = route(made, request(0, range(10)))
    for key in range(1, 500):
        finish(made, asked := request(key, [key * 100 + n for n in range(50)]), route(made, asked, 1.0))
    assert route(made, request(1000, range(10)), 2.0) == first


def test_vllm_router_keeps_a_session_where_it_was_unless_the_pool_is_unbalanced() -> None:
    made = policy(VllmRouter, view("a"), view("b"))
    home = route(made, request(0, range(10), session="s"))
    for key in range(1, 65):
        assert route(made, request(key, range(key * 100, key * 100 + 9), session="s")) == home
    assert route(made, request(65, range(10), session="s")) != home
    assert route(made, request(66, range(10), session="s")) != home, "the session moved"


# production-stack


def test_loadaware_prefers_the_cache_until_load_outweighs_it() -> None:
    made = policy(LoadAware, view("a"), view("b"))
    stored(made, "b", range(10))
    assert [route(made, request(key, range(10), prompt=640)) for key in range(3)] == ["b", "a", "b"]


def test_loadaware_breaks_ties_by_name_and_falls_back_to_sessions() -> None:
    made = policy(LoadAware)
    for each in "abc":
        stored(made, each, range(4))
    assert route(made, request(1, range(4))) == "a"
    where = {route(made, request(key, [99], session="one")) for key in range(2, 12)}
    assert len(where) == 1


# Dynamo and LMetric


def test_dynamo_weighs_uncached_prefill_against_active_blocks() -> None:
    made = policy(Dynamo, view("a"), view("b"))
    stored(made, "a", range(10))
    assert route(made, request(1, range(10), prompt=640)) == "a"
    made.first_token(1, "a", 0.1)
    # a: nothing to prefill, 10 active blocks shared; b: 10 to prefill and 10 new
    assert route(made, request(2, range(10), prompt=640)) == "a"
    # another prompt of 4 blocks: a has 10 active blocks more
    assert route(made, request(3, range(50, 54), prompt=256)) == "b"


def test_dynamo_ties_are_random_and_a_shared_prompt_goes_to_one_replica() -> None:
    """dynamo #7836 (ties) is mended upstream; #737 (a shared prompt sends all to one) is in the cost itself."""
    assert {route(policy(Dynamo, seed=seed), request(1, range(3))) for seed in range(30)} == {"a", "b", "c"}
    made = policy(Dynamo)
    stored(made, "b", range(100))
    where = []
    for key in range(50):
        where.append(route(made, request(key, [*range(100), 1000 + key])))
        made.first_token(key, where[-1], 0.0)
    assert Counter(where)["b"] == 50


def test_lmetric_multiplies_prefill_by_batch() -> None:
    made = policy(LMetric, view("a"), view("b"))
    stored(made, "a", range(9))
    first = request(1, range(10), prompt=640)
    assert route(made, first) == "a"  # 64 * 1 against 640 * 1
    made.first_token(1, "a", 0.1)
    for key in range(2, 11):
        assert route(made, request(key, range(10), prompt=640)) == "a"
        made.first_token(key, "a", 0.1)
    assert made.router(0).endpoints["a"].requests == 10
    assert route(made, request(12, range(10), prompt=640)) == "b"  # 64 * 11 against 640 * 1


# llm-d


def test_queue_scores_run_from_shortest_to_longest() -> None:
    assert queue_scores([0, 5, 10]) == [1.0, 0.5, 0.0]
    assert queue_scores([3, 3]) == [1.0, 1.0]


def test_blend_weighs_prefix_queue_and_kv() -> None:
    made = policy(Blend, view("a", waiting=4), view("b"))
    stored(made, "a", range(10))
    assert route(made, request(1, range(10))) == "a"  # 3 + 0 against 0 + 2
    made.metrics([view("a", waiting=4, kv_usage=0.6), view("b")], 1.0)
    made2 = policy(Blend, view("a", waiting=4, kv_usage=0.6), view("b"))
    stored(made2, "a", range(10))
    assert route(made2, request(1, range(10))) == "b"  # 3 + 0 + 0.8 against 0 + 2 + 2


def test_blend_spreads_cold_requests_over_the_least_recent() -> None:
    made = policy(Blend)
    assert {route(made, request(key, [key]), 3.0 * key) for key in range(3)} == {"a", "b", "c"}


def test_blend_piles_a_burst_on_one_replica_inside_a_scrape() -> None:
    """llm-d-router #2515: queue and KV are as old as the scrape, and the prefix term never tires."""
    made = policy(Blend)
    where = Counter(route(made, request(key, [*range(20), 100 + key])) for key in range(100))
    assert max(where.values()) == 100


def test_sticky_stays_until_eighteen_seconds_and_then_goes_by_tokens() -> None:
    made = policy(Sticky, view("a"), view("b"))
    stored(made, "a", range(10))
    warm = request(1, range(10), prompt=640)
    made.router(0).endpoints["a"].prefill_tokens = 170_000  # 17 s
    assert route(made, warm) == "a"
    made.router(0).endpoints["a"].prefill_tokens = 181_000
    assert route(made, request(2, range(10), prompt=640)) == "b"


def test_sticky_needs_four_fifths_and_then_takes_the_fewest_uncached_in_flight() -> None:
    made = policy(Sticky, view("a"), view("b"))
    stored(made, "a", range(7))
    made.router(0).endpoints["a"].prefill_tokens = 500
    assert route(made, request(1, range(10), prompt=640)) == "b"  # 0.7: 500 + 192 against 640
    made = policy(Sticky, view("a"), view("b"))
    stored(made, "a", range(7))
    assert route(made, request(1, range(10), prompt=640)) == "a"


def test_sticky_keeps_a_burst_together_before_events_come() -> None:
    made = policy(Sticky)
    where = {route(made, request(key, [*range(20), 100 + key])) for key in range(30)}
    assert len(where) == 1
    assert made.matches(request(99, range(20)), 1.9)  # type: ignore[attr-defined]
    assert not made.matches(request(99, range(20)), 2.1)  # type: ignore[attr-defined]


def test_events_of_eviction_and_a_lost_replica_are_forgotten() -> None:
    made = policy(Dynamo)
    assert isinstance(made, Dynamo)
    stored(made, "a", range(10))
    made.kv_events(KvDelta("a", "1", 2, removed=[5, 6, 7, 8, 9]), 0.0)
    assert made.matches(request(1, range(10)), 0.0) == {"a": 5}
    made.metrics([view("a", boot_id="2"), view("b")], 1.0)
    assert made.matches(request(2, range(10)), 1.0) == {}


# The indexes


def test_owners_match_is_the_length_of_each_replicas_own_prefix() -> None:
    owners = BlockIndex()
    owners.add("a", [1, 2, 3, 4])
    owners.add("b", [1, 2])
    owners.add("c", [2, 3])
    owners.add("d", [1, 2, 3])
    assert owners.match([1, 2, 3, 4, 5]) == {"a": 4, "b": 2, "d": 3}
    owners.clear("a")
    assert owners.match([1, 2, 3, 4, 5]) == {"b": 2, "d": 3}
    owners.remove("d", [2])
    assert owners.match([1, 2, 3]) == {"b": 2, "d": 1}
    assert owners.match([]) == {}


def test_routed_evicts_the_oldest_leaves_first() -> None:
    routed = ApproximateIndex()
    routed.insert("a", [1, 2, 3], [64, 64, 10])
    routed.insert("a", [1, 9], [64, 64])
    assert routed.tokens("a") == 202
    routed.evict(140)
    assert routed.owners.match([1, 2, 3]) == {"a": 1}
    assert routed.tokens("a") == 128


# Queues of the published policies


def pending(made: Baseline, asked: SimRequest, now: float = 0.0) -> list[int]:
    made.arrive(asked, 0, now)
    return [decision.key for decision in made.decide(now) if isinstance(decision, Dispatch)]


def test_dynamo_holds_requests_while_every_worker_has_too_much_prefill() -> None:
    made = policy(QueuedDynamo, view("a"), view("b"))
    assert pending(made, request(0, prompt=40_000)) == [0]
    assert pending(made, request(1, prompt=40_000)) == [1], "one worker is free"
    assert pending(made, request(2, prompt=10)) == []
    assert pending(made, request(3, prompt=10)) == [], "first come first served"
    made.first_token(0, "a", 1.0)
    made.first_token(0, "b", 1.0)
    assert [decision.key for decision in made.decide(1.0)] == [2, 3]


def test_flow_control_dispatches_nothing_while_the_pool_is_saturated() -> None:
    made = policy(FlowControl, view("a", waiting=8), view("b", kv_usage=0.4))
    assert pending(made, request(0)) == [], "1.6 and 0.5 are 1.05 on average"
    made.metrics([view("a", waiting=7), view("b", kv_usage=0.4)], 0.1)
    assert [decision.key for decision in made.decide(0.1)] == [0]


def test_flow_control_serves_higher_bands_first_and_refuses_after_a_minute() -> None:
    made = policy(FlowControl, view("a", waiting=5))
    low, high = request(0), replace(request(1), tier="priority")
    assert pending(made, low) == pending(made, high, 30.0) == []
    assert made.decide(60.1) == [Refuse(0, "queue_ttl")]
    made.arrive(replace(request(2), tier="batch"), 0, 60.2)
    made.arrive(request(3), 0, 60.3)
    made.metrics([view("a")], 60.4)
    assert [decision.key for decision in made.decide(60.4)] == [1, 3, 2]


# Predicted latency


def test_an_online_model_learns_what_latency_consists_of() -> None:
    model, rng = OnlineModel(), random.Random(3)
    for _ in range(300):
        tokens, running = rng.uniform(0, 8000), rng.uniform(0, 50)
        model.learn((1.0, tokens, running), 0.05 + 1e-4 * tokens + 2e-3 * running)
    (predicted,) = model.predict([(1.0, 2000.0, 10.0)])
    assert predicted == pytest.approx(0.27, rel=0.05)


def test_the_lowest_predicted_latency_has_the_highest_score() -> None:
    ttft, tpot = np.array([0.1, 1.1, 0.6]), np.array([0.02, 0.02, 0.04])
    assert latency_scores(ttft, tpot) == [1.01, 0.2, 0.4]
    assert latency_scores(ttft, np.full(3, 0.02)) == [1.01, 0.01, 0.51], "equal times per token do not count"


def test_affinity_ends_where_the_first_token_would_be_too_late() -> None:
    held = [0.9, 0.1, 0.85]
    assert affine([0, 1, 2], held, np.array([4.0, 0.1, 5.5]), 0.8) == [0, 2]
    assert affine([0, 1, 2], held, np.array([5.2, 0.1, 5.5]), 0.8) == [0, 1, 2]
    assert affine([1], held, np.array([5.2, 0.1, 5.5]), 0.8) == [1]


def test_predicted_latency_avoids_the_replica_that_it_has_seen_to_be_slow() -> None:
    made = policy(PredictedLatency, view("a"), view("b"))
    for key in range(160):
        where = route(made, request(key, prompt=1000), now=float(key))
        late = 0.1 if where == "a" else 0.1 + 0.9 * (made.routers[0].endpoints["b"].view.waiting > 0)
        made.first_token(key, where, key + late)
        made.finished(
            key, where, prompt_tokens=1000, cached_tokens=0, output_tokens=10, failed=False, now=key + 0.99
        )
        made.metrics([view("a"), view("b", waiting=key % 2)], float(key))
    made.metrics([view("a"), view("b", waiting=1)], 200.0)
    chosen = Counter(route(made, request(1000 + n, prompt=1000), now=200.0) for n in range(2))
    assert chosen["a"] >= 1
    assert made.routers[0].endpoints["a"].requests <= 2
