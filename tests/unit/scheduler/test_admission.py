"""Admission by prediction, on a pool that serves at a known pace."""

import heapq
import random
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from scheduler.core.admission import Admission, DrainMeter
from scheduler.core.decisions import Placed
from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.state import SchedulerState
from scheduler.core.warm import WarmCapacity
from scheduler.messages import Announce, AnnouncedRequest, PlaceRefused
from scheduler.wire import Released
from tests.support.scheduling import beat, capacity, replica, request
from workers.wire import ReplicaState, ReplicaStatus

SLOTS = 4
SERVICE_S = 0.5
"""Mean seconds that a request holds a slot: the pool serves eight a second."""
POOL = WarmCapacity(ready=1, slots=SLOTS, kv_tokens=1_000_000, ttft_targets_s=(2.0, 2.0, 2.0))


@dataclass
class Till:
    """A pool of SLOTS that serves each request for a random time; arrivals at a steady pace."""

    seed: int = 0
    config: SchedulerConfig = field(
        default_factory=lambda: SchedulerConfig(queue=QueueRules(late_ttft_share=0.75, oldest_every=4))
    )
    """Late ones get enough turns here that the waits of all can be judged."""
    now: float = 0.0
    refusals: list[PlaceRefused] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=self.config)
        self.replicas = [replica(slots=SLOTS, kv=1_000_000, capacity=capacity(SLOTS, 1_000_000, 1e6))]
        self.events: list[tuple[float, int, str, str]] = []
        self.seq = 0

    def beat(self) -> None:
        self.state.heartbeat(beat(*self.replicas), self.now)

    def at(self, when: float, what: str, name: str = "") -> None:
        self.seq += 1
        heapq.heappush(self.events, (when, self.seq, what, name))

    def run(self, until_s: float, per_s: float, deadline_s: float, tenants: int = 5) -> None:
        """Arrivals and services until `until_s`."""
        if not self.events:
            self.at(self.now, "beat")
            self.at(self.now, "arrive")
        while self.events and self.events[0][0] < until_s:
            self.now, _, what, name = heapq.heappop(self.events)
            if what == "arrive":
                self.at(self.now + self.rng.expovariate(per_s), "arrive")
                asked = request(f"r{self.seq}", f"t{self.rng.randrange(tenants)}", deadline_s)
                self.state.submit("api", asked, self.now)
            elif what == "beat":
                self.beat()
                self.state.tick()
                self.at(self.now + 0.25, "beat")
            else:
                self.state.prefill_done("api", name, "host/r0", self.now)
                self.state.release("api", Released(name, "host/r0", 100, 0, 50), self.now)
            for decision in self.state.dispatch(self.now, self.rng):
                if isinstance(decision, Placed):
                    placement = decision.placement
                    self.waits[placement.request_id] = placement.queue_s
                    self.at(self.now + self.rng.uniform(0.5, 1.5) * SERVICE_S, "done", placement.request_id)
                else:
                    self.refusals.append(decision.refusal)


@pytest.mark.promise(29)
def test_overload_is_refused_early_and_what_is_admitted_is_served_in_time() -> None:
    early_count = late_count = 0
    for seed in range(8):  # of one run the share of late refusals varies between 0.2 and 0.3
        till = Till(seed=seed)
        till.run(20.0, per_s=12.0, deadline_s=3.0)
        till.refusals.clear()
        till.run(120.0, per_s=12.0, deadline_s=3.0)
        early = [refusal for refusal in till.refusals if "would be" in refusal.message]
        early_count += len(early)
        late_count += sum("came free" in refusal.message for refusal in till.refusals)
        assert len(early) > 250, "a third of 1,200 is too many for eight a second"
        assert len(till.waits) > 0.9 * 8 * 100, "and the pool is not kept idle"
        for refusal in early:
            assert refusal.predicted_wait_s > 1.2, "the whole deadline, or what was left when it became late"
            assert 1.0 <= refusal.retry_after_s <= max(1.0, refusal.predicted_wait_s)
            assert (refusal.warm_replicas, refusal.position > 1) == (1, True)
    assert late_count < 0.25 * early_count, "few requests wait in vain"


@pytest.mark.parametrize("oldest_every", [4, 16])
def test_of_a_burst_most_that_can_be_served_in_time_are(oldest_every: int) -> None:
    till = Till(
        seed=2, config=SchedulerConfig(queue=QueueRules(late_ttft_share=0.75, oldest_every=oldest_every))
    )
    till.run(20.0, per_s=7.0, deadline_s=10.0)
    till.events = [event for event in till.events if event[2] != "arrive"]
    till.waits.clear()
    before = len(till.state.queues["penstock/tiny"].queue)
    for n in range(100):
        till.state.submit("api", request(f"burst-{n}", "burst", 10.0), till.now)
    till.run(till.now + 30.0, per_s=1.0, deadline_s=10.0)
    served = sum(name.startswith("burst") for name in till.waits)
    assert served > 0.7 * (80 - before), "the pool serves eighty in ten seconds, and idled"
    assert max(till.waits.values()) <= 10.0


def test_predictions_are_judged_and_are_near_what_happens() -> None:
    queue = QueueRules(oldest_every=1)
    till = Till(config=SchedulerConfig(queue=queue, admission=AdmissionRules(enabled=False)))
    till.run(150.0, per_s=9.0, deadline_s=600.0)
    accuracy = till.state.accuracy()["penstock/tiny", "wait"]
    assert accuracy.count > 500
    assert accuracy.mape < 0.6
    assert 0.65 < accuracy.coverage <= 1.0
    assert abs(accuracy.bias_s) < 5.0
    assert not till.refusals, "switched off, nobody is refused by prediction"


@pytest.mark.parametrize("deadline_s", [0.01, 0.5])
def test_nobody_is_refused_by_prediction_while_a_replica_has_room(deadline_s: float) -> None:
    till = Till(seed=4)
    till.run(60.0, per_s=3.0, deadline_s=deadline_s)
    assert len(till.waits) > 100
    assert (
        not [refusal for refusal in till.refusals if refusal.reason == "predicted_wait"] or deadline_s < 0.1
    )
    till.events.clear()
    for key in list(till.state.active):
        till.state.release("api", Released(key[1], key[2]), till.now)
    till.state.dispatch(till.now, till.rng)
    till.beat()
    till.state.submit("api", request("lonely", deadline_s=0.001), till.now)
    (decision,) = till.state.dispatch(till.now, till.rng)
    assert isinstance(decision, Placed)


def test_a_cold_model_refuses_nobody_by_prediction() -> None:
    till = Till()
    till.beat()
    for n in range(500):
        till.state.submit("api", request(f"r{n}", f"t{n % 7}", deadline_s=0.5), 0.0)
    assert all(isinstance(decision, Placed) for decision in till.state.dispatch(0.0, till.rng))
    assert till.state.waiting == 500 - SLOTS


def test_the_one_whose_own_requests_are_in_the_way_is_told_429_and_the_others_are_let_in() -> None:
    till = Till()
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    state, now = till.state, till.now
    for n in range(40):
        state.submit("api", request(f"hog-{n}", "hog", deadline_s=100.0), now)
    state.dispatch(now, till.rng)
    state.submit("api", request("hog-last", "hog", deadline_s=3.0), now)
    state.submit("api", request("modest", "modest", deadline_s=3.0), now)
    (decision,) = state.dispatch(now, till.rng)
    refusal = decision.refusal
    assert (refusal.request_id, refusal.status, refusal.reason) == ("hog-last", 429, "tenant_share")
    assert refusal.position > 40


def test_what_an_earlier_scheduler_admitted_is_not_judged_again() -> None:
    till = Till()
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    queued = [AnnouncedRequest(request(f"old-{n}", deadline_s=0.5), 2.0) for n in range(30)]
    till.state.announce("other", Announce([], queued), till.now)
    assert all(isinstance(decision, Placed) for decision in till.state.dispatch(till.now, till.rng))
    assert till.state.waiting >= 30 - SLOTS


def test_one_whose_replica_failed_it_is_not_judged_again() -> None:
    till = Till()
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    till.state.submit("api", request("newcomer", "t0", 0.2), till.now)
    till.state.submit("api", request("again", "t0", 0.2, exclude=["host/r9"]), till.now)
    refused = [decision.refusal.request_id for decision in till.state.dispatch(till.now, till.rng)]
    assert refused == ["newcomer"]


def test_who_was_let_in_before_stays_when_the_pool_shrinks() -> None:
    till = Till()
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    extra = replica("host/r1", slots=SLOTS * 9, kv=9_000_000, capacity=capacity(SLOTS * 9, 9_000_000, 1e6))
    till.replicas.append(extra)
    till.beat()
    queued = [AnnouncedRequest(request(f"old-{n}", "t0", deadline_s=1.0), 2.0) for n in range(300)]
    till.state.announce("other", Announce([], queued), till.now)
    till.state.dispatch(till.now, till.rng)
    till.replicas[1] = replace_state(extra, ReplicaState.ASLEEP)
    till.beat()
    assert till.state.waiting > 200
    assert all(isinstance(decision, Placed) for decision in till.state.dispatch(till.now, till.rng))


def test_a_pool_that_stood_still_is_believed_to_serve_again_when_it_does() -> None:
    """Nobody waits, so nothing is measured: what was learnt during the pause must not refuse for ever."""
    till = Till()
    till.run(30.0, per_s=9.0, deadline_s=10.0)
    stalled_s = 300.0
    till.events = [
        (when + stalled_s if what == "done" else when, seq, what, name)
        for when, seq, what, name in till.events
    ]
    heapq.heapify(till.events)
    till.run(30.0 + stalled_s + 10.0, per_s=9.0, deadline_s=10.0)
    before = len(till.refusals)
    till.run(30.0 + stalled_s + 40.0, per_s=7.0, deadline_s=10.0)
    assert len(till.refusals) - before <= 10


def test_when_the_pool_shrinks_those_who_cannot_be_served_in_time_go_at_once() -> None:
    till = Till(seed=1)
    extra = replica("host/r1", slots=SLOTS * 9, kv=9_000_000, capacity=capacity(SLOTS * 9, 9_000_000, 1e6))
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    state, now = till.state, till.now
    till.replicas.append(replace_state(extra, ReplicaState.READY))
    till.beat()
    for n in range(300):
        state.submit("api", request(f"r{n}", f"t{n % 5}", deadline_s=8.0), now)
    state.dispatch(now, till.rng)
    waiting = state.waiting
    till.replicas[1] = replace_state(extra, ReplicaState.ASLEEP)
    till.beat()
    refused = []
    for _ in range(10):
        state.tick()
        refused += state.dispatch(now, till.rng)
    assert len(refused) == waiting - state.waiting > 40
    assert all(decision.refusal.reason in ("predicted_wait", "tenant_share") for decision in refused)
    assert 30 < state.waiting < 220, "those who can still be served within eight seconds stay"


def replace_state(status: ReplicaStatus, state: ReplicaState) -> ReplicaStatus:
    return msgspec.structs.replace(status, state=state)


def test_the_drain_rate_counts_backlogged_time_only_and_follows_the_slots() -> None:
    meter = DrainMeter(memory_s=20.0)
    assert meter.rate(4) == 0.0
    meter.advance(0.0, 4, backlogged=False)
    meter.on_place(1000.0)
    meter.advance(10.0, 4, backlogged=True)
    for second in range(11, 31):
        meter.on_place(200.0)
        meter.advance(float(second), 4, backlogged=True)
    assert meter.rate(4) == pytest.approx(200.0, rel=0.06)
    assert meter.rate(8) == pytest.approx(2 * meter.rate(4))
    assert meter.placements == 20


def test_a_steady_error_is_corrected_and_never_beyond_fourfold() -> None:
    admission = Admission(replace(AdmissionRules(), min_observations=0))
    admission.drain.advance(0.0, SLOTS, backlogged=True)
    admission.drain.on_place(1000.0)
    admission.drain.advance(10.0, SLOTS, backlogged=True)
    first = admission.predict(500.0, POOL, 1)
    assert first is not None
    for _ in range(200):
        predicted = admission.predict(500.0, POOL, 1)
        admission.observe(predicted, 2.0 * first, admission.residual(1, late=False), 1, late=False)
    assert admission.predict(500.0, POOL, 1) == pytest.approx(2.0 * first, rel=0.05)
    assert admission.predict(500.0, POOL, 0) == pytest.approx(first), "bands learn apart"
    for _ in range(500):
        admission.observe(first, 100.0 * first, 0.0, 1, late=False)
    assert admission.predict(500.0, POOL, 1) == pytest.approx(4.0 * first)
    assert admission.predict(500.0, replace(POOL, ready=0), 1) is None


def test_queue_rules_may_switch_fairness_off() -> None:
    config = SchedulerConfig(queue=QueueRules(fair=False, oldest_every=1))
    till = Till(config=config)
    till.run(30.0, per_s=12.0, deadline_s=3.0)
    assert {refusal.status for refusal in till.refusals} == {503}
