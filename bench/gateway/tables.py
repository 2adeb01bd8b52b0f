"""Tables of a run of the gateway benchmark."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from bench.report import Report, median_interval, quantile, section
from bench.stack import ROLES


def tables(report: Report) -> str:
    """Return all tables that the records are enough for, as Markdown."""
    parts = [_idle, _cpu, _chunks, _pairs, _tokens, _latency, _ttft, _memory, _late, _refused]
    shown = [part(report) for part in parts]
    conditions = report.conditions
    head = f"{conditions['date']}, commit {conditions['commit']}, {conditions['machine']}"
    load = f"load average {conditions['load_average']}"
    return "\n\n".join([f"{head}; {load}", *(text for text in shown if text)])


def _by_process(
    report: Report, name: str, target: str, per: Callable[[Mapping[str, Any]], float], scale: float
) -> list[list[str]]:
    """Return rows of CPU by unit, each the median over rounds: every process, their sum, and the sum with idle cost."""
    runs = {key: report.results(name, key, target) for key in report.keys(name)}
    processes = {process for found in runs.values() for each in found for process in each["cpu_s"]}

    def row(title: str, of: Callable[[Mapping[str, float]], float], *, net: bool = True) -> list[str]:
        values = [
            [scale * of(report.cpu_ms(each, target, net=net)) / per(each) for each in found if per(each)]
            for found in runs.values()
        ]
        return [title, *(f"{median(each):.3g}" if each else "" for each in values)]

    def total(used: Mapping[str, float]) -> float:
        return sum(used.values())

    if len(processes) < 2:
        return [row(target, total)] if processes else []
    return [
        *(row(f"{target}: {process}", itemgetter(process)) for process in sorted(processes, key=ROLES.index)),
        row(f"**{target}, all**", total),
        row(f"{target}, with its idle cost", total, net=False),
    ]


def _per_process(
    report: Report, title: str, name: str, per: Callable[[Mapping[str, Any]], float], scale: float
) -> str:
    rows = [row for target in report.targets for row in _by_process(report, name, target, per, scale)]
    return section(title, ["", *report.keys(name)], rows)


def _idle(report: Report) -> str:
    targets = [target for target in report.targets if report.idle_ms_per_s(target)]
    if not targets:
        return ""
    found = {target: report.idle_ms_per_s(target) for target in targets}
    rows = [[role, *(f"{found[target].get(role, 0.0):.2f}" for target in targets)] for role in ROLES]
    rows.append(["**all**", *(f"{sum(found[target].values()):.2f}" for target in targets)])
    return section("Without load: CPU ms per second, subtracted below", ["", *targets], rows)


def _cpu(report: Report) -> str:
    return _per_process(
        report, "CPU ms per request, by answer's tokens", "cpu", lambda each: each["requests"], 1.0
    )


def _chunks(report: Report) -> str:
    return _per_process(
        report, "CPU us per chunk, by open streams", "chunks", lambda each: each["events"], 1e3
    )


def _tokens(report: Report) -> str:
    def tokens(each: Mapping[str, Any]) -> float:
        return each["window_s"] * 64 * 100

    title = "CPU us per token at 64 streams of 100 tokens/s, with the gateway's own stream interval"
    return _per_process(report, title, "tokens", tokens, 1e3)


def _pairs(report: Report) -> str:
    """Pairs of one round: ours and another target, one after the other."""
    rows = []
    for key in report.keys("chunks"):
        costs = {target: _per_event(report, key, target) for target in report.targets}
        for ours in report.targets:
            others = [each for each in report.targets if each != ours] if report.idle_ms_per_s(ours) else []
            for other in others:
                ratios = [mine / theirs for mine, theirs in zip(costs[ours], costs[other], strict=False)]
                if len(ratios) > 1:
                    middle, low, high = median_interval(ratios)
                    interval = f"{low:.2f} to {high:.2f}"
                    rows.append([f"{ours} / {other}", key, f"{middle:.2f}", interval, str(len(ratios))])
    head = ["", "streams", "median", "95 % interval", "pairs"]
    return section("CPU per chunk, ratios in interleaved pairs", head, rows)


def _per_event(report: Report, key: str, target: str) -> list[float]:
    runs = report.results("chunks", key, target)
    return [sum(report.cpu_ms(each, target).values()) / each["events"] for each in runs]


def _added(report: Report, name: str, field: str, title: str) -> str:
    rows = []
    for key in report.keys(name):
        found = {target: _quantiles(report.results(name, key, target), field) for target in report.targets}
        base = found.get("direct") or [0.0, 0.0]
        for target, both in found.items():
            if both:
                added = [value - less for value, less in zip(both, base, strict=True)]
                rows.append([target, *(f"{1e3 * value:.2f}" for value in (*both, *added))])
    return section(title, ["", "p50 ms", "p99 ms", "added p50", "added p99"], rows)


def _quantiles(runs: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    """Return the median over rounds of p50 and of p99; nothing without rounds."""
    return [median(quantile(each[field], share) for each in runs) for share in (0.5, 0.99)] if runs else []


def _latency(report: Report) -> str:
    rate = report.conditions["rate_per_s"]
    return _added(report, "latency", "e2e_s", f"Latency of whole answers of 16 tokens at {rate:g} requests/s")


def _ttft(report: Report) -> str:
    return _added(report, "ttft", "ttft_s", "Time to first token at 64 streams")


def _memory(report: Report) -> str:
    rows = []
    for target in report.targets:
        for each in report.results("memory", "2000", target):
            name = "api" if "api" in each["rss_open"] else next(iter(each["rss_open"]))
            before, grown = each["rss_before"][name], each["rss_open"][name] - each["rss_before"][name]
            rows.append([target, f"{before / 2**20:.0f}", f"{grown / each['streams'] / 1024:.1f}"])
    return section("Memory of the API process", ["", "MiB before", "KiB per idle stream"], rows)


def _late(report: Report) -> str:
    rows = []
    for target in report.targets:
        for each in report.results("late", "2000", target):
            counts = [f"{each[name]:,}" for name in ("events", "lost", "late")]
            rows.append(
                [target, *counts, *(f"{each[f'delay_{name}_ms']:.1f}" for name in ("p50", "p99", "max"))]
            )
    head = ["", "events", "lost", "late", "delay p50 ms", "p99", "max"]
    return section("2,000 streams at 5 events/s: lost, and over 100 ms behind the engine", head, rows)


def _refused(report: Report) -> str:
    rows = []
    for target in report.targets:
        codes: Counter[str] = Counter()
        for record in report.records:
            if record.target == target:
                codes.update(record.result.get("refused", {}))
        rows += [[target, code, str(times)] for code, times in codes.items()]
    return section("Refused and sent again", ["", "code", "times"], rows)
