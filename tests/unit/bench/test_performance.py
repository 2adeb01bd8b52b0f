"""Figures are computed from records as the page says, and the page shows them."""

from pathlib import Path
from typing import Any

import pytest

from bench.gateway import tables as gateway_tables
from bench.gateway.cells import SECTIONS, cells
from bench.performance import publish
from bench.report import Record, Report, median_interval
from bench.targets import targets
from bench.through import tables as through_tables

CONDITIONS = {
    "date": "2026-01-02T03:04:05+00:00", "commit": "abc1234", "machine": "x86_64, 2 cores", "load_average": 0.1,
    "rate_per_s": 200.0, "model": "m", "notes": ["vllm-router: 1.0", "litellm: skipped, no program"],
}  # fmt: skip


def cpu(window_s: float, **used_s: float) -> dict[str, Any]:
    return {"cpu_s": used_s, "window_s": window_s, "refused": {}}


def gateway_report() -> Report:
    times = {"ttft_p50_s": 0.002, "ttft_p99_s": 0.004, "e2e_p50_s": 0.003, "e2e_p99_s": 0.009}
    direct = {"ttft_p50_s": 0.001, "ttft_p99_s": 0.001, "e2e_p50_s": 0.001, "e2e_p99_s": 0.002}
    at_1000 = {"scheduler": 0.2, "postgres": 0.1, "redis": 0.1}
    records = [
        Record("idle", "idle", "penstock", 0, cpu(10, api=0.1, jobs=0.2)),
        Record("cpu", "whole 1", "penstock", 0, {**cpu(2, api=0.52, jobs=0.04), "requests": 1000, "took_s": 1.0}),
        Record("cpu", "whole 1", "vllm-router", 0, {**cpu(2, **{"vllm-router": 0.1}), "requests": 1000, "took_s": 1}),
        Record("core", "16", "penstock", 0, {**cpu(2, api=0.5, jobs=0.5), "requests": 1000, "took_s": 2.0}),
        Record("rate", "1000", "penstock", 0, {**cpu(5, api=0.5, jobs=0.3, **at_1000), "requests": 1000}),
        Record("latency", "200", "direct", 0, {**cpu(1), **direct, "requests": 200}),
        Record("latency", "200", "penstock", 0, {**cpu(1, api=0.1, jobs=0.0), **times, "requests": 200}),
        Record("memory", "2000", "penstock", 0, {"streams": 2000, "rss_before": {"api": 10**8},
                                                 "rss_open": {"api": 10**8 + 30_000_000}}),
        Record("late", "2000", "penstock", 0, {**cpu(1, api=0.1, jobs=0.0), "events": 10, "lost": 0, "late": 2,
                                               "delay_p50_ms": 1.0, "delay_p99_ms": 2.0, "delay_max_ms": 120.0}),
    ]  # fmt: skip
    for number in range(10):
        mine = {**cpu(1, api=0.03 + 0.001 * number + 0.01, jobs=0.02), "events": 1000}
        records.append(Record("chunks", "64", "penstock", number, mine))
        records.append(
            Record("chunks", "64", "vllm-router", number, {**cpu(1, **{"vllm-router": 0.02}), "events": 1000})
        )
    records.append(
        Record("chunks", "64", "penstock", 10, {"error": "no streams", "refused": {"503 full": 3}})
    )
    return Report(CONDITIONS, ["direct", "penstock", "vllm-router"], records)


def through_report() -> Report:
    def run(target: str, took_s: float, ttft_s: float, refused: dict[str, int]) -> Record:
        result = {"cpu_s": {"engine": 1.0, "api": 0.1}, "window_s": 3.0, "tokens": 1000, "took_s": took_s,
                  "ttft_p50_s": ttft_s, "ttft_p99_s": 2 * ttft_s, "tpot_p50_s": 0.01, "refused": refused}  # fmt: skip
        return Record("through", "128", target, 0, result)

    idle = Record("idle", "idle", "through", 0, cpu(5, engine=0.1, api=0.02))
    refusals = {"503 billing_unavailable": 1}
    records = [idle, run("direct", 1.0, 0.1, {}), run("through", 1.25, 0.2, refusals)]
    return Report(CONDITIONS, ["direct", "through"], records)


def test_the_median_has_an_interval_from_order_statistics() -> None:
    assert median_interval(range(10)) == (4.5, 1, 8)
    assert median_interval([2.0, 1.0]) == (1.5, 1.0, 2.0)


def test_idle_cost_is_subtracted_by_process() -> None:
    report = gateway_report()
    (result,) = report.results("cpu", "whole 1", "penstock")
    assert report.cpu_ms(result, "penstock") == pytest.approx({"api": 500.0, "jobs": 0.0})
    assert report.cpu_ms(result, "penstock", net=False) == pytest.approx({"api": 520.0, "jobs": 40.0})


def test_ratios_pair_the_runs_of_a_round() -> None:
    found = gateway_tables.ratios(gateway_report(), "64", "penstock", "vllm-router")
    assert found == pytest.approx([1.5 + 0.05 * number for number in range(10)])


def test_targets_are_judged() -> None:
    rows = [
        line
        for line in targets(gateway_report(), through_report()).splitlines()
        if line.startswith("|") and "at " in line
    ]
    judged = {line.split("|")[1].strip(): line.split("|")[4].strip() for line in rows}
    assert judged == {
        "API process, ms per whole answer of 1 token": "met",
        "all processes, ms per whole answer of 1 token": "met",
        "scheduler, ms per request at 1,000 requests/s": "missed",
        "PostgreSQL, ms per request at 1,000 requests/s": "met",
        "Redis and jobs, ms per request at 1,000 requests/s": "missed",
        "CPU per chunk over vllm-router's at 64 streams": "missed",
        "added p50 latency, ms at 200 requests/s": "met",
        "added p99 latency, ms at 200 requests/s": "met",
        "KB per idle stream": "met",
        "events lost at 2,000 streams": "met",
        "events late at 2,000 streams": "missed",
        "share of the engine's tokens/s at 128 at once": "missed",
        "p99 time to first token over direct at 128 at once": "missed",
        "refusals `billing_unavailable`": "missed",
    }


def test_the_page_is_written_from_both_benchmarks_whichever_runs_last(tmp_path: Path) -> None:
    publish(through=through_report(), docs=tmp_path)
    written = publish(gateway=gateway_report(), docs=tmp_path)
    assert tmp_path / "images" / "performance.svg" in written
    page = (tmp_path / "performance.md").read_text()
    assert "| **penstock, all**" in page
    assert "| through / direct" in page
    assert "vllm-router: 1.0" in page
    assert "skipped, no program" not in page


def test_a_run_with_processors_of_its_own_is_a_part_of_its_own_with_a_stricter_target(tmp_path: Path) -> None:
    shared = through_report()
    apart = Report(
        CONDITIONS | {"cores": {"platform": [0], "engine": [1], "load": [0]}}, shared.targets, shared.records
    )
    publish(through=apart, docs=tmp_path)
    publish(through=shared, docs=tmp_path)
    page = (tmp_path / "performance.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    limits = {row[1]: row[2] for row in rows if len(row) == 6 and row[3] == "0.8 (1 pair)"}
    assert limits == {
        "share of the engine's tokens/s at 128 at once": "at least 0.95",
        "the same at 128 at once, the engine on processors of its own": "at least 0.99",
    }
    assert "the engine\nhas 1, the platform 0, the load generator 0" in page


def test_tables_survive_records_as_json() -> None:
    for report, module in ((gateway_report(), gateway_tables), (through_report(), through_tables)):
        assert module.tables(Report.from_json(report.as_json())) == module.tables(report)


def test_every_section_has_cells_and_only_chosen_ones_run() -> None:
    every = cells(quick=False, rounds=10, rate=200)
    assert {cell.section for cell in every} == {"idle", *SECTIONS}
    assert [cell.section for cell in cells(quick=True, rounds=1, rate=200, only=["core"])] == ["idle", "core"]


def test_idle_cost_is_subtracted_for_every_target_and_shown_beside_in_the_ratios() -> None:
    report = gateway_report()
    report.records.append(Record("idle", "idle", "vllm-router", 0, cpu(10, **{"vllm-router": 0.1})))
    net = gateway_tables.ratios(report, "64", "penstock", "vllm-router")
    gross = gateway_tables.ratios(report, "64", "penstock", "vllm-router", net=False)
    assert net[0] == pytest.approx(0.03 / 0.01)
    assert gross[0] == pytest.approx(0.06 / 0.02)
    text = gateway_tables.tables(report)
    assert "with idle cost" in text
    assert "vllm-router / penstock" not in text


def test_a_cell_that_failed_misses_its_target_and_is_listed() -> None:
    error = {"error": "RuntimeError: answered | 500", "refused": {"503 billing_unavailable": 2}}
    report = gateway_report()
    tried = [Record("memory", "2000", "penstock", 0, error)] * 2
    failed = Report(CONDITIONS, report.targets, [r for r in report.records if r.section != "memory"] + tried)
    (line,) = [line for line in targets(failed, None).splitlines() if "KB per idle stream" in line]
    assert "failed: RuntimeError: answered / 500" in line
    assert "missed" in line
    page = gateway_tables.tables(failed)
    assert page.count("no figure") == 3
    assert "| penstock | 503 billing_unavailable | 4" in page


def test_a_failed_attempt_beside_a_measured_one_is_listed_and_keeps_the_figure() -> None:
    report = gateway_report()
    report.records.append(Record("memory", "2000", "penstock", 0, {"error": "OSError: x", "refused": {}}))
    assert not report.unmeasured("memory", "2000", "penstock")
    (line,) = [line for line in gateway_tables.tables(report).splitlines() if "OSError: x" in line]
    assert "measured" in line


def test_a_target_is_met_only_when_the_whole_interval_meets_it() -> None:
    records = []
    for number, share in enumerate((0.9, 0.96, 0.97, 0.98, 0.99)):
        for target, speed in (("direct", 1.0), ("through", share)):
            result = {"tokens": speed, "took_s": 1.0, "refused": {}}
            records.append(Record("through", "8", target, number, result))
    text = targets(None, Report(CONDITIONS, ["direct", "through"], records))
    (line,) = [line for line in text.splitlines() if "at 8 at once" in line]
    assert "0.97 (0.90 to 0.99, 5 pairs)" in line
    assert "missed" in line


@pytest.mark.parametrize("changed", [{"quick": True}, {"commit": "abc1234+"}])
def test_quick_runs_and_changed_checkouts_are_not_published(tmp_path: Path, changed: dict[str, Any]) -> None:
    report = Report(CONDITIONS | changed, ["direct"], [])
    with pytest.raises(ValueError, match=r"quick run|changed files"):
        publish(gateway=report, docs=tmp_path)


def test_the_loss_is_put_beside_the_cpu_of_a_token() -> None:
    """A token costs 900 us directly and 1,000 us through the platform, idle cost and load generator included."""
    idle = Record("idle", "idle", "through", 0, {"cpu_s": {"engine": 0.0, "api": 0.1}, "window_s": 10.0})

    def run(target: str, number: int, engine_s: float, api_s: float, took_s: float) -> Record:
        result = {
            "tokens": 1000, "took_s": took_s, "window_s": 1.0, "requests": 10, "load_cpu_s": 0.1,
            "cpu_s": {"engine": engine_s, "api": api_s + 0.01}, "ttft_p50_s": 0.1, "ttft_p99_s": 0.2,
            "tpot_p50_s": 0.01, "gap_p50_s": 0.03, "gap_p99_s": 0.05,
        }  # fmt: skip
        if target == "through":
            result |= {
                "queue_p50_s": 0.001, "queue_p99_s": 0.7, "own_ttft_p50_s": 0.1, "own_ttft_p99_s": 0.75,
            }  # fmt: skip
        return Record("through", "32", target, number, result)

    records = [idle, run("direct", 0, 0.8, 0.0, 1.0), run("through", 0, 0.8, 0.1, 1.25)]
    shown = through_tables.tables(Report(CONDITIONS, ["direct", "through"], records), head=False)
    explained, waits, events = (
        next(line for line in shown.split(title)[1].splitlines() if line.startswith("| 32"))
        for title in ("### Speed beside the CPU", "### Waits through the platform", "### Events")
    )
    assert [cell.strip() for cell in explained.split("|")[1:-1]] == [
        "32", "through", "0.800 (0.800 to 0.800)", "900", "1,000", "0.900",
    ]  # fmt: skip
    assert [cell.strip() for cell in waits.split("|")[1:-1]] == [
        "32", "1.0", "700.0", "100.0", "750.0", "100.0", "200.0",
    ]  # fmt: skip
    assert [cell.strip() for cell in events.split("|")[1:-1]] == ["32", "direct", "30.0", "50.0", "800"]
