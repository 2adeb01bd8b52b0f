"""The fair queue: a state machine against a naive model, the fairness bound, weights, lift, starvation."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler.core.decisions import Placed
from scheduler.core.fair_queue import FairQueue
from scheduler.core.flow import QueuedRequest, QueueOutcome
from scheduler.core.placement import ActivePlacement
from scheduler.core.rules import BANDS, NEW_TENANT, AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.state import SchedulerState
from scheduler.messages import TenantCounter
from scheduler.wire import PlaceRequest, Released
from tests.support.scheduling import MODEL, beat, replica, request

TENANTS = ("t1", "t2", "t3")
NOBODY: set[QueuedRequest] = set()
NONE_LATE = (-1.0,) * 3
PATIENT = SchedulerConfig(
    queue=QueueRules(oldest_every=1, max_skips=0), admission=AdmissionRules(enabled=False)
)


def placement(asked: PlaceRequest, hit: int = 0) -> ActivePlacement:
    return ActivePlacement(
        "api",
        asked.tenant_id,
        MODEL,
        "host/r0",
        "boot-1",
        asked.prompt_tokens,
        hit,
        asked.output_tokens,
        produced=0,
        prefilled=False,
        placed_at=0.0,
        tier=asked.tier,
        weight=asked.weight,
    )


class FairQueueMachine(RuleBasedStateMachine):
    """Everything that may happen to a queue, and a dictionary of what each tenant should have been charged."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = QueueRules()
        self.queue = FairQueue(self.rules)
        self.now = 0.0
        self.seq = 0
        self.all: dict[tuple[str, str], QueuedRequest] = {}
        self.ended: set[tuple[str, str]] = set()
        self.open: list[ActivePlacement] = []

    @rule(
        client=st.sampled_from(["a", "b"]),
        tenant=st.sampled_from(TENANTS),
        tier=st.sampled_from([*BANDS, "unknown"]),
        age=st.floats(0, 30),
        wait=st.floats(0.1, 30),
        prompt=st.integers(0, 500),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def add(self, client, tenant, tier, age, wait, prompt, weight) -> None:
        self.seq += 1
        wanted = request(f"r{self.seq}", tenant, prompt_tokens=prompt, tier=tier, weight=weight)
        queued = QueuedRequest(client, wanted, self.now - age, self.now + wait, self.seq)
        self.queue.add(queued, self.now)
        with pytest.raises(ValueError, match="already waits"):
            self.queue.add(queued, self.now)
        self.all[queued.key] = queued

    @rule(step=st.floats(0, 20))
    def time_passes(self, step: float) -> None:
        self.now += step
        while (queued := self.queue.overdue(self.now)) is not None:
            assert queued.deadline_at <= self.now
            self.queue.remove(queued.key, QueueOutcome.DEADLINE)
            self._end(queued, QueueOutcome.DEADLINE)
        waiting = [queued.deadline_at for queued in self.queue]
        assert all(deadline_at > self.now for deadline_at in waiting)
        assert self.queue.next_deadline() == min(waiting, default=None)

    @rule(hit=st.integers(0, 500))
    def serve(self, hit: int) -> None:
        late_before = (self.now - 5.0,) * 3
        queued = self.queue.pick(late_before, 10_000, lambda each: each.seq % 7, NOBODY, False)
        assert (queued is None) == (len(self.queue) == 0)
        if queued is None:
            return
        band = self.queue.band(queued.request.tier)
        index = self.queue.bands.index(band)
        assert not any(higher.waiting for higher in self.queue.bands[:index])
        uncapped = [flow.counter for flow in band if flow.kv_tokens <= 5_000]
        if uncapped:
            assert band.flow(queued.request.tenant_id).counter == min(uncapped)
        self.queue.record_pick(queued, late_before)
        self._end(queued, QueueOutcome.PLACED)
        entry = placement(queued.request, min(hit, queued.request.prompt_tokens))
        self.queue.on_open(entry)
        self.open.append(entry)

    @rule(pick=st.randoms(use_true_random=False), more=st.integers(0, 80))
    def tokens_come(self, pick, more: int) -> None:
        if self.open:
            entry = pick.choice(self.open)
            entry.produced += more
            self.queue.on_progress(entry)

    @rule(
        pick=st.randoms(use_true_random=False),
        cached=st.integers(0, 600),
        extra=st.integers(0, 50),
        how=st.sampled_from(["done", "failed", "client died"]),
    )
    def end(self, pick, cached: int, extra: int, how: str) -> None:
        if not self.open:
            return
        entry = self.open.pop(pick.randrange(len(self.open)))
        output = entry.produced + extra
        released = Released(
            "r", entry.replica_id, entry.prompt_tokens, cached, output, failed=how == "failed"
        )
        self.queue.on_close(entry, None if how == "client died" else released)

    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick) -> None:
        if self.all:
            key = pick.choice(sorted(self.all))
            queued = self.queue.remove(key, QueueOutcome.CANCELLED)
            assert (queued is None) == (key in self.ended)
            if queued is not None:
                self._end(queued, QueueOutcome.CANCELLED)

    @rule(client=st.sampled_from(["a", "b"]))
    def client_goes(self, client: str) -> None:
        for queued in self.queue.remove_client(client):
            self._end(queued, QueueOutcome.CLIENT_GONE)
        assert all(queued.client != client for queued in self.queue)

    def _end(self, queued: QueuedRequest, outcome: QueueOutcome) -> None:
        assert queued.key not in self.ended
        assert queued.outcome is outcome
        self.ended.add(queued.key)

    @invariant()
    def every_ticket_waits_or_has_ended(self) -> None:
        waiting = {queued.key for queued in self.queue}
        assert waiting | self.ended == set(self.all)
        assert not waiting & self.ended
        assert len(self.queue) == len(waiting) == sum(band.waiting for band in self.queue.bands)

    @invariant()
    def the_order_is_that_of_the_counters(self) -> None:
        for band in self.queue.bands:
            waiting = [flow for flow in band.flows.values() if flow.waiting]
            assert band.order == sorted((flow.counter, flow.name) for flow in waiting)
            assert band.waiting == sum(len(flow) for flow in waiting)
            assert band.work == pytest.approx(sum(flow.work for flow in waiting))
            assert band.weight == pytest.approx(sum(flow.weight for flow in waiting))
            assert band.active_flows == sum(1 for flow in band.flows.values() if flow.waiting or flow.running)

    @invariant()
    def lifts_only_add(self) -> None:
        for band in self.queue.bands:
            assert all(flow.charged_here <= flow.counter + 1e-6 for flow in band.flows.values())

    @invariant()
    def what_runs_is_counted(self) -> None:
        for tier, band in zip(BANDS, self.queue.bands, strict=True):
            mine = [
                entry for entry in self.open if (entry.tier if entry.tier in BANDS else "standard") == tier
            ]
            assert band.running == len(mine) == sum(flow.running for flow in band.flows.values())
            assert sum(flow.kv_tokens for flow in band.flows.values()) == sum(e.reserved for e in mine)
        assert self.queue.running == len(self.open)


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_counters_equal_the_charges_of_a_naive_model(data: st.DataObject) -> None:
    """One tenant that never goes idle, so that nothing is lifted or forgotten: the counter is the sum of charges."""
    queue = FairQueue(QueueRules())
    queue.add(QueuedRequest("api", request("always", "t1"), 0.0, 1e9, 0), 0.0)
    total = 0.0
    for _ in range(data.draw(st.integers(1, 10))):
        asked = request("r", "t1", prompt_tokens=data.draw(st.integers(0, 1000)), weight=2.0)
        entry = placement(asked, hit=data.draw(st.integers(0, asked.prompt_tokens)))
        queue.on_open(entry)
        entry.produced = data.draw(st.integers(0, 200))
        queue.on_progress(entry)
        queue.on_progress(entry)
        cached, output = data.draw(st.integers(0, 1000)), data.draw(st.integers(entry.produced, 300))
        failed, dispatched = data.draw(st.booleans()), data.draw(st.booleans())
        queue.on_close(
            entry, Released("r", "host/r0", 1000, cached, output, failed=failed, dispatched=dispatched)
        )
        if dispatched:
            total += (1000 - cached + (0 if failed else 2 * output)) / 2.0
    assert queue.band("standard").flow("t1").counter == pytest.approx(total)


@pytest.mark.parametrize("released", [None, Released("r", "host/r0"), Released("r", "host/r0", failed=True)])
def test_a_dispatched_prompt_is_charged_although_nothing_came_of_it(released: Released | None) -> None:
    """Its client left before the first token, its engine failed, or its API process was lost: the engine may have
    worked on it."""
    queue = FairQueue(QueueRules())
    queue.add(QueuedRequest("api", request("always", "t1"), 0.0, 1e9, 0), 0.0)
    entry = placement(request("r", "t1", prompt_tokens=1000), hit=200)
    queue.on_open(entry)
    queue.on_close(entry, released)
    assert queue.band("standard").flow("t1").counter == 800


def test_the_input_of_a_second_attempt_is_not_charged_again() -> None:
    queue = FairQueue(QueueRules())
    queue.add(QueuedRequest("api", request("always", "t1"), 0.0, 1e9, 0), 0.0)
    asked = request("r", "t1", prompt_tokens=1000)
    for released in (Released("r", "host/r0", failed=True), Released("r", "host/r1", 1000, 0, 10)):
        entry = placement(asked, hit=0)
        queue.on_open(entry, retried=not released.failed)
        queue.on_close(entry, released)
    assert queue.band("standard").flow("t1").counter == 1000 + 2 * 10


class Rush:
    """Tenants that always have something waiting, one small pool, and the service that each received."""

    def __init__(self, seed: int, config: SchedulerConfig, weights: dict[str, float], slots: int = 3) -> None:
        self.rng = random.Random(seed)
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=config)
        self.now = 0.0
        self.pool = beat(replica(slots=slots, kv=10_000_000))
        self.state.heartbeat(self.pool, self.now)
        self.weights = weights
        self.service = dict.fromkeys(weights, 0.0)
        self.held: dict[str, tuple[PlaceRequest, str]] = {}
        self.asked: dict[str, PlaceRequest] = {}
        self.order: list[str] = []
        self.most_in_flight = 0
        self.most_input = 0
        for tenant in weights:
            for _ in range(4):
                self.submit(tenant)

    def submit(self, tenant: str) -> None:
        name = f"r{len(self.asked)}"
        prompt, output = self.rng.randrange(1, 2000), self.rng.randrange(1, 500)
        shared = [hash_of(tenant, n) for n in range(self.rng.randrange(1, 5))]
        asked = request(
            name,
            tenant,
            600.0,
            prompt_tokens=prompt,
            output_tokens=output,
            weight=self.weights[tenant],
            blocks=shared,
        )
        self.most_input = max(self.most_input, prompt)
        self.asked[name] = asked
        self.state.submit("api", asked, self.now)

    def run(self, rounds: int) -> None:
        """Serve, let one end with a length that nobody expected, and let its tenant ask again."""
        for _ in range(rounds):
            self.now += 1.0
            self.state.heartbeat(self.pool, self.now)
            for decision in self.state.dispatch(self.now, self.rng):
                assert isinstance(decision, Placed)
                asked = self.asked[decision.placement.request_id]
                self.held[asked.request_id] = (asked, decision.placement.replica_id)
                self.order.append(asked.tenant_id)
            name = self.rng.choice(sorted(self.held))
            asked, where = self.held.pop(name)
            output = self.rng.randrange(1, 1000)
            in_flight = sum(
                each.prompt_tokens + max(each.output_tokens, 1000) for each, _ in self.held.values()
            )
            self.most_in_flight = max(
                self.most_in_flight, in_flight + asked.prompt_tokens + max(asked.output_tokens, output)
            )
            cached = self.rng.randrange(0, asked.prompt_tokens)
            self.state.prefill_done("api", name, where, self.now)
            self.state.progress("api", name, where, output // 2, self.now)
            done = Released(name, where, asked.prompt_tokens, cached, output)
            self.state.release("api", done, self.now)
            self.service[asked.tenant_id] += (asked.prompt_tokens - cached + 2 * output) / asked.weight
            self.submit(asked.tenant_id)

    def bound(self) -> float:
        """2 * max(w_p * L_in, w_q * M) over the smallest weight; M = tokens in flight, their longest answers."""
        worst = 2.0 * max(self.most_input, 2 * self.most_in_flight)
        return worst / min(self.weights.values())


def hash_of(tenant: str, n: int) -> int:
    return TENANTS.index(tenant) * 100 + n


@pytest.mark.promise(29)
@given(seed=st.integers(0, 10_000), rounds=st.integers(20, 150))
@settings(max_examples=40, deadline=None)
def test_two_backlogged_tenants_stay_within_the_bound(seed: int, rounds: int) -> None:
    rush = Rush(seed, PATIENT, {"t1": 1.0, "t2": 1.0})
    rush.run(rounds)
    assert abs(rush.service["t1"] - rush.service["t2"]) <= rush.bound()


def test_the_bound_does_not_grow_with_time_and_first_come_first_served_breaks_it() -> None:
    """A greedy tenant with ten requests for each of the other's: served alike by counters, tenfold without."""
    gaps = {}
    for fair in (True, False):
        state = SchedulerState(
            "epoch-1",
            0.0,
            grace_s=0.0,
            config=replace(PATIENT, queue=replace(PATIENT.queue, fair=fair, max_waiting_share=1.0)),
        )
        pool = beat(replica(slots=1, kv=10_000_000))
        for n in range(3000):
            tenant = "modest" if n % 10 == 0 else "greedy"
            state.submit("api", request(f"{tenant}-{n}", tenant, 600.0), 0.0)
        served = {"modest": 0, "greedy": 0}
        for now in range(500):
            state.heartbeat(pool, float(now))
            (decision,) = state.dispatch(float(now), random.Random(0))
            name = decision.placement.request_id
            served[name.split("-")[0]] += 1
            state.release("api", Released(name, "host/r0", 100, 0, 50), now + 0.5)
        gaps[fair] = abs(served["modest"] - served["greedy"])
    assert gaps[True] <= 2
    assert gaps[False] >= 390


@pytest.mark.parametrize("weight", [2.0, 5.0])
def test_a_heavier_tenant_gets_its_multiple(weight: float) -> None:
    rush = Rush(3, PATIENT, {"t1": 1.0, "t2": weight})
    rush.run(3000)
    tokens = {tenant: rush.service[tenant] * rush.weights[tenant] for tenant in rush.service}
    assert tokens["t2"] / tokens["t1"] == pytest.approx(weight, rel=0.1)


def test_idleness_earns_no_credit() -> None:
    queue = FairQueue(QueueRules())
    band = queue.band("standard")
    queue.add(QueuedRequest("api", request("a", "busy"), 0.0, 99.0, 1), 0.0)
    entry = placement(request("x", "busy", prompt_tokens=10_000))
    queue.on_open(entry)
    queue.add(QueuedRequest("api", request("b", "late"), 0.0, 99.0, 2), 0.0)
    assert band.flow("late").counter == band.flow("busy").counter == 10_100
    for key in (("api", "a"), ("api", "b")):
        queue.remove(key, QueueOutcome.CANCELLED)
    queue.add(QueuedRequest("api", request("c", "newcomer"), 0.0, 99.0, 3), 0.0)
    assert band.flow("newcomer").counter == 10_100, "with nobody waiting the last to leave sets the mark"


def test_bands_are_strict_and_counters_are_per_band() -> None:
    queue = FairQueue(QueueRules())
    queue.on_open(placement(request("x", "t1", prompt_tokens=50_000, tier="batch")))
    for seq, tier in enumerate(["batch", "standard", "priority"]):
        queue.add(QueuedRequest("api", request(tier, "t1", tier=tier), 0.0, 99.0, seq), 0.0)
    picked = []
    while (queued := queue.pick(NONE_LATE, 0, lambda each: 0, NOBODY, False)) is not None:
        picked.append(queued.request.request_id)
        queue.record_pick(queued, NONE_LATE)
    assert picked == ["priority", "standard", "batch"]
    assert queue.band("standard").flow("t1").counter == 0.0


def test_in_a_growing_queue_no_cached_prefix_takes_the_turn_of_the_oldest() -> None:
    queue = FairQueue(QueueRules(oldest_every=3, reorder_window=8))
    for seq in range(9):
        queue.add(QueuedRequest("api", request(f"r{seq}"), float(seq), 99.0, seq), float(seq))
    queue.band("standard").growth.sustained = True
    order = []
    while (queued := queue.pick((2.0,) * 3, 0, lambda each: 10 * each.seq, NOBODY, True)) is not None:
        order.append(queued.seq)
        queue.record_pick(queued, (2.0,) * 3)
    assert order[2::3] == [0, 1, 2]
    assert order[:2] == [8, 7]


def test_a_skipped_request_is_not_looked_up_among_those_that_may_go_first() -> None:
    queue = FairQueue(QueueRules(reorder_window=8))
    waiting = [QueuedRequest("api", request(f"r{seq}"), float(seq), 99.0, seq) for seq in range(5)]
    for queued in waiting:
        queue.add(queued, queued.enqueued_at)
    asked: list[int] = []

    def hits(queued: QueuedRequest) -> int:
        asked.append(queued.seq)
        return 10 * queued.seq

    picked = queue.pick(NONE_LATE, 0, hits, {waiting[4], waiting[2]}, False)
    assert picked is waiting[3]
    assert set(asked) == {0, 1, 3}


def test_a_tenant_that_fills_the_cache_is_passed_over_while_others_wait_and_only_then() -> None:
    queue = FairQueue(QueueRules(kv_share=0.5))
    queue.on_open(placement(request("x", "hog", prompt_tokens=6_000, output_tokens=0)))
    queue.add(QueuedRequest("api", request("mine", "hog"), 0.0, 99.0, 1), 0.0)
    first = queue.pick(NONE_LATE, 10_000, lambda each: 0, NOBODY, False)
    assert first is not None
    assert first.request.tenant_id == "hog", "alone it may have everything"
    queue.add(QueuedRequest("api", request("theirs", "other"), 0.0, 99.0, 2), 0.0)
    queue.on_open(placement(request("z", "other", prompt_tokens=1_000)))
    queue.band("standard").charge(queue.band("standard").flow("other"), 1e6)
    second = queue.pick(NONE_LATE, 10_000, lambda each: 0, NOBODY, False)
    assert second is not None
    assert second.request.tenant_id == "other", "whatever the counters say"
    heavy = request("heavy", "hog", weight=9.0)
    queue.remove(("api", "mine"), QueueOutcome.CANCELLED)
    queue.add(QueuedRequest("api", heavy, 0.0, 99.0, 3), 0.0)
    third = queue.pick(NONE_LATE, 10_000, lambda each: 0, NOBODY, False)
    assert third is not None
    assert third.request.tenant_id == "hog", "its weight entitles it to nine tenths"


def test_counters_of_idle_tenants_are_bounded() -> None:
    queue = FairQueue(QueueRules(max_idle_flows=50))
    for n in range(500):
        entry = placement(request(f"r{n}", f"tenant-{n}", prompt_tokens=n))
        queue.on_open(entry)
        queue.on_close(entry, Released("r", "host/r0", 500 + n, 0, 10))
    assert len(queue.band("standard").flows) <= 51
    assert len(queue.take_changed(MODEL)) <= 52


# Across a restart


def test_announced_counters_are_taken_over_and_the_largest_wins() -> None:
    queue = FairQueue(QueueRules())
    for service in (500.0, 800.0, 700.0):
        queue.restore(TenantCounter("t1", MODEL, service))
    queue.add(QueuedRequest("api", request("a", "t1"), 0.0, 99.0, 1), 0.0)
    assert queue.band("standard").flow("t1").counter == 800.0
    queue.on_open(placement(request("x", "t1", prompt_tokens=100, output_tokens=0)))
    queue.restore(TenantCounter("t1", MODEL, 850.0))
    assert queue.band("standard").flow("t1").counter == 950.0, "what was charged here comes on top"
    queue.restore(TenantCounter("t1", MODEL, 820.0))
    assert queue.band("standard").flow("t1").counter == 950.0


def test_who_came_before_the_announcement_is_lifted_like_any_newcomer() -> None:
    queue = FairQueue(QueueRules())
    queue.add(QueuedRequest("api", request("a", "early"), 0.0, 99.0, 1), 0.0)
    queue.on_open(placement(request("x", "early", prompt_tokens=70, output_tokens=0)))
    queue.restore(TenantCounter("old", MODEL, 9_000.0))
    queue.restore(TenantCounter(NEW_TENANT, MODEL, 8_000.0))
    queue.add(QueuedRequest("api", request("b", "later"), 0.0, 99.0, 2), 0.0)
    band = queue.band("standard")
    assert (band.flow("early").counter, band.flow("old").counter) == (8_070.0, 9_000.0)
    assert band.flow("later").counter == 8_070.0, "lifted to the smallest that waits"
    told = {counter.tenant_id: counter.service for counter in queue.take_changed(MODEL)}
    assert told[NEW_TENANT] == 8_070.0
    assert queue.take_changed(MODEL) == []


@given(
    st.permutations([("t1", 400.0), ("t2", 900.0), (NEW_TENANT, 300.0), ("t1", 650.0), (NEW_TENANT, 350.0)])
)
def test_the_order_of_announcements_does_not_matter(said: list[tuple[str, float]]) -> None:
    queue = FairQueue(QueueRules())
    for name in ("t1", "t2", "new"):
        queue.add(QueuedRequest("api", request(name, name), 0.0, 99.0, len(name)), 0.0)
    queue.on_open(placement(request("x", "new", prompt_tokens=10, output_tokens=0)))
    for tenant_id, service in said:
        queue.restore(TenantCounter(tenant_id, MODEL, service))
    counters = {flow.name: flow.counter for flow in queue.band("standard")}
    assert counters == {"t1": 650.0, "t2": 900.0, "new": 360.0}


def test_an_answer_longer_than_estimated_counts_against_its_tenants_share_of_the_cache() -> None:
    queue = FairQueue(QueueRules())
    entry = placement(request("x", "hog", prompt_tokens=100, output_tokens=50))
    queue.on_open(entry)
    flow = queue.band("standard").flow("hog")
    for produced, held in ((40, 150), (50, 150), (400, 500)):
        entry.produced = produced
        queue.on_progress(entry)
        assert flow.kv_tokens == held
    queue.on_close(entry, Released("x", "host/r0", 100, 0, 400))
    assert flow.kv_tokens == 0
