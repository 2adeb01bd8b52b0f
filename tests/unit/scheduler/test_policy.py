"""Filter, score and pick on hand-made fleets; each failure mode that routers have shipped is a test here."""

import random
from collections import Counter

import pytest

from scheduler.core.config import HEARTBEAT_STALE_S, PolicyConfig
from scheduler.core.fleet import Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Blocked, Choice, Reason
from scheduler.core.pool import FIRST_STEPS
from scheduler.wire import PlaceRequest
from tests.support.scheduling import MODEL, beat, capacity, replica, request
from workers.wire import Capacity, Heartbeat, ReplicaState, ReplicaStatus, Targets

FIRST = "host/r0"


def fleet_of(*statuses: ReplicaStatus, now: float = 0.0, config: PolicyConfig | None = None) -> Fleet:
    """A fleet that has heard of its replicas often enough to trust its own counters."""
    made = Fleet(config)
    for _ in range(3):
        made.heartbeat(beat(*statuses), now)
    return made


def opened(
    wanted: PlaceRequest, name: str = FIRST, hit: int = 0, now: float = 0.0, ttft_s: float = 0.0
) -> ActivePlacement:
    return ActivePlacement(
        "api",
        wanted.tenant_id,
        wanted.model,
        name,
        "boot-1",
        wanted.prompt_tokens,
        hit,
        wanted.output_tokens,
        produced=0,
        prefilled=False,
        placed_at=now,
        predicted_ttft_s=ttft_s,
        blocks=wanted.blocks,
        block_tokens=wanted.block_tokens,
    )


def load(
    fleet: Fleet, name: str, sequences: int, *, prompt: int = 0, output: int = 0, waiting: int = 0
) -> None:
    """Open placements on a replica; `waiting` of the prompt tokens of the last are still unprefilled."""
    for place in range(sequences):
        entry = opened(request(prompt_tokens=prompt, output_tokens=output), name)
        fleet.on_open(entry)
        fleet.on_prefill(entry, 0.0)
        if place == sequences - 1 and waiting:
            fleet.on_open(opened(request(prompt_tokens=waiting, output_tokens=0), name))


def chosen(fleet: Fleet, wanted: PlaceRequest | None = None, *, now: float = 0.0, seed: int = 0) -> Choice:
    verdict = fleet.place(wanted or request(), now, random.Random(seed))
    assert isinstance(verdict, Choice), verdict
    return verdict


def route(fleet: Fleet, wanted: PlaceRequest, rng: random.Random, now: float = 0.0) -> ActivePlacement | None:
    """Place and open, as the scheduler state does in one step."""
    verdict = fleet.place(wanted, now, rng)
    if isinstance(verdict, Blocked):
        return None
    entry = opened(wanted, verdict.replica.status.replica_id, verdict.hit_tokens, now, verdict.ttft_s)
    fleet.on_open(entry)
    return entry


@pytest.mark.parametrize(
    ("reason", "status", "running", "prompt"),
    [
        (None, replica(), 0, 0),
        (Reason.STARTING, replica(state=ReplicaState.LOADING), 0, 0),
        (Reason.STARTING, replica(state=ReplicaState.FAILED), 0, 0),
        (Reason.NOT_WARM, replica(state=ReplicaState.ASLEEP), 0, 0),
        (Reason.NOT_WARM, replica(state=ReplicaState.DRAINING), 0, 0),
        (Reason.BUSY, replica(), 4, 0),
        (Reason.BUSY, replica(waiting=5), 0, 0),
        (Reason.KV_FULL, replica(), 1, 89_900),
        (Reason.KV_FULL, replica(kv_usage=0.9), 1, 0),
        (Reason.KV_FULL, replica(kv_blocks=10, block_size=16), 1, 0),
    ],
)
def test_what_keeps_a_replica_from_a_request(
    reason: Reason | None, status: ReplicaStatus, running: int, prompt: int
) -> None:
    fleet = fleet_of(status)
    load(fleet, FIRST, running, prompt=prompt)
    verdict = fleet.place(request(), 0.0, random.Random(0))
    assert isinstance(verdict, Choice) if reason is None else verdict == Blocked(reason)
    assert fleet.has_room(MODEL, 0.0) or reason is not None


def test_a_silent_replica_is_left_out() -> None:
    fleet = fleet_of(replica())
    late = HEARTBEAT_STALE_S + 0.1
    assert fleet.place(request(), late, random.Random(0)) == Blocked(Reason.SILENT)
    assert not fleet.has_room(MODEL, late)


def test_an_idle_replica_takes_what_does_not_fit_the_plan() -> None:
    assert chosen(fleet_of(replica()), request(prompt_tokens=99_000)).hit_tokens == 0


def test_a_command_under_way_counts_before_the_heartbeat_says_so() -> None:
    fleet = fleet_of(replica())
    fleet.expect_state(FIRST, ReplicaState.DRAINING)
    assert fleet.place(request(), 0.0, random.Random(0)) == Blocked(Reason.NOT_WARM)


def test_the_most_hopeful_reason_is_given() -> None:
    fleet = fleet_of(replica(), replica("host/r1"))
    load(fleet, "host/r1", 4)
    rng = random.Random(0)
    assert fleet.place(request(exclude=[FIRST]), 0.0, rng) == Blocked(Reason.BUSY)
    assert fleet.place(request(exclude=[FIRST, "host/r1"]), 0.0, rng) == Blocked(Reason.EXCLUDED)
    assert Fleet().place(request(), 0.0, rng) == Blocked(Reason.UNKNOWN_MODEL)


def test_the_prediction_is_the_documented_formula() -> None:
    fleet = fleet_of(replica())
    load(fleet, FIRST, 1, waiting=900)
    got = chosen(fleet, request(prompt_tokens=100, output_tokens=50))
    share = 0.09 / 10  # of the last ten seconds
    itl_s = (0.01 + 0.001 * 3) / (1 - share)
    ttft_s = (900 + 100) / 10_000 + 1.5 * (0.01 + 0.001 * 3)
    assert got.ttft_s == pytest.approx(ttft_s)
    assert got.itl_s == pytest.approx(itl_s)
    others = 2 * PolicyConfig().eta * (100 / 10_000 + 50 * 0.001)
    assert got.cost_s == pytest.approx(ttft_s + 50 * itl_s + others)


def test_context_ranks_and_the_time_beside_the_steps_delay_the_first_token() -> None:
    ranked = Capacity(
        10_000.0, 0.01, 0.001, max_num_seqs=64, kv_cache_tokens=100_000,
        step_experts_s=0.004, expert_share=0.5, prefill_pair_s=1e-6, request_s=0.05, dp_ranks=2,
    )  # fmt: skip
    fleet = fleet_of(replica(capacity=ranked))
    alone = chosen(fleet, request(prompt_tokens=1000, output_tokens=50))
    work = 1000 / 10_000 + 1e-6 * 1000**2 / 2
    assert alone.ttft_s == pytest.approx(0.05 + 2 * work + FIRST_STEPS * alone.itl_s)
    assert alone.itl_s == pytest.approx(0.01 + 0.001 + 0.004 * 0.5)
    fleet.on_open(opened(request(prompt_tokens=1000, output_tokens=0)))
    behind = chosen(fleet, request(prompt_tokens=100, output_tokens=50))
    own = 2 * (100 / 10_000 + 1e-6 * 100**2 / 2)
    step_s = 0.01 + 0.002 + 0.004 * 0.75
    first_s = work + 0.05 + own + FIRST_STEPS * step_s
    assert behind.ttft_s == pytest.approx(first_s)
    itl_s = step_s / (1 - work / 10)
    delayed = PolicyConfig().eta * (own / 2 + 50 * (0.001 + 0.004 * 0.25))
    assert behind.cost_s == pytest.approx(first_s + 50 * itl_s + delayed)


def test_accepted_drafts_shorten_the_time_per_token() -> None:
    drafting = Capacity(10_000.0, 0.01, 0.001, max_num_seqs=4, kv_cache_tokens=100_000, accept_per_step=2.0)
    fleet = fleet_of(replica(capacity=drafting))
    assert chosen(fleet).itl_s == pytest.approx((0.01 + 0.001) / 2)


def test_prefill_progresses_as_time_passes() -> None:
    fleet = fleet_of(replica())
    load(fleet, FIRST, 1, waiting=9_000)
    steps_s = 1.5 * (0.01 + 0.001 * 3)
    assert chosen(fleet, now=0.5).ttft_s == pytest.approx(0.4 + 0.01 + steps_s)
    assert chosen(fleet, now=1.9).ttft_s == pytest.approx(0.25 * 0.9 + 0.01 + steps_s)


def test_the_less_loaded_replica_is_chosen() -> None:
    fleet = fleet_of(replica(), replica("host/r1"))
    load(fleet, FIRST, 1, waiting=9_000)
    load(fleet, "host/r1", 1, waiting=100)
    assert {chosen(fleet, seed=seed).replica.status.replica_id for seed in range(20)} == {"host/r1"}


def test_near_ties_are_shared_evenly() -> None:
    fleet, rng = fleet_of(*(replica(f"host/r{n}") for n in range(4))), random.Random(0)
    counts = Counter()
    for _ in range(2000):
        verdict = fleet.place(request(), 0.0, rng)
        assert isinstance(verdict, Choice)
        counts[verdict.replica.status.replica_id] += 1
    assert all(430 < count < 570 for count in counts.values())


def test_a_cached_prefix_draws_a_request_though_the_replica_is_busier() -> None:
    fleet = fleet_of(replica("host/warm", slots=100), replica("host/cold", slots=100))
    warm = request(blocks=[1, 2, 3, 4, 5], prompt_tokens=5_000, output_tokens=10)
    for _ in range(2):
        entry = opened(warm, "host/warm")
        fleet.on_open(entry)
        fleet.on_prefill(entry, 0.0)
    got = chosen(fleet, warm)
    assert (got.replica.status.replica_id, got.hit_tokens) == ("host/warm", 5_000)


@pytest.mark.parametrize(("sequences", "waiting"), [(60, 0), (2, 30_000)])
def test_a_shared_prefix_does_not_send_everybody_to_one_replica(sequences: int, waiting: int) -> None:
    fleet = fleet_of(replica("host/warm", slots=100, kv=10_000_000), replica("host/cold", slots=100))
    shared = request(blocks=[1, 2, 3], prompt_tokens=300)
    fleet.on_open(opened(shared, "host/warm"))
    load(fleet, "host/warm", sequences, waiting=waiting)
    assert chosen(fleet, shared).replica.status.replica_id == "host/cold"


def test_many_users_of_one_system_prompt_end_up_on_every_replica() -> None:
    """dynamo #737: a shared system prompt sent everything to one replica."""
    names = [f"host/r{n}" for n in range(4)]
    fleet, rng = fleet_of(*(replica(name, slots=64, kv=1_000_000) for name in names)), random.Random(0)
    counts: Counter[str] = Counter()
    for user in range(160):
        wanted = request(
            blocks=[1, 2, 3, 4, 1000 + user], prompt_tokens=1_000, output_tokens=200, block_tokens=200
        )
        entry = route(fleet, wanted, rng, now=user * 0.01)
        assert entry is not None
        fleet.on_prefill(entry, user * 0.01)
        counts[entry.replica_id] += 1
    assert set(counts) == set(names)
    assert max(counts.values()) < 2 * 160 / 4


def test_a_burst_of_equal_prompts_spreads_at_once() -> None:
    """llm-d-router #2515 and dynamo #589: bursts inside one metrics cycle piled up on one replica."""
    fleet, rng = fleet_of(*(replica(f"host/r{n}", slots=32) for n in range(8))), random.Random(0)
    counts = Counter(entry.replica_id for n in range(64) if (entry := route(fleet, request(f"r{n}"), rng)))
    assert len(counts) == 8
    assert max(counts.values()) <= 10


def test_a_burst_with_one_new_long_prefix_sticks_together_while_that_is_quicker() -> None:
    fleet, rng = (
        fleet_of(*(replica(f"host/r{n}", slots=64, kv=1_000_000) for n in range(4))),
        random.Random(0),
    )
    shared = list(range(1, 21))
    homes = []
    for user in range(6):
        wanted = request(
            blocks=[*shared, 100 + user], prompt_tokens=10_500, output_tokens=10, block_tokens=500
        )
        entry = route(fleet, wanted, rng)
        assert entry is not None
        homes.append(entry.replica_id)
    assert len(set(homes)) == 1


def test_long_prompts_with_one_token_answers_are_counted_in_tokens() -> None:
    """sglang #27547: load was counted in requests, and 32k prompts with one token out all hit one replica."""
    fleet, rng = fleet_of(*(replica(f"host/r{n}", slots=8, kv=1_000_000) for n in range(4))), random.Random(0)
    long = [route(fleet, request(prompt_tokens=32_000, output_tokens=1), rng) for _ in range(4)]
    assert len({entry.replica_id for entry in long if entry}) == 4
    busiest = long[0]
    assert busiest is not None
    for entry in long[1:]:
        assert entry is not None
        fleet.on_prefill(entry, 0.0)
    for n in range(6):
        entry = route(fleet, request(f"short{n}"), rng)
        assert entry is not None
        assert entry.replica_id != busiest.replica_id


def test_kv_saturation_counts_though_there_are_few_requests() -> None:
    """smg #1621: request counts missed long contexts that filled the KV cache."""
    fleet = fleet_of(replica("host/full", slots=64), replica("host/free", slots=64))
    load(fleet, "host/full", 1, prompt=85_000)
    load(fleet, "host/free", 12, prompt=10)
    wanted = request(prompt_tokens=8_000, output_tokens=100)
    assert chosen(fleet, wanted).replica.status.replica_id == "host/free"


def test_affinity_survives_imbalance() -> None:
    """sglang #32195: an imbalance dropped all affinity and the hit rate collapsed."""
    names = [f"host/r{n}" for n in range(4)]
    fleet = fleet_of(*(replica(name, slots=64, kv=1_000_000) for name in names))
    mine = request(blocks=list(range(1, 11)), prompt_tokens=8_000, output_tokens=50)
    entry = opened(mine, "host/r1")
    fleet.on_open(entry)
    fleet.on_prefill(entry, 0.0)
    load(fleet, "host/r3", 40)
    assert chosen(fleet, mine).replica.status.replica_id == "host/r1"


def test_a_miss_does_not_go_to_the_smallest_cache() -> None:
    """sglang #14532: a miss went to the replica with the smallest tree, which a restarted one keeps."""
    fleet, rng = fleet_of(replica(), replica("host/new")), random.Random(0)
    for n in range(50):
        entry = opened(request(blocks=[10 * n, 10 * n + 1], prompt_tokens=200))
        fleet.on_open(entry)
        fleet.on_prefill(entry, 0.0)
        fleet.on_close(entry, None, 0.0)
    counts = Counter()
    for n in range(400):
        verdict = fleet.place(request(blocks=[-1 - n]), 60.0 * 0, rng)
        assert isinstance(verdict, Choice)
        counts[verdict.replica.status.replica_id] += 1
    assert min(counts.values()) > 100


def test_a_cold_prompt_waits_in_our_queue_and_a_warm_one_may_follow_its_prefix() -> None:
    fleet = fleet_of(replica(slots=64, kv=1_000_000))
    warm = request(blocks=[1, 2, 3, 4], prompt_tokens=4_000)
    entry = opened(warm)
    fleet.on_open(entry)
    fleet.on_prefill(entry, 0.0)
    load(fleet, FIRST, 1, waiting=11_000)
    assert fleet.place(request(), 0.0, random.Random(0)) == Blocked(Reason.BUSY)
    assert chosen(fleet, warm).hit_tokens == 4_000
    assert fleet.has_room(MODEL, 0.0)


def test_a_prompt_needs_no_room_for_what_the_replica_holds_of_it() -> None:
    """Counted twice, a shared prefix drives its requests to other replicas, which evict what others need."""
    fleet = fleet_of(replica(slots=64, kv=10_000))
    shared = list(range(1, 9))
    fleet.on_open(entry := opened(request(blocks=shared, prompt_tokens=8_000, block_tokens=1_000)))
    fleet.on_prefill(entry, 0.0)
    follower = request(blocks=[*shared, 9], prompt_tokens=8_200, output_tokens=100, block_tokens=1_000)
    assert chosen(fleet, follower).hit_tokens == 8_000
    cold = request(blocks=[100], prompt_tokens=8_200, output_tokens=100)
    assert fleet.place(cold, 0.0, random.Random(0)) == Blocked(Reason.KV_FULL)


def test_a_batch_stays_small_enough_for_the_promised_time_per_token() -> None:
    promised = replica(slots=64, kv=1_000_000, targets=Targets(tpot_s=0.03))
    fleet = fleet_of(promised)
    load(fleet, FIRST, 15)
    assert chosen(fleet).itl_s <= 0.03
    load(fleet, FIRST, 4)
    assert fleet.place(request(), 0.0, random.Random(0)) == Blocked(Reason.BUSY)


def test_a_chain_stays_where_it_is_held_until_the_batch_is_half_as_slow_again() -> None:
    """Elsewhere its prompt would be prefilled again, and evict what others need."""
    fleet = fleet_of(replica(slots=64, kv=1_000_000, targets=Targets(tpot_s=0.03)))
    chain = request(blocks=[1, 2, 3, 4], prompt_tokens=4_000)
    fleet.on_open(entry := opened(chain))
    fleet.on_prefill(entry, 0.0)
    load(fleet, FIRST, 24)
    assert fleet.place(request(), 0.0, random.Random(0)) == Blocked(Reason.BUSY)
    assert chosen(fleet, chain).itl_s > 1.2 * 0.95 * 0.03
    load(fleet, FIRST, 14)
    assert fleet.place(chain, 0.0, random.Random(0)) == Blocked(Reason.BUSY)
    assert PolicyConfig().warm_slack * PolicyConfig().slack_min < 1.0


def test_an_unreachable_promise_does_not_idle_a_replica() -> None:
    fleet = fleet_of(replica(slots=64, kv=1_000_000, targets=Targets(tpot_s=0.001)))
    load(fleet, FIRST, 5)
    assert chosen(fleet).itl_s > 0.001


def test_a_faster_replica_takes_more_of_a_mixed_pool() -> None:
    fast: Capacity = capacity(slots=64, prefill=40_000.0)
    fleet, rng = (
        fleet_of(replica("host/fast", capacity=fast), replica("host/slow", slots=64)),
        random.Random(0),
    )
    homes = Counter(
        entry.replica_id
        for _ in range(10)
        if (entry := route(fleet, request(prompt_tokens=4_000, output_tokens=1), rng))
    )
    assert homes["host/fast"] > 2 * homes["host/slow"] > 0


def test_after_a_restart_the_engines_own_count_is_believed() -> None:
    fleet = Fleet()
    busy: Heartbeat = beat(replica(running=3, waiting=1))
    fleet.heartbeat(busy, 0.0)
    assert fleet.place(request(), 0.0, random.Random(0)) == Blocked(Reason.BUSY)
    for _ in range(2):
        fleet.heartbeat(busy, 0.0)
    assert isinstance(fleet.place(request(), 0.0, random.Random(0)), Choice)
