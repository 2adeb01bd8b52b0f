"""Tables of a run of the benchmark through the platform."""

from collections import Counter
from statistics import median
from typing import Any

from bench.report import Report, median_interval, quantile, section


def tables(report: Report) -> str:
    """Return all tables as Markdown."""
    conditions = report.conditions
    head = (
        f"{conditions['date']}, commit {conditions['commit']}, {conditions['machine']}, {conditions['model']}"
    )
    parts = [
        f"{head}; load average {conditions['load_average']}",
        _speed(report),
        _cpu(report),
        _refused(report),
    ]
    return "\n\n".join(part for part in parts if part)


def _speed(report: Report) -> str:
    rows = []
    for key in report.keys("through"):
        runs = {target: report.results("through", key, target) for target in report.targets}
        speeds = {
            target: [each["tokens"] / each["took_s"] for each in found] for target, found in runs.items()
        }
        shares = [mine / bare for mine, bare in zip(speeds["through"], speeds["direct"], strict=False)]
        for target in report.targets:
            if runs[target]:
                rows.append([key, target, f"{median(speeds[target]):,.0f}", *_times(runs[target])])
        if shares:
            middle, low, high = median_interval(shares)
            ttft = [
                _middle(runs["through"], "ttft_s", share) / _middle(runs["direct"], "ttft_s", share)
                for share in (0.5, 0.99)
            ]
            interval = f" ({low:.3f} to {high:.3f})" if len(shares) > 1 else ""
            rows.append(
                [key, "through / direct", f"{middle:.3f}{interval}", *(f"{each:.2f}x" for each in ttft), ""]
            )
    head = ["at once", "", "tokens/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms"]
    return section("Speed", head, rows)


def _times(runs: list[dict[str, Any]]) -> list[str]:
    wanted = (("ttft_s", 0.5), ("ttft_s", 0.99), ("tpot_s", 0.5))
    return [f"{1e3 * _middle(runs, field, share):,.1f}" for field, share in wanted]


def _middle(runs: list[dict[str, Any]], field: str, share: float) -> float:
    return median(quantile(each[field], share) for each in runs)


def _cpu(report: Report) -> str:
    """CPU by process: the engine with its children, and every process of the platform, idle cost included."""
    idle = report.idle_ms_per_s("through")
    names = sorted(idle, key=lambda name: name != "engine")
    rows = [["idle, ms per s", "", *(f"{idle[name]:.1f}" for name in names)]]
    for key in report.keys("through"):
        for target in report.targets:
            if runs := report.results("through", key, target):
                used = [median(1e6 * each["cpu_s"][name] / each["tokens"] for each in runs) for name in names]
                rows.append([key, target, *(f"{each:,.0f}" for each in used)])
    return section("CPU us per token by process", ["at once", "", *names], rows)


def _refused(report: Report) -> str:
    codes: Counter[tuple[str, str, str]] = Counter()
    for record in report.records:
        for code, times in record.result.get("refused", {}).items():
            codes[record.key, record.target, code] += times
    return section(
        "Refused and sent again",
        ["at once", "", "code", "times"],
        [[*key, str(n)] for key, n in codes.items()],
    )
