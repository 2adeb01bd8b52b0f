"""The laws of capacity, the fast loop and the ladder: what they must never get wrong."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.autoscale.capacity import (
    MIN_RATE,
    Load,
    decode_exceeds,
    erlang_c,
    needed,
    predict,
    shortfall,
)
from scheduler.core.autoscale.ladder import dwell_s, host_dwell_s, resting_rung, rung_dwell_s, settled_rung
from scheduler.core.autoscale.meter import DemandMeter
from scheduler.core.autoscale.state import (
    DemandObservation,
    HostObservation,
    ModelSpec,
    ReplicaObservation,
    Rung,
    RungFigures,
)
from scheduler.core.autoscale.surge import burst_rate, needed_for_backlog, needed_for_running
from workers.wire import Capacity, Targets

NODE = Capacity(
    prefill_tokens_per_s=13_500,
    step_base_s=0.00812,
    step_per_seq_s=0.0004,
    step_per_kv_token_s=1e-9,
    accept_per_step=1.9,
    kv_cache_tokens=4_000_000,
    max_model_len=163_840,
    gpus=8,
)
TARGETS = Targets(2.0, 0.03)

loads = st.builds(
    Load,
    rate=st.floats(0.01, 60.0),
    prompt=st.floats(8_000.0, 20_000.0),
    uncached=st.floats(100.0, 8_000.0),
    output=st.floats(10.0, 1_000.0),
    cv2=st.floats(0.0, 3.0),
    output_cv2=st.floats(0.0, 2.0),
)


@given(loads, st.sampled_from(["rate", "uncached", "cv2"]), st.floats(1.0, 3.0))
def test_more_load_never_needs_fewer(load: Load, what: str, factor: float) -> None:
    """Longer answers are left out: their mean time per token is steadier, so they may need fewer."""
    heavier = Load(
        **{
            name: getattr(load, name) * (factor if name == what else 1.0)
            for name in ("rate", "prompt", "uncached", "output", "cv2", "output_cv2")
        }
    )
    assert needed(heavier, NODE, TARGETS) >= needed(load, NODE, TARGETS)


@given(loads)
def test_what_is_needed_is_enough_and_one_less_is_not(load: Load) -> None:
    count = needed(load, NODE, TARGETS, at_most=500)
    if count < 500:
        assert shortfall(load, count, NODE, TARGETS) == ""
    assert shortfall(load, count - 1, NODE, TARGETS) != ""


@given(loads, st.integers(1, 40))
def test_another_replica_makes_nothing_worse(load: Load, replicas: int) -> None:
    few, more = predict(load, replicas, NODE, TARGETS), predict(load, replicas + 1, NODE, TARGETS)
    for figure in ("utilisation", "tpot_s", "ttft_s", "late", "slow", "batch", "kv"):
        assert getattr(more, figure) <= getattr(few, figure) + 1e-5


def test_no_load_needs_nobody() -> None:
    assert needed(Load(0.0, 1000, 1000, 100), NODE, TARGETS) == 0


@given(
    st.floats(0.0, 1e-6, allow_subnormal=True),
    st.floats(0.0, 1e-6, allow_subnormal=True) | st.floats(1.0, 1_000.0),
    st.integers(1, 4096),
)
def test_a_load_that_has_all_but_ceased_needs_one_at_most(
    rate: float, uncached: float, replicas: int
) -> None:
    load = Load(rate, 1_000.0, uncached, 100.0)
    assert needed(load, NODE, TARGETS) <= 1
    assert predict(load, replicas, NODE, TARGETS).slow < 1e-3
    if rate < MIN_RATE:
        assert needed(load, NODE, TARGETS) == 0
        assert shortfall(load, 0, NODE, TARGETS) == ""


def test_prompts_that_were_cached_whole_for_long_vary_by_nothing() -> None:
    meter = DemandMeter()
    meter.observe(DemandObservation("m", 1, 1_000.0, 1_000.0, 1e6, 100.0), 2.0)
    for _ in range(600):
        meter.observe(DemandObservation("m", 1_000, 1_000.0, 0.5**1000, 0.5**1074, 100.0), 2.0)
    load = meter.load(1.0)
    assert load.cv2 == 0.0
    assert needed(load, NODE, TARGETS) == 1


def test_predicted_time_per_token_satisfies_littles_law() -> None:
    load = Load(8.0, 6_000, 4_000, 400)
    seen = predict(load, 5, NODE, TARGETS)
    assert seen.batch == pytest.approx(8.0 * (seen.ttft_s + 400 * seen.tpot_s) / 5)
    step = NODE.step_base_s + (NODE.step_per_seq_s + 1e-9 * 6_200) * seen.batch
    assert seen.tpot_s == pytest.approx(step / (1.9 * (1 - seen.utilisation)))


def test_erlang_c_of_one_server_is_its_utilisation_and_two_wait_less() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.4) == pytest.approx(1.4**2 / 2 / 0.3 / (1 + 1.4 + 1.4**2 / 2 / 0.3), rel=1e-9)
    assert erlang_c(3, 3.0) == 1.0


@pytest.mark.parametrize(
    ("replicas", "rate", "uncached", "cv2", "slow"),
    [(1, 0.5, 5_116, 1.96, 0.0108), (4, 2.5, 6_375, 1.49, 0.0085), (7, 6.0, 7_706, 1.13, 0.0728)],
)
def test_share_of_slow_answers_is_what_days_of_constant_load_show(
    replicas: int, rate: float, uncached: float, cv2: float, slow: float
) -> None:
    """`slow` was counted over 90 minutes of the day pool with DeepSeek-V3.2's figures and answers of 500 tokens."""
    load = Load(rate, 11_800, uncached, 503, cv2, 0.63)
    assert predict(load, replicas, NODE, Targets(2.0, 0.02242)).slow == pytest.approx(slow, rel=1.0, abs=0.0)
    assert predict(load, replicas, NODE, Targets(2.0, 0.02242)).slow > slow / 2


def test_short_answers_miss_their_time_per_token_most() -> None:
    def share(output: float) -> float:
        return decode_exceeds(Load(1.0, 6_000, 6_000, output), 2, 0.2, 0.4, 0.02, 0.008)

    assert share(50.0) > share(500.0) > share(5_000.0)
    mixed = decode_exceeds(Load(1.0, 6_000, 6_000, 500, output_cv2=1.0), 2, 0.2, 0.4, 0.02, 0.008)
    assert mixed > share(500.0)


def test_the_meter_tells_how_much_answers_vary() -> None:
    meter = DemandMeter()
    for output in (100.0, 300.0):
        meter.observe(DemandObservation("m", 1, 10, 10, 100, output, output * output), 2.0)
    assert meter.load(1.0).output_cv2 == pytest.approx(0.25)


def _poisson(mean: float, rng: random.Random) -> int:
    count, mark = 0, rng.expovariate(1.0)
    while mark < mean:
        count += 1
        mark += rng.expovariate(1.0)
    return count


def test_backlog_that_is_gone_before_help_comes_wakes_nobody() -> None:
    calm = Load(1.0, 4_000, 4_000, 100)
    assert needed_for_backlog(calm, 20_000, working=2, wake_s=10.0, capacity=NODE, targets=TARGETS) == 0
    assert needed_for_backlog(calm, 2_000_000, working=2, wake_s=10.0, capacity=NODE, targets=TARGETS) > 2


@given(st.floats(0.0, 30.0), st.floats(0.0, 1e6), st.integers(0, 20), st.floats(0.0, 300.0))
def test_pending_replicas_lower_what_the_backlog_needs(
    rate: float, backlog: float, serving: int, wake_s: float
) -> None:
    load = Load(rate, 4_000, 4_000, 100)
    few = needed_for_backlog(load, backlog, serving, wake_s, NODE, TARGETS)
    assert needed_for_backlog(load, backlog, serving + 1, wake_s, NODE, TARGETS) <= few


def test_a_burst_is_more_than_chance() -> None:
    meter = DemandMeter()
    for _ in range(60):
        meter.observe(DemandObservation("m", 10), 2.0)
    planned = meter.rate + 2.33 * meter.rate_sigma
    assert burst_rate(meter, planned) == 0.0
    for _ in range(2):
        meter.observe(DemandObservation("m", 40), 2.0)
    assert burst_rate(meter, planned) == meter.burst > planned


def test_answers_that_run_need_replicas_by_their_number() -> None:
    """B sequences on N replicas without prompts: (alpha + beta*B/N + gamma*KV) / accept = target, solved by hand."""
    idle = Load(0.0, 8_000, 4_000, 400)
    per_sequence = 0.0004 + 1e-9 * 8_200
    fits = (1.9 * 0.03 - 0.00812) / per_sequence
    assert needed_for_running(idle, int(fits), NODE, TARGETS) == 1
    assert needed_for_running(idle, int(2 * fits) + 1, NODE, TARGETS) == 3
    assert needed_for_running(Load(4.0, 8_000, 4_000, 400), int(2 * fits) + 1, NODE, TARGETS) > 3
    assert needed_for_running(idle, 500, NODE, Targets(2.0, 0.004)) == 0, "no number is enough"


@pytest.mark.parametrize(("contracted", "dwell"), [(False, 39.5 / (422 / 3_700)), (True, math.inf)])
def test_a_sleeper_goes_down_when_its_memory_has_cost_what_waking_later_would(
    contracted: bool, dwell: float
) -> None:
    ladder = {
        Rung.SLEEP_1: RungFigures(5.5, 430.0),
        Rung.SLEEP_2: RungFigures(45.0, 8.0),
        Rung.STOPPED: RungFigures(98.0),
    }
    spec, host = ModelSpec("m", NODE, TARGETS, ladder), HostObservation("h", 8, 3_700.0, contracted, 64.0)
    assert rung_dwell_s(spec, host, Rung.SLEEP_1, Rung.SLEEP_2) == pytest.approx(dwell)

    def settled(rung: Rung, since_s: float) -> Rung:
        return settled_rung(spec, host, ReplicaObservation("h/m", "m", "h", rung, since_s))

    assert settled(Rung.SLEEP_1, 340.0) is Rung.SLEEP_1
    assert settled(Rung.SLEEP_1, 350.0) is (Rung.SLEEP_1 if contracted else Rung.SLEEP_2)
    assert settled(Rung.SLEEP_2, 25_000.0) is (Rung.SLEEP_2 if contracted else Rung.STOPPED)
    assert settled(Rung.STOPPED, 1e9) is Rung.STOPPED, "hosts, not replicas, are destroyed"
    assert settled_rung(spec, None, ReplicaObservation("h/m", "m", "h", Rung.SLEEP_1, 1e9)) is Rung.SLEEP_1


def test_resting_costs_as_much_as_waking_when_it_ends() -> None:
    assert dwell_s(5.0, 105.0, hold_usd_per_s=0.5, busy_usd_per_s=1.0) == 200.0
    assert dwell_s(5.0, 105.0, hold_usd_per_s=0.0, busy_usd_per_s=1.0) == math.inf


def test_contracted_hosts_are_kept_whatever_they_do() -> None:
    wake, gone = RungFigures(98.0), RungFigures(398.0)
    assert host_dwell_s(HostObservation("a", 8, 0, True, 64.0), wake, gone, 64.0) == math.inf


def test_a_host_is_kept_for_what_a_new_one_costs_until_it_serves() -> None:
    wake, gone = RungFigures(98.0), RungFigures(398.0)
    host = HostObservation("a", 8, 0, False, 64.0)
    assert host_dwell_s(host, wake, gone, 64.0) == 300.0
    assert host_dwell_s(host, wake, gone, 32.0) == 101.0
    assert host_dwell_s(host, wake, gone, 8.0) == 0.0


def test_sleeping_weights_must_fit_into_the_hosts_memory() -> None:
    ladder = {
        Rung.SLEEP_1: RungFigures(5, 400),
        Rung.SLEEP_2: RungFigures(45, 8),
        Rung.STOPPED: RungFigures(98),
    }
    spec, host = ModelSpec("m", NODE, TARGETS, ladder), HostObservation("a", 8, 1_000, True)
    assert resting_rung(spec, host, 600.0) is Rung.SLEEP_1
    assert resting_rung(spec, host, 601.0) is Rung.SLEEP_2
    assert resting_rung(spec, host, 995.0) is Rung.STOPPED


def test_a_time_per_token_that_is_not_known_misses_its_target() -> None:
    assert decode_exceeds(Load(1.0, 6_000, 6_000, 500), 1, 0.2, 1.0, 0.0, math.nan) == 1.0
