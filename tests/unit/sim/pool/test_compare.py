"""Comparisons: cells, journals, equal shedding, what is shown, and the command's file from a small real run."""

import json
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.placement.publish import publish
from cli.commands.sim.compare import targets_text
from cli.main import app
from core.errors import InvalidRequest
from sim.pool.compare import Cell, Players, Row, Setting, cells, missing, play
from sim.pool.comparison import Outcome, Plan, compare, in_order, seconds_at
from sim.pool.journal import Journal
from sim.pool.knee import SERVED, Knee, find
from sim.pool.plots import plot
from sim.pool.registry import BASELINES, NAMES, OURS, names_of, policy
from sim.pool.report import COLUMNS, compact, markdown, standings
from sim.pool.report import cells as shown
from sim.pool.shed import QuantileShedder
from workers.catalog import load_catalog
from workers.wire import Targets

MODEL = "llama-3.3-70b"
SETTING = Setting("mooncake-conversation", (MODEL,), 1, 40.0)
FIGURES = {
    "policy", "workload", "load", "seed", "goodput_rps", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s",
    "hit_rate", "shed_rate", "jain", "max_service_gap", "gpu_hours", "rate_rps", "bound_rps", "slo_ttft_s",
    "slo_tpot_s",
}  # fmt: skip


def row(policy_name: str, seed: int, goodput: float, load: float = 1.0, **changes: Any) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("slo_met", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "hit_rate", "shed_rate", "jain",
         "max_service_gap", "gpu_hours"), 0.5,
    )  # fmt: skip
    return {
        "policy": policy_name, "workload": "w", "load": load, "seed": seed, "goodput_rps": goodput, "bound_rps": 9.0,
        "rate_rps": 8.0 * load, **figures, **changes,
    }  # fmt: skip


# Names


def test_all_is_every_policy_once() -> None:
    assert names_of("all", "mirrored") == [name for name in NAMES if name != "penstock_mirrored"]
    assert names_of("all", "exact") == [name for name in NAMES if name != "penstock_exact"]
    assert set(BASELINES) == {
        "random", "round_robin", "least_request", "power_of_two", "session_hash", "cache_aware", "loadaware", "dynamo",
        "lmetric", "llmd_blend", "llmd_sticky",
    }  # fmt: skip
    assert names_of(" dynamo,penstock,dynamo ") == ["dynamo", "penstock"]


@pytest.mark.parametrize("text", ["nobody", "penstock,nobody", "", ","])
def test_unknown_policies_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"no policy"):
        names_of(text)


# Cells


def test_a_cell_gives_the_same_rows_wherever_it_is_played() -> None:
    cell = Cell(SETTING, (OURS, "llmd_sticky"), 1.0, 2.0, 3)
    rows = play(cell)
    assert [each["policy"] for each in rows] == [OURS, "llmd_sticky"]
    assert all(set(each) >= FIGURES for each in rows)
    assert all(each["goodput_rps"] <= each["bound_rps"] + 1e-9 for each in rows)
    assert rows[0]["requests"] == rows[1]["requests"] > 20
    with Players(2) as players:
        ((_, elsewhere),) = players.play([cell])
    assert elsewhere == rows


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_fails_is_an_error_and_no_hole(workers: int) -> None:
    good = Cell(SETTING, ("random",), 1.0, 1.0, 1)
    with Players(workers) as players, pytest.raises(InvalidRequest, match="nowhere"):
        list(players.play([good, replace(good, setting=replace(SETTING, workload="nowhere"))]))


def first_only(cell: Cell) -> list[Row]:
    """Seed 1 is played at once; the others never end."""
    while cell.seed > 1:
        threading.Event().wait(3600.0)
    return []


def test_an_interrupt_ends_the_cells_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.pool.compare.play", first_only)
    todo = [Cell(SETTING, ("random",), 1.0, 1.0, seed) for seed in (1, 2, 3)]

    def interrupted() -> None:
        with Players(2) as players:
            next(players.play(todo))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not multiprocessing.active_children()


def test_equal_shedding_refuses_as_many_as_ours() -> None:
    cell = Cell(replace(SETTING, shed="equal", seconds=90.0), ("llmd_sticky", OURS), 2.0, 5.0, 1)
    ours, theirs = play(cell)
    assert (ours["policy"], theirs["policy"]) == (OURS, "llmd_sticky")
    assert ours["shed_rate"] > 0.1
    assert theirs["shed_rate"] == pytest.approx(ours["shed_rate"], abs=0.06)
    alone = play(replace(cell, policies=("llmd_sticky",)))
    assert alone == [theirs], "ours is played to know the rate, and not reported unasked"


def test_nobody_sheds_unless_asked() -> None:
    rows = play(Cell(SETTING, (OURS, "cache_aware", "vtc", "fifo"), 2.0, 5.0, 1))
    assert {each["shed_rate"] for each in rows} == {0.0}


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("load", [lambda n: n % 100, lambda n: 7, lambda n: n])
def test_the_gate_sheds_its_share_and_the_highest_loads(rate: float, load: Callable[[int], float]) -> None:
    gate = QuantileShedder(rate)
    shed = [number for number in range(4000) if gate.sheds(float(load(number)))]
    assert len(shed) / 4000 == pytest.approx(rate, abs=0.025)
    if load(100) == 0:  # the one that goes up and down
        kept = set(range(1000, 4000)) - set(shed)
        assert min(load(each) for each in shed if each > 1000) > 0.8 * max(load(each) for each in kept)


# The knee


def test_the_knee_serves_and_a_little_more_does_not() -> None:
    tried: dict[float, float] = {}
    knee = find(SETTING, on_rate_tried=lambda rate, share: tried.update({rate: share}))
    assert tried[knee.rate_rps] == knee.slo_met >= SERVED
    over = min(rate for rate in tried if rate > knee.rate_rps)
    assert tried[over] < SERVED
    assert over / knee.rate_rps <= 1.031


def test_runs_are_as_long_as_their_requests_take() -> None:
    assert (seconds_at(10.0), seconds_at(1000.0), seconds_at(0.1)) == (80.0, 45.0, 600.0)


# What is kept and resumed


def test_a_journal_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.partial"
    journal = Journal(path, {"loads": (1.0,)}, resume=False)
    journal.note("knee", {"rate_rps": 2.0})
    journal.add([row(OURS, 1, 5.0)])
    path.write_text(path.read_text() + '{"row": {"half')
    again = Journal(path, {"loads": (1.0,)}, resume=True)
    assert again.rows == [row(OURS, 1, 5.0)]
    assert again.notes == {"knee": {"rate_rps": 2.0}}
    again.add([row(OURS, 2, 6.0)])
    assert len(Journal(path, {"loads": (1.0,)}, resume=True).rows) == 2
    with pytest.raises(InvalidRequest, match="another comparison"):
        Journal(path, {"loads": (2.0,)}, resume=True)
    assert Journal(path, {"loads": (2.0,)}, resume=False).rows == []


@pytest.mark.parametrize("text", ["", "{\n", "[1]\n", "null\n"])
def test_a_file_that_is_no_journal_is_not_gone_on_with(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.json.partial"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="another comparison"):
        Journal(path, {"a": 1}, resume=True)


def test_only_missing_cells_are_played_again(tmp_path: Path) -> None:
    plan = Plan(SETTING, ("random", "round_robin"), (1.0, 2.0), 2)
    journal = Journal(tmp_path / "x", plan.subject(), resume=False)
    journal.note("knee", {"rate_rps": 1.0, "slo_met": 0.95, "runs": 3})
    every = cells(SETTING, plan.policies, [(1.0, 1.0), (2.0, 2.0)], [1, 2])
    assert [(each.load, each.seed) for each in every] == [(1.0, 1), (2.0, 1), (1.0, 2), (2.0, 2)]
    with Players(1) as players:
        first = compare(plan, players, journal)
        again = compare(plan, players, Journal(tmp_path / "x", plan.subject(), resume=True))
    assert len(first.rows) == 8
    assert again.rows == first.rows == in_order(journal.rows, plan)
    assert missing(every, first.rows[1:]) == [every[0]]


# What is shown


def test_leads_are_paired_by_seed_and_marked_beyond_chance() -> None:
    rows = [row(OURS, seed, 10.0 * seed + 1.0) for seed in range(1, 6)]
    rows += [row("random", seed, 10.0 * seed) for seed in range(1, 6)]
    rows += [row("dynamo", seed, 10.0 * seed + 1.0 + (-1) ** seed) for seed in range(1, 6)]
    by_name = {each.policy: each for each in standings(rows)}
    assert by_name[OURS].lead is None
    random_lead = by_name["random"].lead
    assert random_lead is not None
    assert (random_lead.mean, random_lead.half) == (1.0, 0.0)
    assert shown(by_name["random"])[3] == "+3.3 ±0.0 % ▲"
    assert "▲" not in shown(by_name["dynamo"])[3]
    assert len(shown(by_name[OURS])) == len(COLUMNS)


def test_figures_of_nothing_served_are_left_out() -> None:
    rows = [row(OURS, 1, 5.0), row("random", 1, 0.0, ttft_p50_s=None)]
    by_name = {each.policy: each for each in standings(rows)}
    assert by_name["random"].mean("ttft_p50_s") is None
    assert shown(by_name["random"])[3:5] == ["+5.00/s", "-"]
    (kept,) = [each for each in compact(standings(rows)) if each["policy"] == "random"]
    assert "ttft_p50_s" not in kept
    json.dumps(kept, allow_nan=False)


def test_tables_and_plots_of_several_loads(tmp_path: Path) -> None:
    rows = [
        row(name, seed, 5.0, load) for name in (OURS, "random") for seed in (1, 2) for load in (0.7, 1.0, 1.3)
    ]
    text = markdown(standings(rows))
    assert text.splitlines()[0].startswith("| policy | goodput at 0.7 | goodput at 1 | goodput at 1.3 |")
    assert "| **penstock** | 5.00 ±0.00 |" in text
    assert "| *bound* | 9.00 | 9.00 | 9.00 |" in text
    plot(standings(rows), tmp_path / "a.svg", "goodput_rps", "requests/s")
    once = (tmp_path / "a.svg").read_bytes()
    plot(standings(rows), tmp_path / "a.svg", "goodput_rps", "requests/s")
    assert once == (tmp_path / "a.svg").read_bytes(), "the same figures give the same file"
    with pytest.raises(InvalidRequest, match=r"\.svg or \.png"):
        plot(standings(rows), tmp_path / "a.jpg", "goodput_rps", "requests/s")


# The command


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["sim", "compare", *words])


def test_the_command_writes_every_run(tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    result = call(
        "--workload", SETTING.workload, "--hosts", "1", "--model", MODEL, "--policies", "penstock,round_robin",
        "--loads", "1.0,1.5", "--seeds", "2", "--seconds", "40", "--workers", "1", "--json", str(out),
        "--plot", str(picture),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    assert {(each["policy"], each["load"], each["seed"]) for each in rows} == {
        (name, load, seed) for name in ("penstock", "round_robin") for load in (1.0, 1.5) for seed in (1, 2)
    }
    assert all(set(each) >= FIGURES for each in rows)
    assert all(each["goodput_rps"] <= each["bound_rps"] for each in rows)
    assert picture.stat().st_size > 1000
    assert not (tmp_path / "out.json.partial").exists()
    for word in ("Load 1.0 =", "penstock", "ours leads by", "bound"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policies", "nobody"], "no policy is called 'nobody'"),
        (["--loads", "1,x"], "--loads is a list like"),
        (["--loads", "-1"], "--loads is a list like"),
        (["--shed", "some"], "--shed is zero or equal"),
        (["--prefix", "psychic"], "mirrored, exact"),
        (["--workload", "nothing"], "no workload and no file"),
        (["--model", "nothing"], "nothing"),
        (["--resume"], "--resume needs --json"),
        (["--plot", "x.pdf"], ".svg or .png"),
        (["--json", "/nowhere/at/all.json"], "there is no directory"),
        (["--json", "/"], "cannot be written"),
        (["--plot", "/nowhere/at/all.svg"], "there is no directory"),
    ],
)
def test_mistakes_are_told_in_a_line(words: list[str], said: str) -> None:
    result = call("--seconds", "20", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (["--json", "{out}"], "the same command and --resume"),
        ([], "--json FILE"),
        (["--json", "-"], "--json FILE"),
    ],
)
def test_ctrl_c_says_in_a_line_how_to_go_on(
    words: list[str], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.commands.sim.compare.compare", stopped)
    named = [word.format(out=tmp_path / "out.json") for word in words]
    result = call("--policies", "random", "--workers", "1", *named)
    assert result.exit_code == 130
    [line] = [line for line in result.stderr.splitlines() if "stopped" in line]
    assert how in line
    assert "Traceback" not in result.output


def test_each_models_promise_is_told_where_they_differ() -> None:
    one = SETTING.pool(load_catalog())
    assert len(targets_text(one)) == 1
    assert "for" not in targets_text(one)[0].split(":")[0]
    slow = [replace(spec, model="slow", targets=Targets(9.0, 0.5)) for spec in one]
    lines = targets_text([*one, *slow])
    assert [MODEL in lines[0], "slow" in lines[1], "9 s" in lines[1], "500 ms" in lines[1]] == [True] * 4
    twin = [replace(spec, model="twin") for spec in one]
    assert len(targets_text([*one, *twin])) == 1


def test_every_policy_can_be_made() -> None:
    assert {policy(name).name for name in NAMES} == set(NAMES)


# What is published


def test_the_comparison_is_published_as_data_plots_and_a_page(tmp_path: Path) -> None:
    rows = [
        row(name, seed, goodput + seed, load, slo_ttft_s=2.0, slo_tpot_s=0.08, replicas=8)
        for name, goodput in ((OURS, 6.0), ("dynamo", 5.0), ("random", 2.0), ("vtc", 9.0))
        for seed in (1, 2)
        for load in (0.7, 1.0)
    ]
    outcome = Outcome(Knee(8.0, 0.91, 5), SETTING, rows)
    conditions = {
        "date": "2026-11-22T10:00:00+00:00", "commit": "abc", "machine": "m", "model": MODEL, "hosts": 2, "seeds": 2,
        "shed": "zero",
    }  # fmt: skip
    files = publish({"w": outcome}, conditions, tmp_path)
    assert {file.suffix for file in files} == {".json", ".svg", ".md"}
    text = (tmp_path / "results" / "placement.md").read_text()
    assert "2026-11-22, commit abc, m: " in text
    # the best of others: our own variants are not others
    assert "| w | dynamo, +15.4 ±0.0 % ▲ | dynamo, +15.4 ±0.0 % ▲ |" in text
    data = json.loads((tmp_path / "data" / "scheduling-comparison.json").read_text())
    assert data["workloads"]["w"]["knee_rps"] == 8.0
    assert len(data["standings"]) == 8
