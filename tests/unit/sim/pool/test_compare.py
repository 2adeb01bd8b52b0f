"""Comparisons: cells, journals, equal shedding, what is shown, and the command's file from a small real run."""

import json
import math
import multiprocessing
import random
import statistics
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.placement.ablation import earlier
from bench.placement.data import Played
from bench.placement.publish import publish
from bench.placement.studies import STUDIES, Study
from cli.commands.sim.compare import targets_text
from cli.main import app
from core.errors import InvalidRequest
from scheduler.core.rules import SchedulerConfig
from sim.pool.ablation import MECHANISMS
from sim.pool.blocks import Bounds
from sim.pool.compare import (
    MIN_SECONDS,
    RATE_ERROR,
    Cell,
    Players,
    Row,
    Setting,
    cells,
    missing,
    misstated,
    play,
)
from sim.pool.comparison import Plan, compare, in_order
from sim.pool.factorial import CROSSES
from sim.pool.journal import Journal
from sim.pool.knee import SERVED, Knee, find
from sim.pool.plots import plot
from sim.pool.registry import BASELINES, GROUPS, NAMES, OURS, Variant, names_of, options_of, policy
from sim.pool.report import COLUMNS, compact, markdown, restored, standings
from sim.pool.report import cells as shown
from sim.pool.shed import QuantileShedder
from sim.pool.sim_replica import SimReplica
from sim.pool.workloads.registry import workload
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
        ("slo_met", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "hit_rate", "shed_rate",
         "jain", "max_service_gap", "gpu_hours"), 0.5,
    )  # fmt: skip
    return {
        "policy": policy_name, "workload": "w", "load": load, "seed": seed, "goodput_rps": goodput, "bound_rps": 9.0,
        "rate_rps": 8.0 * load, "shed": "zero", "slo_ttft_s": 2.0, "slo_tpot_s": 0.08, **figures,
        "blocks": [{"s": 1.0, "n": 99, "met": goodput, "ttft": [0.5, 1.0 + 0.1 * seed]}], **changes,
    }  # fmt: skip


# Names


def test_all_is_every_policy_once() -> None:
    assert set(names_of("all", "mirrored")) == {OURS, "penstock_exact", "fifo", "vtc", *BASELINES}
    assert set(names_of("all", "exact")) == {OURS, "penstock_mirrored", "fifo", "vtc", *BASELINES}
    assert names_of("present,fifo") == [*GROUPS["present"], "fifo"]
    assert set(BASELINES) == {
        "random", "round_robin", "least_request", "power_of_two", "session_hash", "cache_aware", "cache_aware_2025",
        "vllm_router", "loadaware", "dynamo", "dynamo_queue", "lmetric", "llmd_blend", "llmd_sticky", "llmd_flow",
        "llmd_latency",
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
    cell = Cell(replace(SETTING, shed="equal", seconds=90.0), ("llmd_sticky", OURS), 2.0, 8.0, 1)
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


def test_runs_are_ten_lifetimes_between_warm_up_and_cool_down() -> None:
    long = SETTING.timed(rate=10.0, lifetime_s=30.0)
    assert (long.warmup_s, long.cooldown_s, long.seconds) == (60.0, 30.0, 390.0)
    assert long.block_s == 30.0
    busy = SETTING.timed(rate=8.0, lifetime_s=2.0)
    assert (busy.warmup_s, busy.seconds) == (25.0, 127.0), "as long as 200 and 800 arrivals take"
    rare = SETTING.timed(rate=0.1, lifetime_s=5.0)
    assert rare.seconds == 150.0 + 600.0 + 5.0
    assert SETTING.timed(1000.0, 0.0).seconds == MIN_SECONDS


def test_stated_speeds_are_off_and_true_ones_are_not() -> None:
    (spec,) = SETTING.pool(load_catalog())[:1]
    stated = [misstated(spec, seed).stated for seed in range(200)]
    errors = [
        math.log(each.prefill_tokens_per_s / spec.capacity.prefill_tokens_per_s) for each in stated if each
    ]
    assert statistics.pstdev(errors) == pytest.approx(RATE_ERROR, rel=0.2)
    assert abs(statistics.mean(errors)) < 0.05
    assert misstated(spec, 7).capacity == spec.capacity
    assert misstated(spec, 7) == misstated(spec, 7)
    cluster_view = SimReplica(misstated(spec, 7), random.Random(1)).view(0.0)
    assert cluster_view.capacity == misstated(spec, 7).stated


def test_seeds_share_no_rows_of_a_trace() -> None:
    trace = workload("azure-code", models=[MODEL])
    parts = [
        [
            (each.prompt_tokens, each.output_tokens)
            for each in trace.requests(rate=5.0, seconds=100.0, seed=seed)
        ]
        for seed in (1, 2, 3)
    ]
    rows = [
        (each.prompt_tokens, each.output_tokens) for each in trace.requests(rate=15.0, seconds=100.0, seed=1)
    ]
    assert parts[0] + parts[1] + parts[2] == rows


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


def test_leads_are_paired_by_block_and_marked_beyond_chance() -> None:
    rows = [row(OURS, seed, 10.0 * seed + 1.0) for seed in range(1, 6)]
    rows += [row("random", seed, 10.0 * seed) for seed in range(1, 6)]
    rows += [row("dynamo", seed, 10.0 * seed + 1.0 + (-1) ** seed) for seed in range(1, 6)]
    by_name = {each.policy: each for each in standings(rows)}
    assert by_name[OURS].lead is None
    lead = by_name["random"].lead
    assert lead is not None
    assert lead.value == pytest.approx(155.0 / 150.0 - 1.0)
    assert 0.0 < lead.low < lead.value < lead.high < 0.11
    assert shown(by_name["random"])[3].endswith(" %▲".replace("%", "% "))
    assert by_name["dynamo"].lead is not None
    assert by_name["dynamo"].lead.verdict() == "same"
    assert len(shown(by_name[OURS])) == len(COLUMNS)


def test_later_first_tokens_are_marked_as_a_loss() -> None:
    slow = {"blocks": [{"s": 1.0, "n": 3, "met": 3, "ttft": [0.9, 1.0, 1.1]}] * 4}
    fast = {"blocks": [{"s": 1.0, "n": 3, "met": 3, "ttft": [0.45, 0.5, 0.55]}] * 4}
    rows = [row(OURS, seed, 3.0, **slow) for seed in (1, 2)] + [
        row("dynamo", seed, 3.0, **fast) for seed in (1, 2)
    ]
    dynamo = next(each for each in standings(rows) if each.policy == "dynamo")
    assert dynamo.ttft_p50 is not None
    assert dynamo.ttft_p50.value == pytest.approx(2.0)
    assert shown(dynamo)[7:9] == ["2.00x ▼", "2.00x ▼"]


def test_blocks_cover_what_is_measured_and_add_up() -> None:
    setting = replace(SETTING, seconds=120.0, lifetime_s=10.0, warm_s=20.0)
    (ours,) = play(Cell(setting, (OURS,), 1.0, 2.0, 3))
    blocks = ours["blocks"]
    assert sum(each["s"] for each in blocks) == pytest.approx(90.0, abs=2.0)
    assert sum(each["n"] for each in blocks) == ours["requests"]
    assert len(blocks) == 8, "a rest of less than a lifetime joins the others"
    met = sum(each["met"] for each in blocks)
    assert met / sum(each["s"] for each in blocks) == pytest.approx(ours["goodput_rps"], rel=1e-3)


def test_figures_of_nothing_served_are_left_out() -> None:
    nothing = {"ttft_p50_s": None, "blocks": [{"s": 1.0, "n": 9, "met": 0, "ttft": []}]}
    rows = [row(OURS, 1, 5.0), row("random", 1, 0.0, **nothing)]
    by_name = {each.policy: each for each in standings(rows)}
    assert "ttft_p50_s" not in by_name["random"].figures
    assert shown(by_name["random"])[4] == "-"
    (kept,) = [each for each in compact(standings(rows)) if each["policy"] == "random"]
    assert "ttft_p50_s" not in kept
    json.dumps(kept, allow_nan=False)


def test_tables_and_plots_of_several_loads(tmp_path: Path) -> None:
    rows = [
        row(name, seed, 5.0, load) for name in (OURS, "random") for seed in (1, 2) for load in (0.7, 1.0, 1.3)
    ]
    text = markdown([each for each in standings(rows) if each.load == 1.0])
    assert text.splitlines()[0].startswith("| policy | goodput /s | ours leads by | TTFT p50 s |")
    assert "| **penstock** | 5.00 ±0.00 |" in text
    assert "| *bound* | 9.00 |" in text
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


CONDITIONS = {"date": "2026-11-22T10:00:00+00:00", "commit": "abc", "machine": "m", "seeds": 2}


def test_the_comparison_is_published_with_held_out_workloads_apart(tmp_path: Path) -> None:
    names = {"penstock": 6.0, "dynamo": 5.0, "llmd_sticky": 4.0, "penstock_exact": 9.0}
    rows = [row(name, seed, goodput, 1.0) for name, goodput in names.items() for seed in (1, 2)]
    played = [
        Played(
            Study("w", MODEL, 2, 8, "present", points=(("zero", 1.0),)), Knee(8.0, 0.91, 5), SETTING, rows
        ),
        Played(Study("v", MODEL, 2, 8, "present", True, (("zero", 1.0),)), Knee(8.0, 0.91, 5), SETTING, rows),
    ]
    files = publish(played, CONDITIONS, tmp_path)
    assert {file.suffix for file in files} == {".json", ".md", ".svg"}
    text = (tmp_path / "results" / "placement.md").read_text()
    assert "2026-11-22, commit abc; m, 2 seeds" in text
    # the best of others: our own variants are not others
    line = f"| w, 8x {MODEL} | 1 | zero | dynamo | +20.0 (+20.0 to +20.0) % ▲ | 1.00x, 1.00x |"
    tuned, held_out = text.split("## Held-out workloads")[0], text.split("## Held-out workloads")[1]
    assert line in tuned
    assert line.replace("| w,", "| v,") in held_out
    data = json.loads((tmp_path / "data" / "scheduling-comparison.json").read_text())
    assert data["studies"][played[0].study.name]["knee_rps"] == 8.0
    assert len(data["standings"]) == 8


def test_the_factorial_is_published_by_placement_and_queue(tmp_path: Path) -> None:
    rows = [row(name, seed, 5.0, 1.0) for name in GROUPS["factorial"] for seed in (1, 2)]
    study = Study("w", MODEL, 2, 8, "factorial", points=(("zero", 1.0),))
    present = Study("w", MODEL, 2, 8, "present", points=(("zero", 1.0),))
    publish(
        [Played(each, Knee(8.0, 0.91, 5), SETTING, rows) for each in (present, study)], CONDITIONS, tmp_path
    )
    text = (tmp_path / "results" / "placement.md").read_text()
    for placement in ("ours", "llmd_sticky", "dynamo", "cache_aware"):
        assert f"| {placement} | 5.00 ±0.00; 0.50, 0.50 | 5.00 ±0.00; 0.50, 0.50 | 5.00 ±0.00;" in text


def test_the_ablation_says_what_gains_and_what_ties(tmp_path: Path) -> None:
    goodput = {OURS: 6.0, "penstock-sticky": 5.0, "penstock-delay": 6.0, "penstock-warm_slack": 7.0}
    rows = [row(name, seed, value, 1.0) for name, value in goodput.items() for seed in (1, 2)]
    study = Study("w", MODEL, 2, 8, "ablation", points=(("zero", 1.0),))
    publish([Played(study, Knee(8.0, 0.91, 5), SETTING, rows)], CONDITIONS, tmp_path)
    lines = (tmp_path / "results" / "ablation.md").read_text().splitlines()
    verdicts = {line.split("`")[1]: line.split("|")[-2].strip() for line in lines if line.startswith("| `")}
    assert verdicts == {"sticky": "gains", "delay": "ties", "warm_slack": "costs"}
    assert not (tmp_path / "results" / "placement.md").exists()


def test_the_summary_is_renewed_between_its_marks_and_nothing_else_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "scheduling.md"
    page.write_text(
        "# Title\n\n<!-- measured: begin -->\n\nearlier figures\n\n<!-- measured: end -->\n\nThe rest.\n"
    )
    names = {OURS: 6.0, "dynamo": 5.0, "penstock-sticky": 4.0}
    rows = [row(name, seed, goodput, 1.0) for name, goodput in names.items() for seed in (1, 2)]
    studies = [Study("w", MODEL, 2, 8, group, points=(("zero", 1.0),)) for group in ("present", "ablation")]
    played = [Played(study, Knee(8.0, 0.91, 5), SETTING, rows) for study in studies]
    publish(played[:1], CONDITIONS, tmp_path)
    assert "earlier figures" in page.read_text(), "half of the figures make no summary"
    paths = publish(played, CONDITIONS, tmp_path)
    text = page.read_text()
    assert page in paths
    assert text.startswith("# Title\n\n<!-- measured: begin -->\n\n2026-11-22, commit abc")
    assert text.endswith("<!-- measured: end -->\n\nThe rest.\n")
    assert "earlier figures" not in text
    assert f"| w, 8x {MODEL} | 1 | zero | dynamo | +20.0 (+20.0 to +20.0) % ▲" in text
    assert "| `sticky`: replicas that hold the prompt first | +50.0 (+50.0 to +50.0) % ▲ | gains |" in text
    for name in ("comparison", "ablation"):
        assert f"(images/scheduling-{name}.svg)" in text
        assert "<svg" in (tmp_path / "images" / f"scheduling-{name}.svg").read_text()


def test_what_others_win_is_listed_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "simulator.md"
    page.write_text("# Title\n\n<!-- measured: begin -->\n<!-- measured: end -->\n")
    points = (("zero", 1.0),)

    def rows_of(**ttft_s: float) -> list[dict[str, Any]]:
        goodput = {OURS: 6.0, "dynamo": 8.0, "llmd_sticky": 5.0, "penstock_exact": 9.0}
        return [
            row(name, seed, goodput[name], blocks=[{"s": 1.0, "n": 9, "met": goodput[name], "ttft": [ttft]}])
            for name, ttft in ttft_s.items()
            for seed in (1, 2)
        ]

    lost = Study("w", MODEL, 2, 8, "present", points=points)
    won = Study("v", MODEL, 2, 8, "present", points=points)
    rows = rows_of(penstock=1.0, dynamo=2.0, llmd_sticky=0.5, penstock_exact=0.1)
    ahead = rows_of(penstock=1.0, llmd_sticky=1.5)
    knee = Knee(8.0, 0.91, 5)
    publish([Played(lost, knee, SETTING, rows), Played(won, knee, SETTING, ahead)], CONDITIONS, tmp_path)
    text = page.read_text()
    assert "at 1 of 2 points; at 1 of them in goodput" in text
    line = f"| w, 8x {MODEL} | 1 | zero | `dynamo` -25.0 % | `llmd_sticky` 2.00x | `llmd_sticky` 2.00x |"
    assert line in text
    assert f"| v, 8x {MODEL}" not in text, "a point at which nobody wins"


def test_studies_of_an_earlier_run_stay_where_they_are_kept(tmp_path: Path) -> None:
    page = tmp_path / "scheduling.md"
    page.write_text("<!-- measured: begin -->\n<!-- measured: end -->\n")
    goodput = {OURS: 6.0, "dynamo": 5.0, "penstock-sticky": 4.0}
    rows = [row(name, seed, value) for name, value in goodput.items() for seed in (1, 2)]
    present = [study for study in STUDIES if study.group == "present"]
    ablation = [study for study in STUDIES if study.group == "ablation"]

    def of(study: Study) -> Played:
        return Played(study, Knee(8.0, 0.91, 5), SETTING, rows)

    publish([of(study) for study in (present[0], *ablation)], CONDITIONS, tmp_path)
    data = tmp_path / "data" / "scheduling-comparison.json"
    before, table = json.loads(data.read_text()), (tmp_path / "results" / "ablation.md").read_text()
    later = {**CONDITIONS, "commit": "def", "machine": "n", "seeds": 3}
    publish([of(present[1])], later, tmp_path, keep=True)
    after = json.loads(data.read_text())
    assert [each for each in after["standings"] if each["study"] != present[1].name] == before["standings"]
    assert {name: facts["commit"] for name, facts in after["studies"].items()} == {
        **{study.name: "abc" for study in (present[0], *ablation)},
        present[1].name: "def",
    }
    for name, facts in after["studies"].items():
        assert (facts["machine"], facts["seeds"]) == (("n", 3) if name == present[1].name else ("m", 2))
    assert after["ablation"] == before["ablation"]
    assert (tmp_path / "results" / "ablation.md").read_text() == table, "no study of the ablation was played"
    comparison = (tmp_path / "results" / "placement.md").read_text()
    assert f"; m, 2 seeds; {present[1].title}: n, 3 seeds." in comparison
    for text in (page.read_text(), comparison):
        assert f"2026-11-22, commit abc; {present[1].title}: 2026-11-22, commit def; " in text
        assert f"2 seeds; {present[1].title}: " in text
        assert text.count("| zero | dynamo | +20.0 (+20.0 to +20.0) % ▲ |") == 2
    assert (
        "| `sticky`: replicas that hold the prompt first | +50.0 (+50.0 to +50.0) % ▲ | gains |"
        in page.read_text()
    )
    with pytest.raises(InvalidRequest, match="play all of them"):
        publish([of(ablation[0])], CONDITIONS, tmp_path, keep=True)


def test_a_standing_is_restored_from_what_is_stored_of_it() -> None:
    rows = [row(name, 1, value) for name, value in ((OURS, 6.0), ("dynamo", 0.0), ("llmd_sticky", 4.0))]
    stored = compact(standings(rows))
    assert compact([restored(each) for each in stored]) == stored


def test_first_tokens_come_earlier_only_where_none_come_later() -> None:
    sooner, later, alike = Bounds(0.8, 0.7, 0.9), Bounds(1.2, 1.1, 1.3), Bounds(1.0, 0.9, 1.1)
    assert earlier([sooner, alike])
    assert not earlier([sooner, later])
    assert not earlier([alike, alike])


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_switched_off_alone(name: str) -> None:
    config = SchedulerConfig()
    without = MECHANISMS[name].without(config)
    changed = {
        field.name
        for part in ("policy", "queue", "admission")
        for field in fields(getattr(config, part))
        if getattr(getattr(config, part), field.name) != getattr(getattr(without, part), field.name)
    }
    mechanism = MECHANISMS[name]
    assert changed == {*mechanism.policy, *mechanism.queue, *mechanism.admission} != set()


@pytest.mark.parametrize("name", list(MECHANISMS))
@pytest.mark.parametrize("refuses", [True, False])
def test_the_switch_reaches_the_policy_whether_it_refuses_or_not(name: str, refuses: bool) -> None:
    made = options_of(f"{OURS}-{name}", Variant(admission=refuses)).state
    without = MECHANISMS[name].without(SchedulerConfig())
    assert made == replace(without, admission=replace(without.admission, enabled=refuses))


@pytest.mark.parametrize("name", [cross.policy for cross in CROSSES])
def test_every_placement_runs_with_every_queue(name: str) -> None:
    (ours,) = play(Cell(replace(SETTING, seconds=60.0), (name,), 1.0, 2.0, 3))
    assert ours["policy"] == name
    assert ours["slo_met"] > 0.5
