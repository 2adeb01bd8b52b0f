"""The fleet's books: counters are sums of what is open, beliefs follow what answers and engines say."""

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler.core.config import PolicyConfig
from scheduler.core.fleet import MIN_REPLICA_BLOCKS, Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Choice
from scheduler.wire import PlaceRequest, Released
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import KvDelta, ReplicaState, ReplicaStatus

NAMES = ("host/r0", "host/r1", "host/r2")
CHAIN = list(range(1, 11))
"""A prompt of ten blocks of 100 tokens."""
PROMPT = request(blocks=CHAIN, prompt_tokens=1000, output_tokens=20, block_tokens=100)


def fleet_of(*statuses: ReplicaStatus, now: float = 0.0, config: PolicyConfig | None = None) -> Fleet:
    made = Fleet(config)
    for _ in range(3):
        made.heartbeat(beat(*statuses), now)
    return made


def opened(
    wanted: PlaceRequest = PROMPT, name: str = NAMES[0], hit: int = 0, now: float = 0.0, **fields
) -> ActivePlacement:
    entry = ActivePlacement(
        "api", wanted.tenant_id, wanted.model, name, "boot-1", wanted.prompt_tokens, hit, wanted.output_tokens,
        produced=0, prefilled=False, placed_at=now, blocks=wanted.blocks, block_tokens=wanted.block_tokens,
    )  # fmt: skip
    return replace(entry, **fields)


def run(
    fleet: Fleet, entry: ActivePlacement, *, found: int | None = None, now: float = 0.0, answer: int = 20
) -> None:
    """A whole life of a placement; `found` = cached tokens that its answer reports."""
    fleet.on_open(entry)
    fleet.on_prefill(entry, now)
    released = None
    if found is not None:
        released = Released("r", entry.replica_id, entry.prompt_tokens, found, answer)
    fleet.on_close(entry, released, now)


def known(fleet: Fleet, wanted: PlaceRequest = PROMPT) -> int:
    return fleet.best_hit(wanted)


class FleetMachine(RuleBasedStateMachine):
    """Three replicas of two kinds that come, go and restart, and placements in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(PolicyConfig(max_replica_blocks=64))
        self.now = 0.0
        self.listed = {
            name: replica(name, slots=8, prefix_kind=kind) for name, kind in zip(NAMES, KINDS, strict=True)
        }
        self.open: list[ActivePlacement] = []
        self.beat()

    @rule(step=st.floats(0, 2))
    def beat(self, step: float = 0.0) -> None:
        self.now += step
        self.fleet.heartbeat(beat(*self.listed.values()), self.now)

    @rule(name=st.sampled_from(NAMES), boot=st.integers(1, 3), state=st.sampled_from(list(ReplicaState)))
    def replica_changes(self, name: str, boot: int, state: ReplicaState) -> None:
        self.listed[name] = replica(name, slots=8, boot_id=f"boot-{boot}", state=state)
        self.beat()

    @rule(name=st.sampled_from(NAMES))
    def replica_goes(self, name: str) -> None:
        self.listed.pop(name, None)
        self.beat()

    @rule()
    def silence(self) -> None:
        self.now += 60.0
        self.fleet.forget_silent(self.now, 30.0)

    @rule(
        blocks=st.integers(0, 10), fork=st.integers(0, 3), tokens=st.integers(0, 3000), seed=st.integers(0, 9)
    )
    def place(self, blocks: int, fork: int, tokens: int, seed: int) -> None:
        chain = CHAIN[: blocks // 2] + [100 * fork + block for block in CHAIN[blocks // 2 : blocks]]
        wanted = request(blocks=chain, prompt_tokens=tokens)
        verdict = self.fleet.place(wanted, self.now, random.Random(seed))
        again = self.fleet.place(wanted, self.now, random.Random(seed))
        assert verdict == again, "same inputs, same outputs"
        if isinstance(verdict, Choice):
            status = verdict.replica.status
            assert 0 <= verdict.hit_tokens <= tokens
            entry = opened(wanted, status.replica_id, verdict.hit_tokens, self.now, boot_id=status.boot_id,
                           predicted_ttft_s=verdict.ttft_s, predicted_itl_s=verdict.itl_s)  # fmt: skip
            self.fleet.on_open(entry)
            self.open.append(entry)

    @rule(name=st.sampled_from(NAMES), prefilled=st.booleans(), produced=st.integers(0, 50))
    def announce(self, name: str, prefilled: bool, produced: int) -> None:
        entry = opened(request(), name, 30, self.now, prefilled=prefilled, produced=produced)
        self.fleet.on_open(entry)
        self.open.append(entry)

    @rule(pick=st.randoms(use_true_random=False), produced=st.integers(0, 100), told=st.booleans())
    def serve(self, pick: random.Random, produced: int, told: bool) -> None:
        if self.open:
            entry = pick.choice(self.open)
            if told:
                self.fleet.on_prefill(entry, self.now)
            self.fleet.on_progress(entry, produced, self.now)

    @rule(pick=st.randoms(use_true_random=False), found=st.integers(-1, 3000), failed=st.booleans())
    def close(self, pick: random.Random, found: int, failed: bool) -> None:
        if self.open:
            entry = self.open.pop(pick.randrange(len(self.open)))
            released = Released("r", entry.replica_id, entry.prompt_tokens, max(0, found), 10, failed)
            self.fleet.on_close(entry, released if found >= 0 else None, self.now)

    @rule(name=st.sampled_from(NAMES), stored=st.lists(st.integers(1, 20)), cleared=st.booleans())
    def events(self, name: str, stored: list[int], cleared: bool) -> None:
        self.fleet.kv_events(KvDelta(name, "boot-1", 1, stored, [7, 8], cleared))

    @invariant()
    def counters_are_the_sum_of_what_is_open(self) -> None:
        for name in NAMES:
            mine = [entry for entry in self.open if entry.replica_id == name]
            assert self.fleet.running_on(name) == len(mine)
            seen = self.fleet.replicas.get(name)
            if seen is None:
                continue
            assert seen.load.unprefilled == sum(entry.uncached for entry in mine if not entry.prefilled)
            assert seen.load.kv_tokens == sum(entry.uncached + entry.produced for entry in mine)
            assert seen.load.outstanding == sum(max(0, e.output_tokens - e.produced) for e in mine)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(len(seen.prefix) <= MIN_REPLICA_BLOCKS * 1.25 for seen in self.fleet.replicas.values())

    def teardown(self) -> None:
        for entry in self.open:
            self.fleet.on_close(entry, None, self.now)
        self.fleet.heartbeat(beat(), self.now)
        assert (self.fleet.replicas, self.fleet._loads, self.fleet._pools) == ({}, {}, {})


KINDS = ("text", "tokens", "text")
TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_full_engine_that_forgets_sooner_is_believed() -> None:
    fleet = fleet_of(replica(kv=3_000))
    old, other = (
        request(blocks=list(range(n, n + 10)), prompt_tokens=1000, output_tokens=0) for n in (100, 200)
    )
    run(fleet, opened(old), answer=0)
    run(fleet, opened(PROMPT, now=1.0), now=1.0, answer=0)
    run(fleet, opened(other, now=20.0), now=20.0, answer=0)
    assert (known(fleet, old), known(fleet), known(fleet, other)) == (1000, 1000, 1000)
    run(fleet, opened(PROMPT, hit=1000, now=30.0), found=0, now=30.0, answer=0)
    assert (known(fleet, old), known(fleet, other)) == (0, 1000), "what is older than what was lost is lost"


def test_a_chain_that_an_engine_with_room_does_not_keep_is_forgotten() -> None:
    fleet = fleet_of(replica())
    run(fleet, opened())
    run(fleet, opened(hit=1000, now=30.0), found=400, now=30.0)
    fleet.heartbeat(beat(replica()), 30.0)
    got = fleet.place(PROMPT, 30.0, random.Random(0))
    assert isinstance(got, Choice)
    assert 300 <= got.hit_tokens <= 400


def test_what_was_perhaps_still_being_prefilled_is_not_called_a_miss() -> None:
    fleet = fleet_of(replica(kv=3_000))
    run(fleet, opened())
    run(fleet, opened(hit=1000, now=0.1), found=0, now=0.1)
    assert known(fleet) == 1000


def test_a_prompt_that_is_cancelled_before_its_prefill_leaves_nothing() -> None:
    fleet = fleet_of(replica())
    entry = opened()
    fleet.on_open(entry)
    assert known(fleet) == 1000
    fleet.on_close(entry, Released("r", NAMES[0]), 0.5)
    assert known(fleet) == 0
    assert fleet.place(PROMPT, 0.5, random.Random(0)).ttft_s == pytest.approx(0.1 + 1.5 * 0.011)


def test_a_failed_replica_holds_nothing() -> None:
    fleet = fleet_of(replica())
    run(fleet, opened())
    fleet.on_open(entry := opened())
    fleet.on_close(entry, Released("r", NAMES[0], failed=True), 0.5)
    assert known(fleet) == 0


@pytest.mark.parametrize("prefilled", [False, True])
def test_a_failed_attempt_does_not_make_the_engines_word_untrue(prefilled: bool) -> None:
    """The engine says once what it stored: forgotten here, it would be unknown until the engine evicts it."""
    fleet = fleet_of(replica(prefix_kind="tokens"))
    fleet.kv_events(KvDelta(NAMES[0], "boot-1", 1, stored=CHAIN[:8]))
    fleet.on_open(entry := opened())
    assert known(fleet) == 1000
    if prefilled:
        fleet.on_prefill(entry, 0.1)
    fleet.on_close(entry, Released("r", NAMES[0], failed=True), 0.2)
    fleet.heartbeat(beat(replica(prefix_kind="tokens")), 5.0)
    assert known(fleet) == 800


def test_exact_knowledge_is_the_engines_word_and_a_short_belief() -> None:
    fleet = fleet_of(replica(prefix_kind="tokens"))
    entry = opened()
    fleet.on_open(entry)
    assert known(fleet) == 1000, "a burst with the same prefix sticks together"
    fleet.on_prefill(entry, 1.0)
    assert known(fleet) == 1000, "the events are under way"
    fleet.kv_events(KvDelta(NAMES[0], "boot-1", 1, stored=CHAIN[:8]))
    fleet.on_close(entry, None, 5.0)
    assert known(fleet) == 800
    fleet.kv_events(KvDelta(NAMES[0], "boot-0", 2, cleared=True))
    assert known(fleet) == 800, "of another incarnation"
    fleet.kv_events(KvDelta(NAMES[0], "boot-1", 2, removed=CHAIN[5:]))
    assert known(fleet) == 500
    fleet.heartbeat(beat(replica(prefix_kind="tokens", boot_id="boot-2")), 6.0)
    assert known(fleet) == 0


def test_a_replica_that_is_late_is_expected_to_be_late() -> None:
    fleet = fleet_of(replica())
    wanted = request(prompt_tokens=1000)
    for turn in range(40):
        now = float(turn)
        fleet.heartbeat(beat(replica()), now)
        verdict = fleet.place(wanted, now, random.Random(0))
        assert isinstance(verdict, Choice)
        entry = opened(wanted, now=now, predicted_ttft_s=verdict.ttft_s, predicted_itl_s=verdict.itl_s)
        fleet.on_open(entry)
        fleet.on_prefill(entry, now + 0.4)
        fleet.on_close(entry, Released("r", NAMES[0], 1000, 0, 50), now + 0.9)
    assert verdict.ttft_s == pytest.approx(0.4, abs=0.05)
    report = fleet.reports[MODEL]
    assert report.ttft.count == 40
    assert report.ttft.bound(verdict.ttft_s) >= 0.4


def test_all_replicas_share_what_may_be_remembered() -> None:
    fleet = fleet_of(*(replica(name) for name in NAMES), config=PolicyConfig(max_blocks=6_000))
    assert {seen.prefix.max_entries for seen in fleet.replicas.values()} == {2_000}
    fleet.heartbeat(beat(replica(NAMES[0])), 1.0)
    assert fleet.replicas[NAMES[0]].prefix.max_entries == 6_000


def test_a_replica_that_serves_another_model_now_is_another_replica() -> None:
    fleet = fleet_of(replica())
    run(fleet, opened())
    changed, models = fleet.heartbeat(beat(replica(model="penstock/other")), 1.0)
    assert (changed, models) == (True, {MODEL, "penstock/other"})
    assert (fleet.replicas_of(MODEL), len(fleet.replicas_of("penstock/other"))) == ([], 1)


def test_a_replica_that_stands_still_keeps_its_whole_backlog() -> None:
    """Time alone works nothing off: who waits seconds too long for its first token says that nobody does."""
    still, other = replica(NAMES[0], slots=64), replica(NAMES[1], slots=64)
    fleet = fleet_of(still, other)
    large = request(prompt_tokens=6_000, output_tokens=20)
    entries = [opened(large, predicted_ttft_s=0.6, now=at) for at in (0.0, 0.5)]
    for entry in entries:
        fleet.on_open(entry)
    fleet.heartbeat(beat(still, other), 2.0)
    assert fleet.place(request(exclude=[NAMES[1]]), 2.0, random.Random(0)).replica.row == 0, (
        "late, but not by much"
    )
    fleet.heartbeat(beat(still, other), 4.0)
    assert not isinstance(fleet.place(request(exclude=[NAMES[1]]), 4.0, random.Random(0)), Choice)
    fleet.on_prefill(entries[0], 4.0)
    fleet.on_close(entries[1], None, 4.0)
    assert isinstance(fleet.place(request(exclude=[NAMES[1]]), 4.0, random.Random(0)), Choice)
    assert not fleet.replicas[NAMES[0]].load.first_tokens_due


def test_a_prefix_cache_has_the_room_of_host_memory_too() -> None:
    for kind in ("text", "tokens"):
        status = replica(NAMES[0], prefix_kind=kind)
        tiered = msgspec.structs.replace(status.capacity, host_kv_tokens=50_000)
        fleet = fleet_of(msgspec.structs.replace(status, capacity=tiered))
        assert fleet.replicas[NAMES[0]].prefix.room_tokens == 150_000
