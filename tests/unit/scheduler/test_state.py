"""The scheduler state as a state machine, and the rules that need a story."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler.core import state as state_module
from scheduler.core.decisions import Placed, Rejection
from scheduler.core.rules import AdmissionRules, QueueRules, SchedulerConfig
from scheduler.core.state import SchedulerState, clamped
from scheduler.messages import Announce, AnnouncedPlacement, AnnouncedRequest, TenantCounter
from scheduler.wire import Placement, Released
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import ReplicaState

CLIENTS = st.sampled_from(["api-1", "api-2"])


def new_state(*replicas, grace_s: float = 0.0, **options) -> SchedulerState:
    made = SchedulerState("epoch-1", 0.0, grace_s=grace_s, **options)
    if replicas:
        made.heartbeat(beat(*replicas), 0.0)
    return made


class SchedulerMachine(RuleBasedStateMachine):
    """Two clients, two replicas, everything that may happen in any order."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.seq = 0
        self.statuses = [replica("host/r0", slots=2), replica("host/r1", slots=3)]
        self.state = new_state(*self.statuses)
        self.waiting: dict[tuple[str, str], float] = {}
        self.held: dict[tuple[str, str], Placement] = {}

    def _dispatch(self) -> None:
        for decision in self.state.dispatch(self.now, self.rng):
            if isinstance(decision, Placed):
                key = (decision.client, decision.placement.request_id)
                assert key in self.waiting, "placed twice, or what does not wait"
                del self.waiting[key]
                self.held[key] = decision.placement
            else:
                key = (decision.client, decision.refusal.request_id)
                assert key in self.waiting, "refused twice, or what does not wait"
                if decision.refusal.reason == "queue_deadline":
                    assert self.waiting[key] <= self.now
                del self.waiting[key]

    @rule(
        client=CLIENTS,
        prompt=st.integers(0, 60_000),
        wait=st.floats(0.1, 30),
        blocks=st.lists(st.integers(0, 20), max_size=6),
        exclude=st.lists(st.sampled_from(["host/r0", "host/r1"]), max_size=2),
        tenant=st.sampled_from(["tenant-1", "tenant-2", "tenant-3"]),
        tier=st.sampled_from(["priority", "standard", "batch"]),
    )
    def submit(
        self,
        client: str,
        prompt: int,
        wait: float,
        blocks: list[int],
        exclude: list[str],
        tenant: str,
        tier: str,
    ) -> None:
        self.seq += 1
        name = f"r{self.seq}"
        wanted = request(
            name,
            tenant,
            deadline_s=wait,
            prompt_tokens=prompt,
            blocks=blocks,
            exclude=exclude,
            output_tokens=100,
            tier=tier,
        )
        self.waiting[client, name] = self.now + wait
        self.state.submit(client, wanted, self.now)
        self._dispatch()

    @rule(step=st.floats(0, 5), heard=st.booleans())
    def time_passes(self, step: float, heard: bool) -> None:
        self.now += step
        if heard:
            self.state.heartbeat(beat(*self.statuses), self.now)
        self.state.tick()
        self._dispatch()
        assert all(deadline > self.now for deadline in self.waiting.values())

    @rule(which=st.integers(0, 1), state=st.sampled_from(list(ReplicaState)), boot=st.integers(1, 2))
    def replica_changes(self, which: int, state: ReplicaState, boot: int) -> None:
        slots = which + 2
        self.statuses[which] = replica(f"host/r{which}", slots=slots, state=state, boot_id=f"boot-{boot}")
        self.state.heartbeat(beat(*self.statuses), self.now)
        self._dispatch()

    @rule(which=st.integers(0, 1))
    def agent_drops_a_replica_for_a_moment(self, which: int) -> None:
        self.state.heartbeat(beat(self.statuses[which]), self.now)
        self._dispatch()
        self.state.heartbeat(beat(*self.statuses), self.now)
        self._dispatch()

    @rule(pick=st.randoms(use_true_random=False), failed=st.booleans())
    def release(self, pick, failed: bool) -> None:
        if self.held:
            client, name = pick.choice(sorted(self.held))
            placement = self.held.pop((client, name))
            if failed:
                self.state.prefill_done(client, name, placement.replica_id, self.now)
                self.state.progress(client, name, placement.replica_id, 40, self.now)
            done = Released(name, placement.replica_id, failed=failed)
            assert self.state.release(client, done, self.now) is not None
            assert self.state.release(client, done, self.now) is None
            self._dispatch()

    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick) -> None:
        if self.waiting:
            key = pick.choice(sorted(self.waiting))
            del self.waiting[key]
            self.state.cancel(*key)
            self._dispatch()

    @rule(client=CLIENTS)
    def client_dies(self, client: str) -> None:
        self.state.drop_waiting(client)
        self.state.drop_placements(client, self.now)
        self.waiting = {key: at for key, at in self.waiting.items() if key[0] != client}
        self.held = {key: placement for key, placement in self.held.items() if key[0] != client}
        self._dispatch()

    @rule(client=CLIENTS)
    def client_announces_again(self, client: str) -> None:
        held = [
            AnnouncedPlacement(name, "tenant-1", MODEL, p.replica_id, p.boot_id, 100, p.hit_tokens, 50)
            for (owner, name), p in self.held.items()
            if owner == client
        ]
        queued = [
            AnnouncedRequest(request(name, deadline_s=deadline - self.now), 1.0)
            for (owner, name), deadline in self.waiting.items()
            if owner == client
        ]
        self.state.announce(client, Announce(held, queued), self.now)
        self._dispatch()

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        waiting = {queued.key for model_queue in self.state.queues.values() for queued in model_queue.queue}
        assert waiting == set(self.waiting)
        assert {key[:2]: key[2] for key in self.state.active} == {
            key: placement.replica_id for key, placement in self.held.items()
        }

    @invariant()
    def counters_are_the_sum_of_what_is_open(self) -> None:
        for name in ("host/r0", "host/r1"):
            entries = [entry for entry in self.state.active.values() if entry.replica_id == name]
            expected = (
                len(entries),
                sum(entry.uncached for entry in entries if not entry.prefilled),
                sum(entry.uncached + entry.produced for entry in entries),
            )
            load = self.state.fleet.replicas[name].load
            assert (load.running, load.unprefilled, load.kv_tokens) == expected
            pairs = sum(entry.pairs for entry in entries if not entry.prefilled)
            assert load.unprefilled_pairs == pytest.approx(pairs, rel=1e-6, abs=1e-6)

    @invariant()
    def no_replica_is_oversubscribed(self) -> None:
        for seen in self.state.fleet.replicas.values():
            assert seen.load.running <= seen.slots


TestSchedulerState = SchedulerMachine.TestCase
TestSchedulerState.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def story(seed: int) -> list[str]:
    """One fixed sequence of events; its decisions as text."""
    made, rng, order = (
        new_state(*(replica(f"host/r{n}") for n in range(5))),
        random.Random(seed),
        random.Random(7),
    )
    decisions: list[str] = []
    held: list[Placement] = []
    for n in range(200):
        made.submit("api", request(f"r{n}", blocks=[n % 7, n % 3]), n * 0.01)
        for decision in made.dispatch(n * 0.01, rng):
            assert isinstance(decision, Placed)
            held.append(decision.placement)
            decisions.append(f"{decision.placement.request_id}@{decision.placement.replica_id}")
        if len(held) > 15:
            done = held.pop(order.randrange(len(held)))
            made.release("api", Released(done.request_id, done.replica_id), n * 0.01)
    return decisions


def test_a_placement_has_its_band_as_priority_where_the_engine_orders_by_it() -> None:
    bands = {"priority": 0, "standard": 1, "unknown": 1, "batch": 2}
    for by_priority in (False, True):
        status = replica(slots=8)
        own = msgspec.structs.replace(status.capacity, by_priority=by_priority)
        made = new_state(msgspec.structs.replace(status, capacity=own))
        for tier in bands:
            made.submit("api", request(tier, tier=tier), 0.0)
        placed = [each for each in made.dispatch(0.0, random.Random(1)) if isinstance(each, Placed)]
        got = {each.placement.request_id: each.placement.priority for each in placed}
        assert got == (bands if by_priority else dict.fromkeys(bands))


def test_the_same_events_and_random_numbers_give_the_same_decisions() -> None:
    assert story(1) == story(1)
    assert story(1) != story(2)


def only(decisions):
    assert len(decisions) == 1
    return decisions[0]


@pytest.mark.parametrize("noted", ["first token", "progress"])
def test_prompts_of_answers_in_one_piece_do_not_close_a_replica(noted: str) -> None:
    """Their predicted tokens end their prefill: nothing else reports it before the answer has ended."""
    made, rng, placed = new_state(replica(slots=100, kv=10_000_000)), random.Random(0), 0
    for n in range(30):
        made.heartbeat(beat(replica(slots=100, kv=10_000_000), seq=n + 2), float(n))
        made.submit("api", request(f"r{n}", prompt_tokens=4_000, deadline_s=1e6), float(n))
        for decision in made.dispatch(float(n), rng):
            assert isinstance(decision, Placed)
            placed += 1
            where = ("api", decision.placement.request_id, decision.placement.replica_id)
            if noted == "first token":
                made.prefill_done(*where, n + 0.45)
            else:
                made.progress(*where, 1, n + 0.45)
    assert placed == 30
    assert not any(each.load.unprefilled for each in made.fleet.replicas.values())
    learnt = [each.meter.estimate.count > 0 for each in made.fleet.replicas.values()]
    assert learnt == [noted == "first token"]


def test_agents_that_have_not_reported_yet_are_waited_for() -> None:
    made, rng = new_state(grace_s=3.0), random.Random(0)
    made.submit("api", request("r1"), 0.0)
    assert made.dispatch(0.0, rng) == []
    made.heartbeat(beat(replica()), 1.0)
    assert isinstance(only(made.dispatch(1.0, rng)), Placed)
    late = new_state(grace_s=3.0)
    late.submit("api", request("r1"), 0.0)
    late.dispatch(0.0, rng)
    late.tick()
    assert only(late.dispatch(3.0, rng)).refusal.reason == "no_replica"


@pytest.mark.parametrize(
    ("state", "reason"), [(ReplicaState.ASLEEP, "no_warm_replica"), (ReplicaState.LOADING, None)]
)
def test_a_loading_replica_is_waited_for_and_a_sleeping_one_is_not(state, reason) -> None:
    made = new_state(replica(state=state))
    made.submit("api", request(), 0.0)
    decisions = made.dispatch(0.0, random.Random(0))
    if reason is None:
        assert decisions == []
    else:
        assert only(decisions).refusal.reason == reason


def test_a_tenant_over_its_share_is_told_429_and_others_503() -> None:
    made, rng = new_state(replica(slots=2)), random.Random(0)
    for n in range(2):
        made.submit("api", request(f"hog-{n}", tenant="hog"), 0.0)
    assert len(made.dispatch(0.0, rng)) == 2
    made.submit("api", request("hog-late", tenant="hog", deadline_s=5), 0.0)
    made.submit("api", request("other", tenant="other", deadline_s=6), 0.0)
    assert made.dispatch(0.0, rng) == []
    made.heartbeat(beat(replica(slots=2)), 5.0)
    first = only(made.dispatch(5.0, rng))
    assert (first.refusal.status, first.refusal.reason, first.refusal.position) == (429, "tenant_share", 2)
    second = only(made.dispatch(6.0, rng))
    assert (second.refusal.status, second.refusal.reason, second.refusal.position) == (
        503,
        "queue_deadline",
        1,
    )
    assert second.refusal.warm_replicas == 1
    assert second.refusal.predicted_wait_s > 0
    assert second.refusal.retry_after_s >= 1


def test_the_queue_is_bounded_for_all_and_for_each() -> None:
    made, rng = (
        new_state(
            replica(state=ReplicaState.LOADING), config=SchedulerConfig(queue=QueueRules(max_waiting=10))
        ),
        random.Random(0),
    )
    made.submit("api", request("other", tenant="other"), 0.0)
    for n in range(6):
        made.submit("api", request(f"r{n}", tenant="hog"), 0.0)
    refusal = only(made.dispatch(0.0, rng)).refusal
    assert (refusal.status, refusal.reason) == (429, "tenant_share")
    for n in range(6):
        made.submit("api", request(f"s{n}", tenant=f"tenant-{n}"), 0.0)
    refusals = [decision.refusal for decision in made.dispatch(0.0, rng) if isinstance(decision, Rejection)]
    assert [(refusal.status, refusal.reason) for refusal in refusals] == [(503, "queue_full")] * 2


def test_one_with_excluded_replicas_does_not_hold_up_those_behind_it() -> None:
    made, rng = new_state(replica("host/r0", slots=2), replica("host/r1", slots=1)), random.Random(0)
    made.submit("api", request("a", exclude=["host/r0"]), 0.0)
    made.dispatch(0.0, rng)
    made.submit("api", request("stuck", exclude=["host/r0"]), 0.0)
    made.submit("api", request("free"), 0.0)
    placed = only(made.dispatch(0.0, rng))
    assert (placed.placement.request_id, placed.placement.replica_id) == ("free", "host/r0")


def test_an_announced_queue_keeps_its_order_of_arrival() -> None:
    made, rng = new_state(replica(slots=1)), random.Random(0)
    made.submit("new", request("newcomer"), 10.0)
    made.announce("old", Announce([], [AnnouncedRequest(request("veteran"), 1.0)]), 10.0)
    made.heartbeat(beat(replica(slots=1)), 10.0)
    placed = only(made.dispatch(10.0, rng))
    assert placed.placement.request_id == "veteran"
    assert placed.placement.queue_s == 1.0


def test_an_announced_queue_is_no_growth() -> None:
    """It arrives at once, however long its requests have waited: a restart is no overload."""
    made = new_state(replica(slots=1))
    ages = [12.0 * (200 - n) / 200 for n in range(200)]
    held = [AnnouncedRequest(request(f"r{n}"), age_s) for n, age_s in enumerate(ages)]
    made.announce("old", Announce([], held), 10.0)
    made.submit("old", request("later"), 12.0)
    assert made.waiting == 201
    assert not made.queues[MODEL].queue.band("standard").growth.sustained


def test_placements_announced_before_the_agent_is_heard_count_when_it_is() -> None:
    made, rng = new_state(grace_s=3.0), random.Random(0)
    held = AnnouncedPlacement("r1", "tenant-1", MODEL, "host/r0", "boot-1", 100, 0, 50)
    made.announce("api", Announce([held], [AnnouncedRequest(request("r2"), 0.1)]), 0.0)
    made.heartbeat(beat(replica(slots=1)), 0.0)
    assert made.dispatch(0.0, rng) == []
    made.release("api", Released("r1", "host/r0"), 0.2)
    assert isinstance(only(made.dispatch(0.0, rng)), Placed)


def test_a_restarted_engine_has_an_empty_cache() -> None:
    made, rng = new_state(replica()), random.Random(0)
    made.submit("api", request("a", blocks=[1, 2]), 0.0)
    made.dispatch(0.0, rng)
    assert len(made.fleet.replicas["host/r0"].prefix) == 2
    made.heartbeat(beat(replica(boot_id="boot-2")), 0.1)
    assert len(made.fleet.replicas["host/r0"].prefix) == 0


def test_silent_hosts_are_forgotten_in_the_end() -> None:
    made = new_state(replica())
    assert not made.forget_silent(59.0, 60.0)
    assert made.forget_silent(61.0, 60.0)
    assert made.fleet.replicas == {}


@pytest.mark.parametrize(
    ("given", "kept"), [(float("nan"), 0.0), (float("inf"), 600.0), (-1.0, 0.0), (1e9, 600.0), (5.0, 5.0)]
)
def test_figures_are_brought_into_range(given: float, kept: float) -> None:
    made = clamped(request(deadline_s=given, prompt_tokens=-1, output_tokens=-1, blocks=list(range(10_000))))
    assert made.deadline_s == kept
    assert (made.prompt_tokens, made.output_tokens, len(made.blocks)) == (0, 0, 4096)


@given(seed=st.integers(0, 10_000), oldest_every=st.integers(1, 6), slack=st.sampled_from([0.0, 5_000.0]))
@settings(max_examples=25, deadline=None)
def test_nobody_starves_while_capacity_frees(seed: int, oldest_every: int, slack: float) -> None:
    """Forty wait, many of them late, some too large to fit beside others, while a rival keeps asking."""
    rng = random.Random(seed)
    queue = QueueRules(oldest_every=oldest_every, slack=slack, max_passed=4)
    made = new_state(config=SchedulerConfig(queue=queue, admission=AdmissionRules(enabled=False)))
    pool = beat(replica("host/r0", slots=2, kv=20_000))
    wanted = set()
    for n in range(40):
        prompt = 15_000 if n % 9 == 0 else rng.randrange(10, 500)
        made.submit("api", request(f"r{n}", f"t{n % 4}", 600.0, prompt_tokens=prompt), 0.0, rng.uniform(0, 5))
        wanted.add(f"r{n}")
    held: list[Placement] = []
    now, placed = 0.0, 0
    while wanted:
        now += 2.0
        made.heartbeat(pool, now)
        made.submit("api", request(f"rival-{now}", f"t{rng.randrange(4)}", 600.0), now)
        made.submit("api", request(f"other-{now}", "rival", 600.0), now)
        for decision in made.dispatch(now, rng):
            assert isinstance(decision, Placed)
            held.append(decision.placement)
            wanted.discard(decision.placement.request_id)
            placed += 1
        while held:
            done = held.pop()
            made.prefill_done("api", done.request_id, done.replica_id, now)
            made.release("api", Released(done.request_id, done.replica_id, 100, 0, 50), now)
        assert placed <= 40 * 6 * 8, f"still waiting: {sorted(wanted)}"
        assert now < 590, f"still waiting: {sorted(wanted)}"


def test_one_that_fits_nowhere_is_overtaken_a_bounded_number_of_times() -> None:
    """By three at least, and by as much work as its own: 3,100 weighted tokens, 510 of each small one."""
    rules = SchedulerConfig(queue=QueueRules(max_passed=3, oldest_every=1))
    made, rng = new_state(replica(slots=16, kv=10_000), config=rules), random.Random(0)
    made.submit("api", request("runs", "t1", prompt_tokens=6_500), 0.0)
    made.dispatch(0.0, rng)
    made.submit("api", request("large", "t1", prompt_tokens=3_000), 0.1)
    placed_first = []
    for n in range(8):
        made.submit("api", request(f"small-{n}", "t1", prompt_tokens=10, output_tokens=250), 0.2)
        placed_first += [decision.placement.request_id for decision in made.dispatch(0.2, rng)]
    assert placed_first == [f"small-{n}" for n in range(7)]


def test_one_that_fits_nowhere_is_not_overtaken_more_often_because_all_come_at_once() -> None:
    rules = SchedulerConfig(queue=QueueRules(max_passed=3, oldest_every=1))
    made, rng = new_state(replica(slots=16, kv=10_000), config=rules), random.Random(0)
    made.submit("api", request("runs", "t1", prompt_tokens=6_500), 0.0)
    made.dispatch(0.0, rng)
    made.submit("api", request("large", "t1", prompt_tokens=3_000), 0.1)
    for n in range(8):
        made.submit("api", request(f"small-{n}", "t1", prompt_tokens=10, output_tokens=250), 0.2)
    assert len(made.dispatch(0.2, rng)) == 7
    assert made.dispatch(0.3, rng) == []


@pytest.mark.parametrize("leave", ["cancel", "drop_waiting"])
def test_who_waited_behind_one_that_left_is_placed_at_once(leave: str) -> None:
    rules = SchedulerConfig(queue=QueueRules(fair=False, max_skips=0, oldest_every=1))
    made, rng = SchedulerState("epoch-1", 0.0, grace_s=0.0, config=rules), random.Random(0)
    made.heartbeat(beat(replica(slots=4, kv=1000)), 0.0)
    for n, (client, tokens) in enumerate((("api", 500), ("api", 800), ("other", 100))):
        made.submit(client, request(f"r{n}", prompt_tokens=tokens, output_tokens=1), 0.0)
    assert [decision.placement.request_id for decision in made.dispatch(0.0, rng)] == ["r0"]
    if leave == "cancel":
        made.cancel("api", "r1")
    else:
        made.drop_waiting("api")
    assert [decision.placement.request_id for decision in made.dispatch(0.01, rng)] == ["r2"]


def charged(made: SchedulerState, tenant: str = "tenant-1") -> float:
    return sum(flow.counter for band in made.queues[MODEL].queue.bands for flow in [band.flow(tenant)])


def running(made: SchedulerState, **fields) -> tuple[Placement, AnnouncedPlacement]:
    """A request placed on the only replica, and how its client announces it."""
    asked = request("r1", prompt_tokens=1_000, output_tokens=100, blocks=[1, 2, 3])
    made.submit("api", asked, 0.0)
    placement = only(made.dispatch(0.0, random.Random(0))).placement
    told = {"produced": 20, "prefilled": True, "age_s": 5.0, "epoch": made.epoch} | fields
    return placement, AnnouncedPlacement(
        "r1", "tenant-1", MODEL, placement.replica_id, placement.boot_id, 1_000, 0, 100, **told
    )


@pytest.mark.parametrize("orphaned", [False, True])
@pytest.mark.parametrize("began", [False, True])
def test_announcing_again_charges_nobody_twice_and_keeps_what_is_cached(orphaned: bool, began: bool) -> None:
    made = new_state(replica(kv=1_000_000))
    placement, held = running(made, prefilled=began, produced=20 if began else 0)
    assert charged(made) == 1_200.0
    for round_ in range(3):
        if orphaned:
            made.drop_waiting("api")
            made.drop_placements("api", 4.0 + round_)
            assert charged(made) == (1_040.0 if began and round_ else 1_000.0), (
                "its prompt, and what was seen"
            )
        made.announce("api", Announce([held], []), 5.0 + round_)
        assert charged(made) == 1_200.0
        assert list(made.active) == [("api", "r1", "host/r0")]
        assert len(made.fleet.replicas["host/r0"].prefix) == 3
    made.release("api", Released("r1", placement.replica_id, 1_000, 400, 30), 9.0)
    assert charged(made) == 660.0
    assert made.fleet.replicas["host/r0"].load.running == 0
    assert made.queues[MODEL].queue.running == 0


def test_an_announcement_in_several_frames_closes_what_none_of_them_names() -> None:
    made = new_state(replica(kv=10_000_000, slots=8))
    for number in range(5):
        made.submit("api", request(f"r{number}"), 0.0)
    made.dispatch(0.0, random.Random(0))
    held = [
        AnnouncedPlacement(f"r{number}", "tenant-1", MODEL, "host/r0", "boot-1", 100, 0, 50)
        for number in range(4)
    ]
    before = charged(made)
    made.announce("api", Announce(held[:2], [], placements_follow=True), 1.0)
    assert len(made.active) == 5, "the rest is not named yet"
    made.announce("api", Announce(held[2:], [], more=True), 1.0)
    assert {key[1] for key in made.active} == {"r0", "r1", "r2", "r3"}
    assert charged(made) < before
    made.announce("api", Announce(held[:1], [], placements_follow=True), 2.0)
    made.drop_placements("api", 3.0)
    made.announce("api", Announce([], [], more=True), 4.0)
    assert not made.active


def test_what_is_no_longer_announced_is_over_and_the_rest_goes_on() -> None:
    made = new_state(replica(kv=1_000_000))
    _, held = running(made)
    made.submit("api", request("r2"), 0.0)
    made.dispatch(0.0, random.Random(0))
    made.announce("api", Announce([held], []), 1.0)
    assert list(made.active) == [("api", "r1", "host/r0")]
    entry = made.active["api", "r1", "host/r0"]
    assert (entry.prefilled, entry.produced, entry.placed_at) == (True, 20, 0.0)
    assert made.fleet.reports.get(MODEL) is None, "nobody saw when its first token came"


def test_what_lapsed_is_remembered_for_a_while_and_boundedly() -> None:
    made = new_state(replica(slots=64))
    for n in range(10):
        made.submit("api", request(f"r{n}"), 0.0)
    made.dispatch(0.0, random.Random(0))
    made.orphans.limit = 4
    made.drop_placements("api", 1.0)
    assert len(made.orphans) == 4
    made.forget_silent(1.0 + state_module.ORPHAN_TTL_S + 0.1, 1e9)
    assert len(made.orphans) == 0


def test_models_that_nobody_serves_are_forgotten_when_nobody_waits_for_them() -> None:
    made, rng = new_state(replica()), random.Random(0)
    running(made)
    counters = [TenantCounter("t1", f"adopted-{n}", 5.0) for n in range(20)]
    held = [AnnouncedPlacement(f"r{n}", "t1", f"held-{n}", "x/r0", "b", 10, 0, 5) for n in range(20)]
    made.announce("other", Announce(held, [], counters), 0.0)
    for n in range(20):
        made.submit("other", request(f"m{n}", model=f"made-up-{n}"), 0.0)
    assert all(isinstance(decision, Rejection) for decision in made.dispatch(0.0, rng))
    later = state_module.RESTORED_COUNTERS_S + 1.0
    made.heartbeat(beat(replica()), later)
    made.forget_silent(later, 60.0)
    assert sorted(made.queues) == sorted([MODEL, *(f"held-{n}" for n in range(20))])
    made.drop_placements("other", later)
    made.forget_silent(later, 60.0)
    assert list(made.queues) == [MODEL]
    assert charged(made) == 1_200.0


def test_announced_counters_wait_longer_for_an_agent_than_anybody_is_made_to() -> None:
    made = new_state(grace_s=3.0)
    made.announce("api", Announce([], [], [TenantCounter("tenant-1", MODEL, 500.0)]), 0.0)
    made.announce("late", Announce([], [], [TenantCounter("tenant-1", "never served", 5.0)]), 10.0)
    made.forget_silent(state_module.RESTORED_COUNTERS_S - 0.1, 60.0)
    assert charged(made) == 500.0
    made.heartbeat(beat(replica()), state_module.RESTORED_COUNTERS_S)
    made.forget_silent(state_module.RESTORED_COUNTERS_S + 9.9, 60.0)
    assert sorted(made.queues) == ["never served", MODEL]
    made.forget_silent(state_module.RESTORED_COUNTERS_S + 10.1, 60.0)
    assert list(made.queues) == [MODEL]
    assert charged(made) == 500.0


def test_the_number_of_model_queues_and_of_announced_placements_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "MAX_MODEL_QUEUES", 5)
    monkeypatch.setattr(state_module, "MAX_ACTIVE", 3)
    made = new_state(grace_s=3.0)
    counters = [TenantCounter("t1", f"adopted-{n}", 5.0) for n in range(20)]
    held = [AnnouncedPlacement(f"r{n}", "t1", f"held-{n % 9}", "x/r0", "b", 10, 0, 5) for n in range(20)]
    made.announce("other", Announce(held, [], counters[:4]), 0.0)
    made.announce("other", Announce(held, [], counters, more=True), 0.0)
    for n in range(20):
        made.submit("other", request(f"m{n}", model=f"made-up-{n}"), 0.0)
    assert len(made.queues) == 5
    assert len(made.active) <= 3
    refused = made.dispatch(0.0, random.Random(0))
    assert {decision.refusal.reason for decision in refused} == {"no_replica"}
    assert len(refused) == 20
    made.heartbeat(beat(replica()), 1.0)
    made.submit("api", request("real"), 1.0)
    assert only(made.dispatch(1.0, random.Random(0))).placement.request_id == "real"
