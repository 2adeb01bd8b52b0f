"""Sweeps: read from CSV, replayed, fitted with points kept out, and the catalog's figures against the shipped ones."""

import csv
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from core.errors import InvalidRequest
from sim.pool.validation.replay import replay
from sim.pool.validation.simplex import minimise
from sim.pool.validation.snippet import profile_snippet
from sim.pool.validation.sweep_fit import SweepFigures, first_guess, fit_sweep, split
from sim.pool.validation.sweep_plot import plot_sweeps
from sim.pool.validation.sweep_report import (
    TPOT_LIMIT,
    TTFT_LIMIT,
    PointError,
    cause_of,
    check_catalog,
    check_sweep,
    overall,
    unvalidated,
)
from sim.pool.validation.sweeps import SHIPPED, Point, Shape, Sweep, read_sweeps
from workers.catalog import load_catalog
from workers.wire import Capacity

TRUTH = SweepFigures(20_000.0, 0.010, 0.0005, 0.03, 0.006)
FIXED = Capacity(1.0, 1.0, 0.0, 5e-9, expert_share=8 / 256, kv_cache_tokens=2_000_000, max_num_seqs=64)
SHORT, LONG = Shape(200, 30), Shape(2000, 30)


def truthful(shapes: tuple[Shape, ...] = (SHORT, LONG), users: tuple[int, ...] = (1, 2, 4, 8)) -> Sweep:
    """A sweep whose times come from the step model itself."""
    points = []
    for shape in shapes:
        for count in users:
            point = Point(shape, count, 1.0, 1.0)
            said = replay(TRUTH.apply(FIXED), point, shortest=0.8)
            points.append(Point(shape, count, said.ttft_s, said.tpot_s))
    return Sweep("made", "made", "", "none", 1, 0.8, tuple(points))


def test_a_lone_user_gets_the_times_of_the_formula() -> None:
    capacity = SweepFigures(10_000.0, 0.010, 0.001, 0.05).apply(FIXED)
    said = replay(capacity, Point(Shape(1000, 101), 1, 1.0, 1.0), shortest=1.0)
    assert said.ttft_s == pytest.approx(0.05 + 0.010 + 0.1)
    assert said.tpot_s == pytest.approx(0.011 + 5e-9 * 1050, rel=1e-3)
    assert said.output_tok_s == pytest.approx(101 / (said.ttft_s + 100 * said.tpot_s), rel=1e-2)


def test_a_fit_finds_the_figures_again_from_half_of_the_points() -> None:
    sweep = truthful()
    fitted = fit_sweep(sweep, FIXED)
    assert fitted == fit_sweep(sweep, FIXED)
    checked = check_sweep(sweep, fitted.apply(FIXED))
    assert {point.use for point in checked.points} == {"fitted", "held out"}
    tpot, ttft = checked.tpot_median("held out"), checked.ttft_median("held out")
    assert tpot is not None
    assert tpot < 0.02
    assert ttft is not None
    assert ttft < 0.06
    assert fitted.prefill_tokens_per_s == pytest.approx(TRUTH.prefill_tokens_per_s, rel=0.15)


def test_every_second_concurrency_and_a_third_shape_are_kept_out() -> None:
    def made(*counts: tuple[Shape, tuple[int, ...]]) -> Sweep:
        points = tuple(Point(shape, users, 0.5, 0.01) for shape, all_ in counts for users in all_)
        return Sweep("s", "s", "", "", 1, 1.0, points)

    answers = Shape(200, 500)
    parts = split(made((SHORT, (1, 2, 4, 8, 16)), (LONG, (1, 2, 4, 8)), (answers, (1, 2))))
    assert [point.concurrency for point in parts.fitted] == [1, 4, 16, 1, 4]
    assert [str(point.shape) for point in parts.held_out].count("200/500") == 2
    few = split(made((SHORT, (1, 64)), (LONG, (4,)), (answers, (4, 8, 16, 32))))
    assert [(str(point.shape), point.concurrency) for point in few.held_out] == [
        ("200/500", 8),
        ("200/500", 32),
    ]
    with pytest.raises(InvalidRequest, match="has no shape 1/1; it has 200/30"):
        split(made((SHORT, (1, 2))), Shape(1, 1))
    with pytest.raises(InvalidRequest, match="too few points"):
        split(made((SHORT, (4,))))


def test_a_point_with_a_full_cache_is_fitted_to_nothing() -> None:
    sweep = truthful()
    last = sweep.points[-1]
    full = Point(last.shape, last.concurrency, 20.0, last.tpot_s)
    parts = split(Sweep("s", "s", "", "", 1, 0.8, (*sweep.points[:-1], full)))
    assert parts.full_cache == (full,)
    assert full not in parts.fitted + parts.held_out


def test_the_first_guess_needs_no_catalog() -> None:
    rate, alpha, beta, request_s, experts = first_guess(truthful().points, experts=True)
    assert 3_000 < rate < 100_000
    assert 0.002 < alpha < 0.02
    assert beta > 0
    assert request_s > 0
    assert experts > 0
    assert len(first_guess(truthful().points, experts=False)) == 4


def test_the_simplex_finds_a_minimum_and_reports_its_descents() -> None:
    losses: list[float] = []
    found = minimise(
        lambda p: float(np.abs(p - np.array([1.0, -2.0])).sum()), np.zeros(2), tick=losses.append
    )
    assert found == pytest.approx([1.0, -2.0], abs=0.01)
    assert losses == sorted(losses, reverse=True)


COLUMNS = ("input_tokens", "output_tokens", "concurrency", "ttft_mean_s", "tpot_mean_s")


def written(path: Path, rows: list[tuple[object, ...]], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([columns, *rows])
    return path


def test_an_operators_own_file_needs_five_columns(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [
        (100, 50, 1, 0.1, 0.01),
        (100, 50, 1, 0.3, 0.03),
        (100, 50, 2, 0.2, 0.02),
    ]
    sweeps = read_sweeps(written(tmp_path / "mine.csv", rows))
    assert list(sweeps) == ["mine"]
    assert sweeps["mine"].points == (
        Point(Shape(100, 50), 1, 0.2, 0.02),
        Point(Shape(100, 50), 2, 0.2, 0.02),
    )
    assert sweeps["mine"].shortest == 1.0


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ((100, 50, "many", 0.1, 0.01), COLUMNS, "line 2: concurrency is 'many', not a number"),
        ((100, 50, 1, -1, 0.01), COLUMNS, "line 2: ttft_mean_s is -1, must be above zero"),
        ((100, 50, 1, "nan", 0.01), COLUMNS, "line 2: ttft_mean_s is nan"),
        ((100, 50, 1e6, 1, 0.01), COLUMNS, "at most 8192 are replayed"),
        ((100, 50, 1, 0.1), COLUMNS[:4], "lacks the columns tpot_mean_s"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, row: tuple[object, ...], columns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_sweeps(written(tmp_path / "bad.csv", [row], columns))


def test_every_sweep_that_the_catalog_names_comes_along() -> None:
    sweeps = read_sweeps(SHIPPED)
    named = {each.sweep for model in load_catalog().models.values() for each in model.profiles.values()}
    assert named - {""} == sweeps.keys()
    bare = unvalidated(load_catalog(), sweeps)
    assert "deepseek-v3.2:tp8" in bare
    assert "minimax-m2.5:tp4" not in bare


def test_the_catalogs_figures_predict_what_they_were_not_fitted_to() -> None:
    """A short sweep of each engine: up to 64 users."""
    short = {
        name: replace(sweep, points=tuple(point for point in sweep.points if point.concurrency <= 64))
        for name, sweep in read_sweeps(SHIPPED).items()
    }
    checked = check_catalog(load_catalog(), short)
    tpot, ttft = overall(checked)
    assert 0.0 < tpot <= TPOT_LIMIT
    assert 0.0 < ttft <= TTFT_LIMIT
    for each in checked:
        assert (each.tpot_median("fitted", "held out") or 0.0) <= TPOT_LIMIT, each.sweep
        assert (each.ttft_median("fitted", "held out") or 0.0) <= TTFT_LIMIT, each.sweep


def point(
    users: int, *, tpot_s: float = 0.01, said_s: float = 0.01, use: str = "fitted", **changes: object
) -> PointError:
    facts = {
        "shape": "100/50", "concurrency": users, "use": use, "ttft_s": 0.1, "replayed_ttft_s": 0.1, "tpot_s": tpot_s,
        "replayed_tpot_s": said_s, "output_tok_s": None, "replayed_output_tok_s": 100.0, "preemptions": 0,
    }  # fmt: skip
    return PointError(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_cause_of_a_worst_point_follows_from_the_figures() -> None:
    fine = [point(4, said_s=0.009), point(64)]
    off = {
        "3 preemptions": point(32, said_s=0.02, preemptions=3),
        "20.0 ms at 32 users, 10.0 ms at 64": point(32, tpot_s=0.02),
        "lengths up to 64 users, where the error is +0.0%: extrapolated": point(
            128, said_s=0.02, use="held out"
        ),
        "not known; it lies beyond the fit, which does not have these lengths, but the error is -10% at a point that "
        "it has (100/50, 4 users); measured with as many users: 10.0 ms at 100/50 (replayed 10.0)": point(
            64, said_s=0.02, use="held out", shape="9/9"
        ),
        "another bend: between 4 and 64 users the measured time lies below the line, the replayed one above": point(
            8, tpot_s=0.009, said_s=0.02
        ),
    }
    for words, worst in off.items():
        assert words in cause_of(worst, [*fine, worst])
    worst = point(8, said_s=0.02)
    assert "off in this direction" in cause_of(worst, [point(64, said_s=0.011), worst])
    other = point(8, said_s=0.004, shape="50/50")
    assert "pull the fit apart: +100% here, -60% at 50/50" in cause_of(worst, [*fine, other, worst])


def test_a_point_beyond_the_fit_is_explained_by_it_only_where_the_fit_is_near() -> None:
    far = point(128, said_s=0.02, use="held out")
    assert cause_of(far, [point(64, said_s=0.0102), point(256, shape="50/50"), far]).endswith(
        ": extrapolated"
    )
    already = cause_of(far, [point(64, said_s=0.0104), far])
    assert already == (
        "not known; it lies beyond the fit, which has these lengths up to 64 users, but the error is +4.0% there "
        "already"
    )
    other = point(128, said_s=0.02, use="held out", shape="9/9")
    assert "within 2.0% of all that it has: extrapolated" in cause_of(
        other, [point(64, said_s=0.0102), other]
    )


def test_no_bend_is_seen_at_a_neighbour_whose_cache_was_full() -> None:
    worst, full = point(8, tpot_s=0.009, said_s=0.02), point(64, use="full cache")
    points = [point(4, said_s=0.009), worst]
    assert "another bend" in cause_of(worst, [*points, point(64)])
    assert cause_of(worst, [*points, full]).startswith("not found")


def test_where_no_rule_holds_the_cause_says_what_was_looked_at() -> None:
    lowest = point(2, said_s=0.02)
    assert cause_of(lowest, [point(4, said_s=0.009), point(64), lowest]).startswith(
        "not found; excluded: preemptions"
    )


def test_throughput_counts_only_where_it_was_measured() -> None:
    assert point(4).throughput_error is None
    assert point(4, output_tok_s=80.0).throughput_error == pytest.approx(0.25)


def test_fitted_figures_become_lines_of_a_profile() -> None:
    text = profile_snippet(truthful(), TRUTH, date(2026, 11, 24))
    read = tomllib.loads(text)
    assert read["sweep"] == "made"
    assert read["prefill_tokens_per_s"]["value"] == 20_000
    assert read["step_per_seq_s"]["value"] == pytest.approx(0.0005)
    assert read["request_s"]["basis"] == "measured"
    assert read["step_experts_s"]["date"] == date(2026, 11, 24)


def test_a_plot_has_a_panel_for_each_sweep(tmp_path: Path) -> None:
    checked = [check_sweep(truthful(), TRUTH.apply(FIXED))] * 2
    plot_sweeps(checked, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("2000/30 replayed") == 2
    with pytest.raises(InvalidRequest, match=r"written as \.svg or \.png"):
        plot_sweeps(checked, tmp_path / "plot.gif")
