"""Several models on the same GPUs: who is awake, over time, whatever their demand."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.autoscale.arrange import arrange
from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.claims import (
    LONGEST_TURN,
    MIN_STAY_S,
    TURN_SWITCHES,
    Claim,
    Desired,
    Rank,
    claim,
    precedence,
    turn_s,
)
from scheduler.core.autoscale.plan import changes
from scheduler.core.autoscale.spending import Spending
from scheduler.core.autoscale.state import (
    CreatingHost,
    DemandObservation,
    HostObservation,
    HostOption,
    ModelSpec,
    Observation,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from tests.unit.scheduler.autoscale.test_laws import NODE, TARGETS

LOOK_S, DRAIN_S, WAKE_S, DEADLINE_S = 10.0, 10.0, 20.0, 120.0
GPUS = ("0", "1")
LADDER = {Rung.SLEEP_1: RungFigures(WAKE_S, 100.0), Rung.STOPPED: RungFigures(90.0)}


def spec(name: str, *, usd: float = 1.0, low: int = 0, gpus: int = len(GPUS)) -> ModelSpec:
    capacity = msgspec.structs.replace(NODE, gpus=gpus)
    return ModelSpec(name, capacity, TARGETS, LADDER, low, 8, usd, drain_s=DRAIN_S)


@dataclass
class Shared:
    """One host on which every model has one replica, with its GPUs, and requests that come at constant rates."""

    specs: dict[str, ModelSpec]
    gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scaler = Autoscaler(self.specs)
        self.rungs = dict.fromkeys(self.specs, Rung.SLEEP_1)
        self.since = dict.fromkeys(self.specs, -900.0)
        self.ready_at: dict[str, float] = {}
        self.draining: dict[str, float] = {}
        self.due = dict.fromkeys(self.specs, 0.0)
        self.held: dict[str, list[float]] = {name: [] for name in self.specs}
        self.served: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self.wakes: list[tuple[float, str]] = []
        self.served_at: dict[str, list[float]] = {name: [] for name in self.specs}

    def of(self, name: str) -> tuple[str, ...]:
        return self.gpus.get(name, GPUS)

    def serves(self, name: str) -> bool:
        return self.rungs[name] is Rung.AWAKE and self.ready_at.get(name, 0.0) <= self.now

    def play(self, rates: dict[str, float], for_s: float) -> None:
        """Look every LOOK_S, and obey: a replica drains before it rests, and wakes when its GPUs are free."""
        end = self.now + for_s
        while self.now < end:
            self.now += LOOK_S
            self._move(rates)
            replicas = self._observed()
            demand = [self._demand(name, rates.get(name, 0.0)) for name in self.specs]
            self.scaler.observe(
                Observation(self.now, [HostObservation("h", 2, 900.0, True)], replicas, demand)
            )
            plan = self.scaler.plan()
            planned = Counter(
                gpu for row in plan.replicas if row.rung is Rung.AWAKE for gpu in self.of(row.model)
            )
            assert all(count == 1 for count in planned.values()), "two are awake on one GPU"
            for name, each in self.specs.items():
                awake = sum(row.rung is Rung.AWAKE for row in plan.replicas if row.model == name)
                assert awake >= each.min_awake, "below the minimum"
            for change in changes(plan, replicas):
                self._obey(change.model, change.after)

    def _move(self, rates: dict[str, float]) -> None:
        self.draining = {name: until for name, until in self.draining.items() if until > self.now}
        for name, rate in rates.items():
            self.due[name] += rate * LOOK_S
            self.held[name] += [self.now] * int(self.due[name])
        for name, waiting in self.held.items():
            if self.serves(name) and waiting:
                self.served[name] += len(waiting)
                self.served_at[name].append(self.now)
                waiting.clear()
            late = [at for at in waiting if self.now - at > DEADLINE_S]
            self.expired[name] += len(late)
            del waiting[: len(late)]

    def _demand(self, name: str, rate: float) -> DemandObservation:
        came, self.due[name] = int(self.due[name]), self.due[name] % 1.0
        waiting = len(self.held[name])
        return DemandObservation(name, came, 800, 600, 5.4e5, 100, 1.5e4, waiting, waiting * 800.0)

    def _observed(self) -> list[ReplicaObservation]:
        return [
            ReplicaObservation(
                f"h/{name}", name, "h", rung, self.now - self.since[name],
                max(0.0, self.ready_at.get(name, 0.0) - self.now) if rung is Rung.AWAKE else 0.0,
                name in self.draining, running=2 if self.served_at[name][-1:] == [self.now] else 0,
                gpu_ids=self.of(name),
            )
            for name, rung in self.rungs.items()
        ]  # fmt: skip

    def _obey(self, name: str, after: Rung) -> None:
        taken = {
            gpu
            for other in self.specs
            if other != name and (self.rungs[other] is Rung.AWAKE or other in self.draining)
            for gpu in self.of(other)
        }
        if after is Rung.AWAKE:
            if taken & set(self.of(name)):
                return
            self.wakes.append((self.now, name))
            self.ready_at[name] = self.now + WAKE_S
        elif self.rungs[name] is Rung.AWAKE:
            self.draining[name] = self.now + DRAIN_S
        self.rungs[name], self.since[name] = after, self.now


def test_demand_that_moves_takes_the_gpus_with_it_and_back() -> None:
    pool = Shared({"a": spec("a"), "b": spec("b")})
    for name in ("a", "b", "a"):
        pool.play({name: 2.0}, 400.0)
        assert pool.serves(name)
    assert [name for _, name in pool.wakes] == ["a", "b", "a"]
    assert pool.expired.total() == 0, "each switch was within the deadline of the requests"


def test_the_same_demand_for_one_model_never_switches() -> None:
    pool = Shared({"a": spec("a"), "b": spec("b", usd=50.0)})
    pool.play({"a": 2.0}, 3_600.0)
    assert pool.wakes == [(LOOK_S, "a")]


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.2, 1.0, 4.0]), st.sampled_from([0.0, 0.01, 1.0, 9.0])),
        min_size=2,
        max_size=4,
    )
)
def test_no_model_with_held_requests_starves_and_none_flaps(models: list[tuple[float, float]]) -> None:
    names = [f"m{number}" for number in range(len(models))]
    pool = Shared({name: spec(name, usd=usd) for name, (_, usd) in zip(names, models, strict=True)})
    hours = 3_600.0
    pool.play({name: rate for name, (rate, _) in zip(names, models, strict=True)}, hours)
    least_s = max(MIN_STAY_S, TURN_SWITCHES * 2 * (DRAIN_S + WAKE_S))
    longest_s = len(models) * (LONGEST_TURN * least_s + 2 * (DRAIN_S + WAKE_S))
    for name in names:
        ends = [0.0, *pool.served_at[name], hours]
        assert max(later - sooner for sooner, later in pairwise(ends)) <= longest_s, name
    waits = [later[0] - sooner[0] for sooner, later in pairwise(pool.wakes)]
    assert all(wait >= least_s for wait in waits[:-1])


def test_the_model_that_earns_more_has_the_longer_turns() -> None:
    pool = Shared({"a": spec("a", usd=3.0), "b": spec("b", usd=1.0)})
    pool.play({"a": 1.0, "b": 1.0}, 7_200.0)
    turns: dict[str, list[float]] = {"a": [], "b": []}
    for (began, name), (ended, _) in pairwise(pool.wakes):
        turns[name].append(ended - began)
    mean = {name: sum(each) / len(each) for name, each in turns.items()}
    assert 2.0 * mean["b"] < mean["a"] < LONGEST_TURN * mean["b"]


def test_a_minimum_is_never_given_up_for_held_requests() -> None:
    pool = Shared({"a": spec("a", low=1), "b": spec("b", usd=99.0)})
    pool.play({"b": 4.0}, 1_200.0)
    assert pool.serves("a")
    assert pool.served["b"] == 0


def test_models_on_gpus_of_their_own_do_not_compete() -> None:
    each = {name: spec(name, gpus=1) for name in ("a", "b")}
    pool = Shared(each, {"a": ("0",), "b": ("1",)})
    pool.play({"a": 1.0, "b": 1.0}, 600.0)
    assert sorted(name for _, name in pool.wakes) == ["a", "b"]
    assert pool.expired.total() == 0


def test_of_two_replicas_that_a_host_has_gpus_for_the_one_in_the_way_sleeps() -> None:
    """The host has two GPUs and two replicas of one GPU are awake at most; which of them is in the way matters."""
    each = {"a": spec("a", gpus=1), "b": spec("b", gpus=1), "c": spec("c", gpus=1)}
    pool = Shared(each, {"a": ("0",), "b": ("1",), "c": ("1",)})
    pool.play({"a": 1.0, "b": 1.0}, 600.0)
    pool.play({"a": 1.0, "c": 1.0}, 600.0)
    assert pool.serves("a")
    assert pool.serves("c")
    assert [name for _, name in pool.wakes].count("a") == 1


@pytest.mark.parametrize(
    ("nth", "needed", "low", "rank", "usd_per_s"),
    [(1, 2, 0, Rank.FIRST, 3.0), (2, 2, 0, Rank.OTHER, 3.0), (3, 2, 0, Rank.OTHER, 0.0), (1, 0, 0, Rank.OTHER, 0.0),
     (1, 0, 1, Rank.MINIMUM, 0.0), (2, 2, 1, Rank.OTHER, 3.0)],
)  # fmt: skip
def test_the_claim_of_a_replica(nth: int, needed: int, low: int, rank: Rank, usd_per_s: float) -> None:
    assert claim(spec("a", usd=2.0, low=low), Desired(needed, needed, 3.0), nth) == Claim(rank, usd_per_s)


def test_of_models_without_a_replica_the_longest_unserved_is_next() -> None:
    longest = Desired(1, 1, 0.1, held=1, unserved_s=50.0)
    richest = Desired(1, 1, 99.0, held=9, unserved_s=40.0)
    without = Desired(1, 1, 99.0, held=0, unserved_s=900.0)
    order = sorted([richest, without, longest], key=lambda each: precedence(spec("m"), each, 1))
    assert order == [without, richest, longest]


def test_an_idle_model_has_the_shortest_turn_whatever_it_earns() -> None:
    rich, poor = Claim(Rank.FIRST, 100.0), Claim(Rank.FIRST, 0.0)
    assert turn_s(rich, poor, 20.0, busy=False) == max(MIN_STAY_S, TURN_SWITCHES * 20.0)
    assert turn_s(rich, poor, 20.0, busy=True) == LONGEST_TURN * max(MIN_STAY_S, TURN_SWITCHES * 20.0)
    assert turn_s(poor, rich, 1.0, busy=True) == MIN_STAY_S


@pytest.mark.parametrize(("awake", "deeper"), [(True, Rung.STOPPED), (False, Rung.SLEEP_2)])
def test_a_sleeper_goes_to_level_2_only_while_its_gpus_are_free(awake: bool, deeper: Rung) -> None:
    ladder = {
        Rung.SLEEP_1: RungFigures(5.5, 350.0),
        Rung.SLEEP_2: RungFigures(45.0, 8.0),
        Rung.STOPPED: RungFigures(98.0),
    }
    specs = {name: msgspec.structs.replace(spec(name), ladder=ladder) for name in "ab"}
    host = HostObservation("h", 2, 2300.0, False, 20.0, "k")
    other = ReplicaObservation(
        "h/a", "a", "h", Rung.AWAKE if awake else Rung.STOPPED, 900.0, running=1, gpu_ids=GPUS
    )

    def rung(since_s: float) -> Rung:
        rows = [other, ReplicaObservation("h/b", "b", "h", Rung.SLEEP_1, since_s, gpu_ids=GPUS)]
        wanted = {"a": Desired(int(awake), int(awake), 1.0), "b": Desired(0, 0, 0.0)}
        found = arrange(specs, wanted, {}, [host], rows, Spending(specs, [host], rows, []))
        return next(row.rung for row in found.replicas if row.model == "b")

    assert rung(100.0) is Rung.SLEEP_1
    assert rung(900.0) is deeper


def test_a_model_that_waits_for_its_turn_buys_no_host_and_keeps_its_claim_while_one_comes() -> None:
    ladder = {**LADDER, Rung.DESTROYED: RungFigures(400.0)}
    kinds = (HostOption("k", 20.0),)
    specs = {name: msgspec.structs.replace(spec(name), ladder=ladder, kinds=kinds) for name in "ab"}
    host = HostObservation("h", 2, 900.0, False, 20.0, "k")

    def play(running: int, creating: list[CreatingHost]) -> tuple[float | None, float | None]:
        """When a host is created for b, and when b gets the GPUs of a."""
        scaler, created = Autoscaler(specs), None
        for now in range(0, 3_000, 10):
            replicas = [
                ReplicaObservation("h/a", "a", "h", Rung.AWAKE, now, running=running, gpu_ids=GPUS),
                ReplicaObservation("h/b", "b", "h", Rung.SLEEP_1, now + 900.0, gpu_ids=GPUS),
            ]
            demand = [
                DemandObservation("a", 2, 800, 600, 5.4e5, 100, 1.5e4),
                DemandObservation("b", 0, 800, 600, 5.4e5, 100, 1.5e4, 2, 1_600.0),
            ]
            scaler.observe(Observation(float(now), [host], replicas, demand, creating))
            plan = scaler.plan()
            created = now if plan.create and created is None else created
            if any(row.rung is Rung.AWAKE for row in plan.replicas if row.model == "b"):
                return created, now
        return created, None

    created, turned = play(0, [])
    assert created is None
    assert turned is not None
    coming = CreatingHost("new", "k", "b", 0.0, 20.0)
    created, with_one_coming = play(0, [coming])
    assert created is None
    assert with_one_coming == turned
    created, turned = play(1, [])  # its turn comes later than a host would
    assert created == LOOK_S
    assert play(1, [coming]) == (None, turned)
