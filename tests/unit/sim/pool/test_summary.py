"""Figures of a run, on records made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.pool.cluster import TOO_LONG
from sim.pool.contract import Record, RunResult, SimRequest
from sim.pool.fairness import fairness, jain_index, max_gap, max_min_shares, service_curve
from sim.pool.summary import ServiceLevel, over_time, summarise, waiting
from workers.wire import Capacity, Targets

LEVELS = {"m": ServiceLevel(Targets(ttft_s=1.0, tpot_s=0.05), Capacity(1000.0, 0.01, 0.0))}


def record(
    key: int, at: float, *, first: float = 0.1, end: float = 1.0, tenant: str = "a", refused: str = ""
) -> Record:
    """A request of 500 prompt tokens, 100 of them cached, and 21 output tokens; times after its arrival."""
    request = SimRequest(key, at, tenant, "m", 500, 21)
    if refused:
        return Record(request, 0, refused=refused)
    return Record(
        request, 0, "r", at, at + first, at + end, cached_tokens=100, predicted_hit_tokens=100, attempts=1
    )


def result(records: list[Record], **changes: object) -> RunResult:
    end = max(each.request.at for each in records)
    made = RunResult(
        "p", "w", 1.0, 1, records, seconds=end + 5, gpu_hours=2.0, usd_per_gpu_hour=3.0, arrivals_s=end
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_goodput_counts_what_met_both_targets_per_second_of_offered_load() -> None:
    records = [record(0, 0.0), record(1, 5.0, first=1.6, end=2.0), record(2, 8.0, end=3.0), record(3, 10.0)]
    summary = summarise(result(records), LEVELS)
    assert summary.goodput_rps == pytest.approx(2 / 10)  # the second is late, the third is slow
    assert summary.slo_met == 0.5
    assert summary.hit_rate == pytest.approx(0.2)
    assert summary.usd_per_mtok == pytest.approx(2.0 * 3.0 / (4 * 521 / 1e6))


def test_the_ttft_target_is_on_top_of_the_own_prefill() -> None:
    assert LEVELS["m"].met(record(0, 0.0, first=1.49, end=2.0))
    assert not LEVELS["m"].met(record(0, 0.0, first=1.51, end=2.0))


def test_warm_up_and_what_no_replica_takes_are_left_out_and_refusals_are_not() -> None:
    records = [record(0, 0.0, first=50.0, end=60.0), record(1, 10.0), record(2, 12.0, refused="queue_full")]
    records.append(record(3, 20.0, refused=TOO_LONG))
    summary = summarise(result(records, warmup_s=5.0), LEVELS)
    assert summary.requests == 2
    assert summary.shed_rate == 0.5
    assert summary.ttft_p99_s == pytest.approx(0.1)
    assert summary.refusals == {"queue_full": 1}
    assert summary.tenants["a"].refused == 1


def test_what_faults_ended_is_not_called_refused() -> None:
    reasons = ("queue_full", "attempts_failed", "api_process_died", "", "")
    records = [record(number, float(number), refused=reason) for number, reason in enumerate(reasons)]
    summary = summarise(result(records), LEVELS)
    assert (summary.shed_rate, summary.lost_rate) == (pytest.approx(0.2), pytest.approx(0.4))
    assert summary.finished == 2


def test_waiting_is_what_has_no_first_token_yet() -> None:
    records = [record(0, 0.0, first=4.0, end=5.0), record(1, 2.0, first=4.0, end=5.0), record(2, 10.0)]
    mean, most = waiting(records, 0.0, 10.0)
    assert mean == pytest.approx(0.8)
    assert most == 2


def test_charts_have_gaps_where_nothing_came() -> None:
    rows = over_time(result([record(0, 0.0), record(1, 10.0)]), 5, LEVELS)
    assert rows[0][1] == pytest.approx(0.1)
    assert math.isnan(rows[2][1])


def test_equal_service_is_fair_and_one_tenant_with_everything_is_not() -> None:
    even = [record(key, key * 0.1, tenant="ab"[key % 2]) for key in range(100)]
    assert fairness(even, 0.0, 10.0).jain == pytest.approx(1.0, abs=0.01)
    greedy = [
        record(
            key, key * 0.1, first=0.1 if key % 2 else 30.0, end=0.5 if key % 2 else 40.0, tenant="ab"[key % 2]
        )
        for key in range(100)
    ]
    unfair = fairness(greedy, 0.0, 10.0)
    assert unfair.jain == pytest.approx(0.5, abs=0.01)


def test_a_greedy_tenant_that_gets_only_what_others_leave_is_fair() -> None:
    """Little askers get all they ask for; that the greedy one does not is what fairness means."""
    small = [record(key, key * 1.0, tenant=f"t{key % 4}") for key in range(40)]
    greedy = [record(100 + key, key * 0.04, first=0.1, end=1.0, tenant="greedy") for key in range(400)]
    unserved = [record(1000 + key, key * 0.04, first=90.0, end=99.0, tenant="greedy") for key in range(600)]
    assert fairness(small + greedy + unserved, 0.0, 40.0).jain > 0.95


def test_what_was_served_before_the_window_is_not_asked_for_in_it() -> None:
    """Long prompts prefilled during the warm-up, whose answers go on: everybody gets all that is left."""
    spanning = [record(key, 0.0, first=1.0, end=30.0, tenant="a") for key in range(50)]
    later = [record(100 + key, 10.0 + 0.2 * key, tenant="b") for key in range(50)]
    assert fairness(spanning + later, 10.0, 30.0).jain > 0.98


def test_the_gap_counts_only_while_both_wait() -> None:
    service = np.array([[0.0, 10.0, 20.0, 100.0], [0.0, 0.0, 5.0, 5.0]])
    always = np.ones((2, 4), dtype=bool)
    assert max_gap(service, always) == 95.0
    not_at_the_end = always.copy()
    not_at_the_end[1, 3] = False
    assert max_gap(service, not_at_the_end) == 15.0
    assert max_gap(service, np.zeros((2, 4), dtype=bool)) == 0.0


def test_service_comes_with_the_first_token_and_then_evenly() -> None:
    times = np.arange(0.0, 6.0, 1.0)
    curve = service_curve([record(0, 0.5, first=0.5, end=2.5)], times)
    assert curve[0] == 0.0
    assert curve[1] == pytest.approx(400.0)
    assert curve[2] == pytest.approx(400.0 + 42.0 / 2)
    assert curve[3] == curve[5] == pytest.approx(442.0)


@given(
    st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 10.0)), min_size=1, max_size=12),
    st.floats(0.01, 1.0),
)
def test_max_min_shares_use_up_the_total_and_nobody_gains_by_another_having_more(
    tenants: list[tuple[float, float]], fraction: float
) -> None:
    demand = np.array([each for each, _ in tenants])
    weights = np.array([each for _, each in tenants])
    total = fraction * float((demand * weights).sum())
    shares = max_min_shares(demand, weights, total)
    assert float((shares * weights).sum()) == pytest.approx(total, rel=1e-6)
    assert np.all(shares <= demand * (1 + 1e-9))
    short = shares < demand * (1 - 1e-6)
    if short.any():
        level = float(shares[short].max())
        assert shares[short] == pytest.approx(level, rel=1e-6)
        assert np.all(shares <= level * (1 + 1e-6))


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20))
def test_jain_lies_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain_index(np.array(values)) <= 1 + 1e-9
