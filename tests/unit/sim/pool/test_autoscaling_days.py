"""Days under scaling policies: conservation, cost below the static peak at equal service, caches and contracts."""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from scheduler.core.autoscale.capacity import Load, predict
from scheduler.core.autoscale.state import ModelSpec, Observation, Rung
from sim.pool.autoscaling import POLICIES, penstock_scaler
from sim.pool.autoscaling_load import Arrival, Day, Lengths, arrivals, diurnal
from sim.pool.autoscaling_policies import Static, count_rungs
from sim.pool.autoscaling_replica import FluidReplica, RunningRequest
from sim.pool.autoscaling_result import DayResult
from sim.pool.autoscaling_scenario import Scenario, play, single_model, two_models
from tests.unit.scheduler.autoscale.test_laws import NODE, TARGETS

SPEC = ModelSpec("m", NODE, TARGETS, {})
LENGTHS = Lengths(prompt=9_000, output=400)


def scenario(workload: str = "office", *, peak: float = 4.0, wake_s: float = 30.0) -> Scenario:
    return single_model(
        workload, SPEC, day_s=5_400.0, peak_rps=peak, lengths=LENGTHS, replicas=10, wake_s=wake_s
    )


@cache
def office_day() -> Sequence[Arrival]:
    return scenario().arrivals(1)


@cache
def our_day() -> DayResult:
    return play(scenario(), penstock_scaler(scenario(), 0.02), office_day())


def test_the_same_seed_gives_the_same_day_and_rates_follow_the_curve() -> None:
    day = {"m": (Day(diurnal, 5.0, 3_600.0, weather=0.0), LENGTHS)}
    rows = arrivals([(name, *pair) for name, pair in day.items()], 7)
    assert rows == arrivals([(name, *pair) for name, pair in day.items()], 7)
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    expected = 5.0 * 3_600.0 * sum(diurnal(n / 1000) for n in range(1000)) / 1000
    assert len(rows) == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_a_lone_request_takes_what_the_step_model_says() -> None:
    replica = FluidReplica(NODE)
    run = RunningRequest(Arrival(0, 10.0, "m", 13_500, 401, 1, 0), 0)
    replica.add(run, 10.0)
    first = replica.next_at()
    assert first == pytest.approx(11.0)
    assert replica.step(first) == []
    done = replica.next_at()
    step = NODE.step_base_s + NODE.step_per_seq_s + NODE.step_per_kv_token_s * (13_500 + 200.5)
    assert done - first == pytest.approx(400 * step / NODE.accept_per_step)
    assert replica.step(done) == [run]
    assert replica.running == 0
    assert replica.cached(Arrival(1, 0.0, "m", 20_000, 1, 1, 13_901)) == 13_901


def test_mean_time_per_token_under_load_is_what_the_law_predicts() -> None:
    """One replica under Poisson prompts of one length: M/D/1 with decoding in the gaps."""
    day = [("m", Day(lambda _: 1.0, 0.4, 20_000.0, weather=0.0), Lengths(9_000, 0.01, 1_500, 0.01, 0.0))]
    replica, ended = FluidReplica(NODE), []
    for arrival in arrivals(day, 3):
        while replica.next_at() <= arrival.at:
            now = replica.next_at()
            ended += [(run, now) for run in replica.step(now)]
        replica.add(RunningRequest(arrival, 0), arrival.at)
    tpot = sum((now - run.first_at) / 1_499 for run, now in ended) / len(ended)
    law = predict(Load(0.4, 9_000, 9_000, 1_500, 0.0), 1, NODE, TARGETS)
    assert tpot == pytest.approx(law.tpot_s, rel=0.15)
    ttft = sum(run.first_at - run.arrival.at for run, _ in ended) / len(ended)
    assert ttft == pytest.approx(law.ttft_s, rel=0.15)


@pytest.mark.parametrize("name", ["hpa", "wva"])
def test_every_request_is_answered_whatever_the_policy_does(name: str) -> None:
    policy = POLICIES[name]
    result = play(
        scenario(),
        policy.make(scenario(), math.sqrt(policy.loosest_knob * policy.tightest_knob), 1),
        office_day(),
    )
    assert len(result.ttft_s) == len(office_day())
    assert min(result.ttft_s) > 0.0


def test_ours_keeps_as_many_promises_as_the_static_peak_for_much_less() -> None:
    """The static peak is the smallest number that keeps 99 %; the day is sixteen times as fast as a real one."""
    static = DayResult()
    for count in range(5, 11):
        static = play(scenario(), Static(scenario().specs, count), office_day())
        if static.attainment >= 0.99:
            break
    mine = our_day()
    assert len(mine.ttft_s) == len(office_day())
    assert mine.attainment >= 0.99
    assert mine.gpu_s < 0.8 * static.gpu_s


class YoungestFirst:
    """Ours up, but down like a deployment: whoever was woken last goes first, whatever its cache holds."""

    name = "youngest"

    def __init__(self, within: Scenario) -> None:
        self._ours, self._specs = penstock_scaler(within, 0.02), within.specs

    def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
        """Our numbers, their choice."""
        self._ours.evaluate(seen)
        plan = self._ours.plan
        assert plan is not None
        return {
            name: rung
            for row in plan.models
            for name, rung in count_rungs(
                self._specs[row.model], [one for one in seen.replicas if one.model == row.model], row.target
            ).items()
        }


def test_scaling_down_does_not_kill_the_hot_cache() -> None:
    """Of the replicas awake, the one that goes never had a hit rate above the pool's median."""

    class Watched:
        name = "watched"

        def __init__(self) -> None:
            self.inner = penstock_scaler(scenario(), 0.02)
            self.retired = 0

        def evaluate(self, seen: Observation) -> Mapping[str, Rung]:
            rungs = self.inner.evaluate(seen)
            serving = [one for one in seen.replicas if one.rung is Rung.AWAKE and not one.ready_in_s]
            gone = [one for one in serving if rungs[one.replica_id] is not Rung.AWAKE]
            kept = [one for one in serving if rungs[one.replica_id] is Rung.AWAKE]
            for one in gone:
                self.retired += 1
                assert all(one.cache.hit_tokens_per_s <= other.cache.hit_tokens_per_s for other in kept)
            return rungs

    watched = Watched()
    play(scenario(), watched, office_day())
    assert watched.retired >= 2


def test_choosing_by_cache_hits_at_least_as_much_as_choosing_by_age() -> None:
    mine = our_day()
    youngest = play(scenario(), YoungestFirst(scenario()), office_day())
    assert mine.hit_rate >= youngest.hit_rate - 0.005


def test_contracted_hosts_swap_who_is_awake_when_the_days_of_two_models_are_opposite() -> None:
    """Half the hosts of a fixed partition serve both models, one at a time."""
    chat, code = SPEC, ModelSpec("code", NODE, TARGETS, {}, usd_per_request=1.0)
    pool = two_models(chat, code, day_s=5_400.0, peak_rps=(3.0, 3.0), lengths=LENGTHS, hosts=7, wake_s=5.5)
    day = pool.arrivals(2)
    mine = play(pool, penstock_scaler(pool, 0.02), day)
    assert mine.worst_attainment >= 0.97
    alone = single_model(
        "office", SPEC, day_s=5_400.0, peak_rps=3.0, lengths=LENGTHS, replicas=10, wake_s=5.5
    )
    half = play(alone, Static(alone.specs, 3), alone.arrivals(2))
    assert half.attainment < mine.worst_attainment, "three of seven hosts are not enough for one model's peak"
