"""Tables of a run of the gateway benchmark."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from bench.report import Report, failures, median_interval, middle, section
from bench.stack import ROLES


def tables(report: Report, *, head: bool = True) -> str:
    """Return all tables that the records are enough for, as Markdown; `head` adds a line of conditions."""
    parts = [
        _idle,
        _cpu,
        _core,
        _rate,
        _chunks,
        _pairs,
        _tokens,
        _latency,
        _ttft,
        _memory,
        _late,
        _refused,
        failures,
    ]
    shown = [part(report) for part in parts]
    conditions = report.conditions
    line = f"{conditions['date']}, commit {conditions['commit']}, {conditions['machine']}"
    stated = [f"{line}; load average {conditions['load_average']}"] if head else []
    return "\n\n".join([*stated, *(text for text in shown if text)])


def _by_process(
    report: Report, name: str, target: str, per: Callable[[Mapping[str, Any]], float], scale: float
) -> list[list[str]]:
    """Return rows of CPU by unit, each the median over rounds: every process, their sum, and the sum with idle cost."""
    runs = {key: report.results(name, key, target) for key in report.keys(name)}
    processes = {process for found in runs.values() for each in found for process in each["cpu_s"]}

    def row(title: str, of: Callable[[Mapping[str, float]], float], *, net: bool = True) -> list[str]:
        cells = []
        for found in runs.values():
            costs = [scale * of(report.cpu_ms(each, target, net=net)) / per(each) for each in found]
            whole = [scale * of(report.cpu_ms(each, target, net=False)) / per(each) for each in found]
            cells.append(shown(median(costs), median(whole)) if costs else "")
        return [title, *cells]

    def total(used: Mapping[str, float]) -> float:
        return sum(used.values())

    if len(processes) < 2:
        return [row(target, total)] if processes else []
    return [
        *(row(f"{target}: {process}", itemgetter(process)) for process in sorted(processes, key=ROLES.index)),
        row(f"**{target}, all**", total),
        row(f"{target}, with its idle cost", total, net=False),
    ]


def shown(cost: float, gross: float) -> str:
    """Return a cost as text; "~0" when what was subtracted is so much more that the rest is noise."""
    return "~0" if cost <= 0 or gross - cost > 4 * cost else f"{cost:.3g}"


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
    rows = [
        [role, *(f"{found[target][role]:.2f}" if role in found[target] else "" for target in targets)]
        for role in ROLES if any(role in found[target] for target in targets)
    ]  # fmt: skip
    rows.append(["**all**", *(f"{sum(found[target].values()):.2f}" for target in targets)])
    return section("Without load: CPU ms per second, subtracted below", ["", *targets], rows)


def _cpu(report: Report) -> str:
    return _per_process(
        report, "CPU ms per request, by answer's tokens", "cpu", lambda each: each["requests"], 1.0
    )


def _core(report: Report) -> str:
    rows = []
    for target in report.targets:
        for key in report.keys("core"):
            if runs := report.results("core", key, target):
                rate = median(each["requests"] / each["took_s"] for each in runs)
                cores = median(sum(each["cpu_s"].values()) / each["took_s"] for each in runs)
                rows.append([target, f"{rate / cores:,.0f}", f"{rate:,.0f}", f"{cores:.2f}"])
    title = "Requests per CPU second: whole answers of 16 tokens, 64 at once, all processes of a gateway"
    used = "cores used (below 0.95: no core saturated)"
    return section(title, ["", "requests per CPU second", "requests/s in this run", used], rows)


def _rate(report: Report) -> str:
    title = "CPU ms per request at this many requests/s: whole answers of 1 token"
    return _per_process(report, title, "rate", lambda each: each["requests"], 1.0)


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
    """Pairs of one round: ours or the least possible in Python, and another target, one after the other."""
    rows = []
    for key in report.keys("chunks"):
        for ours in (
            each for each in report.targets if each.startswith("splice") or report.is_platform(each)
        ):
            for other in (target for target in report.targets if target != ours):
                pairs = ratios(report, key, ours, other)
                if len(pairs) > 1:
                    gross = ratios(report, key, ours, other, net=False)
                    cells = [
                        text for share, low, high in (median_interval(pairs), median_interval(gross))
                        for text in (f"{share:.2f}", f"{low:.2f} to {high:.2f}")
                    ]  # fmt: skip
                    rows.append([f"{ours} / {other}", key, *cells, str(len(pairs))])
    head = ["", "streams", "median", "95 % interval", "with idle cost", "95 % interval", "pairs"]
    return section("CPU per chunk, ratios in interleaved pairs", head, rows)


def ratios(report: Report, key: str, ours: str, other: str, *, net: bool = True) -> list[float]:
    """Return the CPU per chunk of one target over another's, by round; all processes together, `net` of idle cost."""
    costs: dict[tuple[str, int], float] = {}
    for each in report.records:
        if (each.section, each.key) == ("chunks", key) and "error" not in each.result:
            used = sum(report.cpu_ms(each.result, each.target, net=net).values())
            costs[each.target, each.round] = used / each.result["events"]
    rounds = [number for target, number in costs if target == ours and (other, number) in costs]
    return [costs[ours, number] / costs[other, number] for number in rounds]


def added(report: Report, name: str, field: str, target: str) -> list[float]:
    """Return the seconds that a target adds to p50 and p99 of the engine alone; nothing where one was not measured."""
    both = [
        _quantiles(report.results(name, key, each), field)
        for key in report.keys(name)[:1]
        for each in (target, "direct")
    ]
    return [value - less for value, less in zip(*both, strict=True)] if len(both) == 2 and all(both) else []


def _added(report: Report, name: str, field: str, title: str) -> str:
    rows = []
    for key in report.keys(name)[:1]:
        for target in report.targets:
            if both := _quantiles(report.results(name, key, target), field):
                values = [*both, *added(report, name, field, target)]
                rows.append([target, *(f"{1e3 * value:.2f}" for value in values)])
    return section(title, ["", "p50 ms", "p99 ms", "added p50", "added p99"], rows)


def _quantiles(runs: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    """Return the median over rounds of p50 and of p99; nothing without rounds."""
    return [middle(runs, f"{field}_{name}_s") for name in ("p50", "p99")] if runs else []


def _latency(report: Report) -> str:
    rate = report.conditions["rate_per_s"]
    return _added(report, "latency", "e2e", f"Latency of whole answers of 16 tokens at {rate:g} requests/s")


def _ttft(report: Report) -> str:
    return _added(report, "ttft", "ttft", "Time to first token at 64 streams")


def _memory(report: Report) -> str:
    rows = []
    for target in report.targets:
        for each in report.results("memory", "2000", target):
            name = "api" if "api" in each["rss_open"] else next(iter(each["rss_open"]))
            grown = each["rss_open"][name] - each["rss_before"][name]
            idle = each.get("rss_idle", each["rss_before"])[name]
            rows.append([target, f"{idle / 2**20:.0f}", f"{grown / each['streams'] / 1024:.1f}"])
    return section(
        "Memory of the process that holds the streams", ["", "MiB before", "KiB per idle stream"], rows
    )


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
