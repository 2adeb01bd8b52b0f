"""Hard cases of one model's queue: too large requests, silent replicas, bounded work, hopeless retries."""

import random
from itertools import groupby, pairwise
from statistics import median

import pytest

from scheduler.core.decisions import Placed
from scheduler.core.hopeless import MAX_REFUSED, MAX_REVIEWED
from scheduler.core.model_queue import MAX_EXPIRED
from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.state import SchedulerState
from scheduler.messages import Announce, AnnouncedRequest
from scheduler.wire import Released
from tests.support.scheduling import MODEL, beat, capacity, replica, request
from workers.wire import ReplicaState

OPEN = AdmissionRules(enabled=False)
SERVICE_S = 2.0
SMALL, HUGE = 1_000, 80_000


class Pool:
    """A pool of replicas with room for many small requests, which come as fast as they are served."""

    def __init__(self, replicas: int = 4, rules: QueueRules | None = None) -> None:
        self.rng = random.Random(1)
        config = SchedulerConfig(queue=rules or QueueRules(), admission=OPEN)
        self.state = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=config)
        self.statuses = [
            replica(f"host/r{n}", slots=64, capacity=capacity(64, 100_000, 1e6)) for n in range(replicas)
        ]
        self.now = 0.0
        self.seq = 0
        self.ends: list[tuple[float, str, str]] = []
        self.placed: list[tuple[float, str, str]] = []
        """When, request id, replica."""
        self.refused: dict[str, str] = {}
        self.came: dict[str, float] = {}
        self.tiers: dict[str, str] = {}
        self.huge_s, self.small_tokens = SERVICE_S, SMALL

    def small(self, count: int, tenant: str = "many", tier: str = "standard") -> None:
        for _ in range(count):
            self.seq += 1
            asked = request(f"small-{self.seq}", tenant, 600.0, prompt_tokens=self.small_tokens, tier=tier)
            self.came[asked.request_id], self.tiers[asked.request_id] = self.now, tier
            self.state.submit("api", asked, self.now)

    def huge(
        self, name: str, tenant: str = "few", need: int = HUGE, deadline_s: float = 600.0, **fields
    ) -> None:
        asked = request(name, tenant, deadline_s, prompt_tokens=need - 50, **fields)
        self.state.submit("api", asked, self.now)

    def step(self, seconds: float = 0.1, small: int = 14, **fields) -> None:
        """Time passes, answers end, small requests come, the scheduler decides."""
        self.now += seconds
        self.state.heartbeat(beat(*self.statuses), self.now)
        for end in [end for end in self.ends if end[0] <= self.now]:
            self.ends.remove(end)
            self.state.prefill_done("api", end[1], end[2], self.now)
            self.state.release("api", Released(end[1], end[2], 0, 0, 50), self.now)
        self.small(small, **fields)
        for decision in self.state.dispatch(self.now, self.rng):
            if isinstance(decision, Placed):
                name, where = decision.placement.request_id, decision.placement.replica_id
                self.state.prefill_done("api", name, where, self.now)
                self.placed.append((self.now, name, where))
                service_s = self.huge_s if name.startswith("huge") else SERVICE_S
                self.ends.append((self.now + service_s * self.rng.uniform(0.5, 1.5), name, where))
            else:
                self.refused[decision.refusal.request_id] = decision.refusal.reason

    def run(self, seconds: float, **fields) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step(**fields)

    def when(self, name: str) -> float | None:
        return next((at for at, each, _ in self.placed if each == name), None)

    def longest_pause(self, since: float) -> float:
        """Seconds in which nothing at all was placed."""
        times = [since, *(at for at, _, _ in self.placed if at >= since), self.now]
        return max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("tenant", ["few", "many"])
def test_huge_requests_are_placed_in_bounded_time(count: int, tenant: str) -> None:
    """Small ones fill the pool: no replica ever has room for a huge one by itself."""
    pool = Pool(rules=QueueRules(max_passed=4))
    pool.run(3.0)
    for n in range(count):
        pool.huge(f"huge-{n}", tenant)
    began = pool.now
    pool.run(4.0 + 3.0 * count)
    waits = [pool.when(f"huge-{n}") for n in range(count)]
    assert None not in waits, f"never placed: {waits}"
    assert pool.longest_pause(began) <= 1.5 * SERVICE_S, "no longer than one replica needs to drain"


def test_small_ones_of_a_third_tenant_are_served_while_a_huge_one_waits() -> None:
    pool = Pool(rules=QueueRules(max_passed=16))
    pool.run(5.0)
    pool.huge("huge")
    began = pool.now
    while pool.when("huge") is None and pool.now < began + 30.0:
        pool.step()
        if pool.now - began < 0.15:
            pool.small(200, "third")
    rate = sum(1 for at, _, _ in pool.placed if at > began) / (pool.now - began)
    assert rate > 85.0, f"three of four replicas serve {rate:.0f} a second"


def test_what_no_replica_could_ever_hold_is_refused_at_once_when_it_fits_nowhere() -> None:
    pool = Pool()
    pool.run(3.0)
    pool.huge("hopeless", need=120_000)
    pool.step()
    assert pool.refused == {"hopeless": "larger_than_kv_cache"}
    assert pool.state.queues[MODEL].queue.running > 0


def held(pool: Pool, **fields) -> Pool:
    """The pool when the first huge request has been passed often enough: small ones of its band wait for it."""
    placed = -1
    while placed != len(pool.placed):
        placed = len(pool.placed)
        pool.step(**fields)
        assert pool.now < 20.0
    return pool


def test_a_higher_band_does_not_wait_for_a_lower_ones_request() -> None:
    pool = Pool(replicas=1, rules=QueueRules(max_passed=4))
    pool.run(3.0, small=3)
    pool.huge("huge", tier="batch")
    before = len(held(pool, small=3, tier="batch").placed)
    pool.step(small=3, tier="priority")
    assert len(pool.placed) == before + 3
    pool.run(4.0, small=0)
    assert pool.when("huge") is not None


def test_after_those_of_higher_bands_it_has_its_turn_in_the_same_round() -> None:
    pool = Pool(replicas=1, rules=QueueRules(max_passed=4))
    pool.run(3.0, small=3, tier="batch")
    pool.huge("huge", tier="batch")
    held(pool, small=3, tier="batch")
    pool.ends = [(pool.now, name, where) for _, name, where in pool.ends]
    pool.step(small=2, tier="priority")
    assert pool.when("huge") == pool.now


def test_the_others_go_on_when_the_one_that_they_wait_for_leaves() -> None:
    pool = Pool(replicas=2, rules=QueueRules(max_passed=4))
    pool.run(3.0)
    pool.huge("huge", need=95_000)
    before = len(held(pool).placed)
    pool.state.cancel("api", "huge")
    pool.step()
    assert len(pool.placed) > before


def test_a_retry_that_fits_nowhere_goes_where_it_has_not_failed() -> None:
    pool = Pool(replicas=2, rules=QueueRules(max_passed=4))
    pool.run(3.0)
    pool.huge("retry", exclude=["host/r0"])
    began = pool.now
    pool.run(10.0)
    assert next(where for _, name, where in pool.placed if name == "retry") == "host/r1"
    assert pool.longest_pause(began) <= 1.5 * SERVICE_S


def test_many_retries_leave_room_to_the_others() -> None:
    """Those of a replica that has failed them and came back empty, while the others are full."""
    pool = Pool(replicas=2)
    pool.run(3.0)
    pool.ends = [end for end in pool.ends if end[2] != "host/r0"]
    for _, name, where in list(pool.placed):
        if where == "host/r0":
            pool.state.release("api", Released(name, where, 0, 0, 50), pool.now)
    for n in range(20):
        pool.huge(f"huge-{n}", need=60_000, exclude=["host/r0"])
    before = len(pool.placed)
    pool.step()
    assert len(pool.placed) >= before + 14


@pytest.mark.parametrize("need", [85_000, 97_000])
def test_what_never_drains_because_of_higher_bands_does_not_starve_its_own(need: int) -> None:
    """The higher band keeps so much of the only replica that the large one never fits."""
    placed = []
    for with_huge in (False, True):
        pool = Pool(replicas=1, rules=QueueRules(hold_s=5.0))
        for step in range(600):
            if with_huge and step == 5:
                pool.huge("huge", "large", need, deadline_s=50.0, tier="batch")
            pool.small(1 if step % (10 if need > 90_000 else 1) == 0 else 0, "steady")
            pool.step(small=int(step % 2 == 0), tier="batch")
        assert (pool.when("huge") is not None or "huge" in pool.refused) == with_huge
        batch = [at for at, name, _ in pool.placed if pool.tiers.get(name) == "batch"]
        placed.append(sum(1 for at in batch if at < 50.0))
    assert placed[1] >= placed[0] / 2, f"{placed[0]} of the band without it, {placed[1]} with it"
    assert max(after - before for before, after in pairwise(batch)) < 8.0, "it is given back when it is plain"


def test_a_wait_that_comes_to_nothing_ends_and_the_others_have_as_long() -> None:
    pool = Pool(replicas=1, rules=QueueRules(max_passed=4, hold_s=5.0))
    pool.run(3.0, small=3)
    pool.huge("endless", need=20_000)
    pool.step(small=0)
    pool.ends = [end for end in pool.ends if end[1] != "endless"]
    pool.huge("huge", need=95_000)
    waited: list[bool] = []
    began = len(pool.placed)
    for _ in range(300):
        before = len(pool.placed)
        pool.step(small=3)
        waited.append(len(pool.placed) == before)
    assert pool.when("huge") is None
    assert sum(waited) > 50, "it tries again"
    runs = [len(list(run)) for idle, run in groupby(waited) if idle]
    assert max(runs) <= 51
    assert len(pool.placed) - began >= 900 / 2


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_light_tenant_does_not_wait_beside_a_flood_of_huge_requests(replicas: int) -> None:
    waits = []
    for flood in (0, 10):
        pool = Pool(replicas=replicas)
        pool.huge_s, pool.small_tokens = 10.0, 100
        for step in range(600):
            for n in range(flood * (step % 100 == 5)):
                pool.huge(f"huge-{step}-{n}", "flood", 95_000)
            pool.step(small=replicas if step % 2 == 0 else 0, tenant="light")
        waits.append(median(at - pool.came[name] for at, name, _ in pool.placed if name in pool.came))
    assert waits[1] <= 2 * waits[0] + SERVICE_S, (
        f"without the flood {waits[0]:.1f} s, with it {waits[1]:.1f} s"
    )
    assert sum(1 for _, name, _ in pool.placed if name.startswith("huge")) >= 1


def test_a_silent_replica_is_not_counted_on() -> None:
    made = SchedulerState("epoch-1", 0.0, grace_s=0.0)
    made.heartbeat(beat(replica("a/r0", slots=3), agent="a"), 0.0)
    made.heartbeat(beat(replica("b/r0", slots=5), agent="b"), 0.0)
    made.submit("api", request(), 0.0)
    model_queue = made.queues[MODEL]
    assert (model_queue.pool.at(0.0).ready, model_queue.pool.at(0.0).slots) == (2, 8)
    made.heartbeat(beat(replica("b/r0", slots=5), agent="b"), 1.5)
    assert (model_queue.pool.at(1.9).ready, model_queue.pool.at(1.9).slots) == (2, 8)
    assert (model_queue.pool.at(2.2).ready, model_queue.pool.at(2.2).slots) == (1, 5)


def waiting_state(count: int, deadline_s: float, **fields) -> SchedulerState:
    made = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=SchedulerConfig(admission=OPEN))
    made.heartbeat(beat(replica(slots=1)), 0.0)
    queued = [
        AnnouncedRequest(request(f"r{n}", f"t{n % 7}", deadline_s, **fields), 1.0 + n / 1e6)
        for n in range(count)
    ]
    made.announce("api", Announce([], queued), 0.0)
    return made


def drained(made: SchedulerState, now: float, most: int) -> int:
    """Decisions until the scheduler state has nothing more to say; each dispatch says at most `most`."""
    total = 0
    while True:
        decisions = made.dispatch(now, random.Random(0))
        assert len(decisions) <= most
        total += len(decisions)
        if not made.unfinished:
            return total


def test_thousands_of_deadlines_at_once_are_told_in_parts() -> None:
    made = waiting_state(1_000, 5.0)
    assert drained(made, 0.0, 1) == 1
    made.heartbeat(beat(replica(slots=1)), 6.0)
    assert drained(made, 6.0, MAX_EXPIRED + 1) == 999
    assert made.waiting == 0


def test_a_model_that_goes_to_sleep_refuses_those_that_wait_in_parts() -> None:
    made = waiting_state(500, 50.0)
    drained(made, 0.0, 1)
    made.heartbeat(beat(replica(slots=1, state=ReplicaState.ASLEEP)), 0.1)
    assert drained(made, 0.1, MAX_REFUSED) == 499


def test_a_shrunken_pool_is_reviewed_in_parts_and_to_the_end() -> None:
    """Those that stay because they were let in before count as looked at too."""
    made = waiting_state(400, 50.0)
    made.heartbeat(beat(replica(slots=1), replica("host/r1", slots=60)), 0.0)
    made.submit("api", request("judged", "t0", 50.0), 0.0)
    drained(made, 0.0, 100)
    model_queue = made.queues[MODEL]
    looked: list[str] = []
    model_queue.waits.behind = lambda asked, *_, **__: looked.append(asked.request_id)  # type: ignore[method-assign,assignment]
    made.heartbeat(beat(replica(slots=1)), 0.1)
    rounds = 0
    while made.unfinished or not rounds:
        made.dispatch(0.1, random.Random(0))
        rounds += 1
    assert rounds > 300 // MAX_REVIEWED
    assert looked == ["judged"]


def test_a_retry_that_becomes_hopeless_while_it_waits_is_told_so() -> None:
    made, rng = SchedulerState("epoch-1", 0.0, grace_s=0.0), random.Random(0)
    made.heartbeat(beat(replica("host/r0", slots=1), replica("host/r1", slots=1)), 0.0)
    for _ in range(2):
        made.submit("api", request(), 0.0)
    made.submit("api", request("retry", exclude=["host/r0"]), 0.0)
    assert len(made.dispatch(0.0, rng)) == 2
    asleep = replica("host/r1", slots=1, state=ReplicaState.ASLEEP)
    made.heartbeat(beat(replica("host/r0", slots=1), asleep), 0.5)
    refusals = [decision.refusal for decision in made.dispatch(0.5, rng)]
    assert [(refusal.request_id, refusal.status) for refusal in refusals] == [("retry", 503)]
