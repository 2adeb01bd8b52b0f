"""Rollouts over random pools, failures and durations: their bounds hold, and each ends promoted or rolled back."""

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.rollout import Member, Move, Situation, Verdict, decide, steady_moves
from workers.rollouts import ENDED, RolloutState, Strategy
from workers.wire import ReplicaState

NOTHING = Verdict()
OLD, NEW = "", "0a1b2c3d"
AWAKE = (ReplicaState.READY, ReplicaState.LOADING, ReplicaState.FAILED, ReplicaState.DRAINING)


@dataclass
class Engine:
    """One replica of the played pool; its GPUs are its own."""

    name: str
    state: ReplicaState = ReplicaState.READY
    version: str = OLD
    ready_since: float = -1_000.0
    failures: int = 0
    phase: str = ""
    busy_until: float = -1.0
    after: tuple[str, ...] = ()
    surged: bool = False
    refusals: int = 0
    touched: bool = False
    """Whether the rollout has moved it since it was last available."""
    silent_until: float = 0.0

    def member(self, now: float) -> Member:
        return Member(
            self.name,
            self.version,
            self.state,
            phase=self.phase,
            ready_s=now - self.ready_since if self.state is ReplicaState.READY else 0.0,
            failures=self.failures,
            changing=bool(self.after),
            startable=True,
            surged=self.surged,
            silent=now < self.silent_until,
            refusals=self.refusals,
            detail="it broke",
        )


@dataclass
class Pool:
    """A pool that carries out moves after random times. `breaks`: how often an engine of the new version fails."""

    rng: random.Random
    strategy: Strategy
    engines: list[Engine]
    breaks: float = 0.0
    refuses: float = 0.0
    churn: float = 0.0
    """Share of the first 300 seconds in which a replica comes, goes or falls silent."""
    state: RolloutState = RolloutState.PROGRESSING
    now: float = 0.0
    changed_at: float = 0.0
    progressed_at: float = 0.0
    counts: tuple[int, ...] = ()
    promotes: bool = True
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = sum(engine.state is ReplicaState.READY for engine in self.engines)
        self.known = 0

    def tick(self, verdict: Verdict = NOTHING) -> None:
        self.now += 1.0
        if self.now <= 300.0 and self.rng.random() < self.churn:
            self._disturb()
        for engine in self.engines:
            self._advance(engine)
        members = [engine.member(self.now) for engine in self.engines]
        counts = (sum(m.version == NEW for m in members), sum(m.serves for m in members))
        if counts != self.counts:
            self.counts, self.progressed_at = counts, self.now
        self.known = max(self.known, len(members))
        situation = Situation(
            self.state, self.strategy, OLD, NEW, self.wanted, members, verdict,
            stalled_s=self.now - self.progressed_at, state_s=self.now - self.changed_at, known=self.known,
        )  # fmt: skip
        found = decide(situation)
        if found.state is not self.state:
            self.state, self.changed_at, self.progressed_at = found.state, self.now, self.now
            self.known = 0
            self.reasons.append(found.reason)
        self._carry_out(found.moves, situation)

    def _disturb(self) -> None:
        change = self.rng.choice(["come", "go", "fall silent"])
        if change == "come":
            state = self.rng.choice([ReplicaState.READY, ReplicaState.LOADING])
            self.engines.append(Engine(f"h/new-{self.now}", state, ready_since=self.now))
        elif self.engines:
            engine = self.rng.choice(self.engines)
            engine.silent_until = self.now + self.rng.randint(1, 60)
            if change == "go":
                self.engines.remove(engine)

    def _carry_out(self, moves: tuple[Move, ...], situation: Situation) -> None:
        by_name = {engine.name: engine for engine in self.engines}
        available = {member.name for member in situation.members if situation.is_available(member)}
        for engine in self.engines:
            engine.touched &= bool(engine.after) or engine.name not in available
        changes = [move for move in moves if move.action != "stop"]
        by_us = {each.name for each in self.engines if (each.touched and each.state in AWAKE) or each.after}
        rests = {member.name for member in situation.members if member.rests}
        fresh = {move.name for move in changes} - by_us
        one_of_a_roll_back = self.state is RolloutState.ROLLING_BACK and len(fresh) == 1
        serve = fresh - rests or {move.name for move in changes if move.action == "start"}
        if serve and not one_of_a_roll_back:
            assert len(by_us | fresh) <= self.strategy.max_surge + self.strategy.max_unavailable
        taken = sum(move.name in available for move in changes)
        if taken and not one_of_a_roll_back:
            live = sum(each.state in AWAKE or bool(each.after) for each in self.engines)
            assert len(available) - taken >= min(self.wanted, live) - self.strategy.max_unavailable
        started = [move for move in changes if move.name in rests]
        if any(move.action == "start" for move in started):
            awake = len(situation.members) - len(rests)
            assert awake + len(started) <= max(1, self.wanted + self.strategy.max_surge)
        assert len({move.name for move in moves}) == len(moves)
        for move in moves:
            engine = by_name[move.name]
            assert not engine.after, "a second command while one is under way"
            target = situation.target if move.action == "deploy" else engine.version
            engine.surged |= move.action == "start"
            engine.after = (move.action, target, engine.state)
            engine.busy_until = self.now + self.rng.randint(1, 5)
            if move.action == "deploy" and engine.state in AWAKE:
                engine.state = ReplicaState.DRAINING

    def _advance(self, engine: Engine) -> None:
        if engine.after and self.now >= engine.busy_until:
            (action, target, before), engine.after = engine.after, ()
            if self.rng.random() < self.refuses and self.state is not RolloutState.ROLLING_BACK:
                engine.state, engine.refusals = before, engine.refusals + 1
                return
            rested = before in (ReplicaState.STOPPED, ReplicaState.ASLEEP)
            engine.version, engine.failures, engine.refusals = target, 0, 0
            if action == "stop" or (action == "deploy" and rested):
                engine.state = ReplicaState.STOPPED
            else:
                engine.state, engine.busy_until = ReplicaState.LOADING, self.now + self.rng.randint(1, 20)
        elif engine.state in (ReplicaState.LOADING, ReplicaState.FAILED) and self.now >= engine.busy_until:
            if engine.version == NEW and self.rng.random() < self.breaks:
                engine.state, engine.failures = ReplicaState.FAILED, engine.failures + 1
                engine.busy_until = self.now + 5
            else:
                engine.state, engine.ready_since, engine.failures = ReplicaState.READY, self.now, 0

    def run(self, seconds: int = 4_000) -> RolloutState:
        for _ in range(seconds):
            self.tick(Verdict(enough=True))
            if self.state in ENDED:
                return self.state
        raise AssertionError(f"it has not ended: {self.state}, {self.engines}")


RESTS = st.sampled_from([ReplicaState.STOPPED, ReplicaState.ASLEEP])
POOLS = st.tuples(st.integers(0, 6), st.lists(RESTS, max_size=3))


@settings(max_examples=150, deadline=None)
@given(
    POOLS,
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.0, 0.5]),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.integers(0, 60),
    st.integers(0, 2**32),
)
def test_a_rollout_keeps_its_bounds_and_ends(
    pool: tuple[int, list[ReplicaState]],
    surge: int,
    unavailable: int,
    breaks: float,
    refuses: float,
    churn: float,
    percent: int,
    seed: int,
) -> None:
    awake, rests = pool
    strategy = Strategy(
        max_surge=surge, max_unavailable=unavailable, canary_percent=percent, promote_after_s=60.0,
        progress_deadline_s=200.0, canary_deadline_s=600.0,
    )  # fmt: skip
    engines = [Engine(f"h/{n}") for n in range(awake)]
    engines += [Engine(f"h/r{n}", state) for n, state in enumerate(rests)]
    state = RolloutState.CANARY if strategy.has_canary else RolloutState.PROGRESSING
    played = Pool(random.Random(seed), strategy, engines, breaks, refuses, churn, state)
    ended = played.run()
    if churn:
        return
    version = NEW if ended is RolloutState.PROMOTED else OLD
    assert {engine.version for engine in engines} <= {version}
    serving = sum(engine.state is ReplicaState.READY and not engine.after for engine in engines)
    assert serving >= awake if ended is RolloutState.PROMOTED else True
    if breaks == refuses == 0.0 and unavailable and engines and not strategy.has_canary:
        assert ended is RolloutState.PROMOTED
        assert serving == awake


def play(awake: int, rests: int = 0, **strategy: object) -> Pool:
    engines = [Engine(f"h/{n}") for n in range(awake)]
    engines += [Engine(f"h/r{n}", ReplicaState.STOPPED) for n in range(rests)]
    return Pool(random.Random(1), Strategy(**strategy), engines)  # type: ignore[arg-type]


def test_a_resting_replica_serves_so_that_none_is_missing() -> None:
    pool = play(3, rests=1)
    fewest = 3
    while pool.state not in ENDED:
        pool.tick()
        fewest = min(fewest, sum(engine.state is ReplicaState.READY for engine in pool.engines))
    assert (pool.state, fewest) == (RolloutState.PROMOTED, 3)
    assert [engine.state for engine in pool.engines].count(ReplicaState.STOPPED) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"phase": "unfit", "state": ReplicaState.FAILED}, "h/0 is not fit to serve: it broke"),
        ({"failures": 2, "state": ReplicaState.FAILED}, "h/0 failed 2 times: it broke"),
        ({"refusals": 2, "version": OLD}, "h/0 cannot get the version: it broke"),
    ],
)
def test_a_replica_that_fails_stops_the_rollout(change: dict[str, object], reason: str) -> None:
    pool = play(3)
    pool.engines[0].version = NEW
    for name, value in change.items():
        setattr(pool.engines[0], name, value)
    pool.engines[0].busy_until = 1_000.0
    pool.tick()
    assert (pool.state, pool.reasons) == (RolloutState.ROLLING_BACK, [reason])


def test_a_regression_rolls_back() -> None:
    pool = play(3)
    pool.tick()
    pool.tick(Verdict("2 of 10 requests failed", enough=True))
    assert pool.reasons == ["the new version is worse: 2 of 10 requests failed"]
    assert pool.run() is RolloutState.ROLLED_BACK
    assert {(engine.version, engine.state) for engine in pool.engines} == {(OLD, ReplicaState.READY)}


def test_the_last_old_replica_stays_until_the_new_version_has_served_a_while() -> None:
    members = [Member("a", NEW, ReplicaState.READY, ready_s=59.0), Member("b", OLD, ReplicaState.READY)]
    young = Situation(RolloutState.PROGRESSING, Strategy(bake_s=60.0, min_requests=50), OLD, NEW, 2, members)
    assert decide(young).moves == ()
    asked = msgspec.structs.replace(young, requests=50)
    old_enough = msgspec.structs.replace(
        young, members=[Member("a", NEW, ReplicaState.READY, ready_s=60.0), members[1]]
    )
    rolls_back = msgspec.structs.replace(young, state=RolloutState.ROLLING_BACK, members=[members[0]])
    alone = msgspec.structs.replace(young, members=[members[1]], wanted=1)
    for situation, name in ((asked, "b"), (old_enough, "b"), (rolls_back, "a"), (alone, "b")):
        assert [move.name for move in decide(situation).moves] == [name]


def test_a_rollout_without_progress_says_what_its_replica_said() -> None:
    left = "a is ready: 3 requests were still running after 600 s"
    members = [Member("a", OLD, ReplicaState.READY, detail=left), Member("b", NEW, ReplicaState.READY)]
    late = Situation(RolloutState.PROGRESSING, Strategy(), OLD, NEW, 2, members, stalled_s=1_801.0)
    assert decide(late).reason == f"no progress for 1800 s: a: {left}"


def test_a_canary_waits_for_an_admin_and_is_rolled_back_at_its_deadline() -> None:
    pool = play(4, canary_percent=50, canary_deadline_s=300.0, progress_deadline_s=100.0)
    pool.state = RolloutState.CANARY
    for _ in range(299):
        pool.tick()
    assert (pool.state, sum(engine.version == NEW for engine in pool.engines)) == (RolloutState.CANARY, 2)
    assert pool.run() is RolloutState.ROLLED_BACK
    assert pool.reasons[0] == "the canary was not promoted within 300 s"


def test_a_canary_of_the_only_replica_is_refused() -> None:
    pool = play(1, canary_percent=10)
    pool.state = RolloutState.CANARY
    for _ in range(30):
        pool.tick()
    assert pool.reasons[:1] == [
        "a canary needs two replicas: two that serve, or one that may be started beside"
    ]


def test_a_silent_replica_gets_no_command_and_ends_the_progress() -> None:
    strategy = Strategy(progress_deadline_s=60.0, bake_s=0.0)
    members = [
        Member("a", NEW, ReplicaState.READY, ready_s=99.0),
        Member("b", OLD, ReplicaState.READY, silent=True),
    ]
    waits = Situation(RolloutState.PROGRESSING, strategy, OLD, NEW, 2, members)
    assert decide(waits).moves == ()
    late = Situation(RolloutState.PROGRESSING, strategy, OLD, NEW, 2, members, stalled_s=61.0)
    assert decide(late).reason == "no progress for 60 s"


def test_replicas_of_new_hosts_get_the_promoted_version() -> None:
    members = [
        Member("a", NEW, ReplicaState.READY),
        Member("b", OLD, ReplicaState.LOADING),
        Member("c", OLD, ReplicaState.READY),
    ]
    assert [move.name for move in steady_moves(members, NEW)] == ["b"]
    members[1] = Member("b", NEW, ReplicaState.READY)
    assert [(move.name, move.action) for move in steady_moves(members, NEW)] == [("c", "deploy")]
    assert steady_moves(members[:2], NEW) == ()


def pool_of(awake: int, version: str = OLD, **facts: object) -> list[Member]:
    return [Member(f"h/{n}", version, ReplicaState.READY, ready_s=99.0, **facts) for n in range(awake)]  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [RolloutState.PROGRESSING, RolloutState.ROLLING_BACK])
def test_a_pool_that_has_grown_is_not_replaced_at_once(state: RolloutState) -> None:
    version = NEW if state is RolloutState.ROLLING_BACK else OLD
    assert len(decide(Situation(state, Strategy(), OLD, NEW, 2, pool_of(10, version))).moves) == 2


def test_a_lost_host_stops_neither_a_rollout_nor_its_roll_back() -> None:
    two = Situation(RolloutState.PROGRESSING, Strategy(), OLD, NEW, 4, pool_of(2))
    assert len(decide(two).moves) == 1
    strategy = Strategy(max_unavailable=0)
    back = Situation(RolloutState.ROLLING_BACK, strategy, OLD, NEW, 4, pool_of(3, NEW))
    assert decide(back).moves == ()
    assert len(decide(msgspec.structs.replace(back, stalled_s=21.0)).moves) == 1


def test_a_canary_goes_on_when_a_host_is_lost() -> None:
    strategy = Strategy(canary_percent=10)
    assert len(decide(Situation(RolloutState.CANARY, strategy, OLD, NEW, 4, pool_of(2))).moves) == 1


@pytest.mark.parametrize("members", [[], pool_of(1, NEW)])
def test_a_rollout_whose_replicas_are_not_heard_waits_for_them(members: list[Member]) -> None:
    strategy = Strategy()
    here = Situation(RolloutState.PROGRESSING, strategy, OLD, NEW, 2, members, known=2, stalled_s=299.0)
    assert decide(here).state is RolloutState.PROGRESSING
    back = Situation(RolloutState.ROLLING_BACK, strategy, OLD, OLD, 2, members, known=2, stalled_s=299.0)
    assert decide(back).state is RolloutState.ROLLING_BACK
    late = decide(msgspec.structs.replace(here, stalled_s=301.0))
    assert late.state is (RolloutState.PROMOTED if members else RolloutState.PROGRESSING)


def test_a_version_that_no_replica_has_started_is_not_promoted() -> None:
    pool = play(0, rests=2)
    pool.tick()
    assert [engine.after[0] for engine in pool.engines if engine.after] == ["deploy"]
    states = set()
    while pool.state not in ENDED:
        pool.tick()
        states |= {(engine.state, engine.version) for engine in pool.engines}
    assert pool.state is RolloutState.PROMOTED
    assert (ReplicaState.READY, NEW) in states
    assert "stop" in [engine.after[0] for engine in pool.engines if engine.after]


@pytest.mark.parametrize("state", [RolloutState.PROGRESSING, RolloutState.ROLLING_BACK])
def test_a_replica_that_a_person_drains_does_not_keep_a_rollout_from_its_end(state: RolloutState) -> None:
    there, other = (NEW, OLD) if state is RolloutState.PROGRESSING else (OLD, NEW)
    members = [*pool_of(2, there), Member("d", other, ReplicaState.DRAINING)]
    ended = decide(Situation(state, Strategy(), OLD, NEW, 2, members)).state
    assert ended in ENDED


@pytest.mark.parametrize(
    "other",
    [
        Member("x", NEW, ReplicaState.FAILED),
        Member("x", OLD, ReplicaState.DRAINING),
        Member("x", OLD, ReplicaState.READY, silent=True),
    ],
)
def test_one_replica_that_cannot_be_moved_does_not_keep_others_from_the_promoted_version(
    other: Member,
) -> None:
    assert len(steady_moves([*pool_of(2), other], NEW)) == 1
