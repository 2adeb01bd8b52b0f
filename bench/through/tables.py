"""Tables of a run of the benchmark through the platform."""

from collections import Counter
from statistics import median

from bench.report import Report, failures, median_interval, middle, section


def tables(report: Report, *, head: bool = True) -> str:
    """Return all tables as Markdown; `head` adds a line of conditions."""
    conditions = report.conditions
    line = (
        f"{conditions['date']}, commit {conditions['commit']}, {conditions['machine']}, {conditions['model']}"
    )
    stated = [f"{line}; load average {conditions['load_average']}"] if head else []
    parts = [
        *stated,
        _speed(report),
        _explained(report),
        _waits(report),
        _events(report),
        _cpu(report),
        _refused(report),
        failures(report),
    ]
    return "\n\n".join(part for part in parts if part)


def shares(report: Report, key: str, of: str = "through") -> list[float]:
    """Return the tokens per second of a target over direct ones, by round."""
    speeds = {
        (each.target, each.round): each.result["tokens"] / each.result["took_s"]
        for each in report.records
        if (each.section, each.key) == ("through", key) and "error" not in each.result
    }
    rounds = [number for target, number in speeds if target == of and ("direct", number) in speeds]
    return [speeds[of, number] / speeds["direct", number] for number in rounds]


def ttft_ratio(report: Report, key: str, field: str) -> float:
    """Return a percentile of the time to first token through the platform over the direct one."""
    mine, bare = (middle(report.results("through", key, target), field) for target in ("through", "direct"))
    return mine / bare


def _speed(report: Report) -> str:
    fields = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s")
    rows = []
    for key in report.keys("through"):
        for target in report.targets:
            if runs := report.results("through", key, target):
                speed = median(each["tokens"] / each["took_s"] for each in runs)
                times = [f"{1e3 * middle(runs, field):,.1f}" for field in fields]
                rows.append([key, target, f"{speed:,.0f}", *times])
        if pairs := shares(report, key):
            share, low, high = median_interval(pairs)
            interval = f" ({low:.3f} to {high:.3f})" if len(pairs) > 1 else ""
            ratios = [f"{ttft_ratio(report, key, field):.2f}x" for field in fields]
            rows.append([key, "through / direct", f"{share:.3f}{interval}", *ratios])
    return section("Speed", ["at once", "", "tokens/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms"], rows)


def _explained(report: Report) -> str:
    """The share of the engine's tokens per second beside the one that the CPU of each token predicts."""
    rows = []
    for key in report.keys("through"):
        costs = {target: _all_cpu_us(report, key, target) for target in report.targets}
        for target in report.targets:
            if target == "direct" or not costs[target] or not costs["direct"]:
                continue
            share, low, high = median_interval(shares(report, key, target))
            cpu = [
                f"{costs['direct']:,.0f}",
                f"{costs[target]:,.0f}",
                f"{costs['direct'] / costs[target]:.3f}",
            ]
            rows.append([key, target, f"{share:.3f} ({low:.3f} to {high:.3f})", *cpu])
    head = ["at once", "", "tokens/s over direct", "CPU us a token, direct", "here", "direct over here"]
    return section("Speed beside the CPU of a token, load generator included", head, rows)


def _all_cpu_us(report: Report, key: str, target: str) -> float:
    """Return the CPU microseconds of a token in all processes, idle cost subtracted; 0 when not measured."""
    runs = [each for each in report.results("through", key, target) if "load_cpu_s" in each]
    used = [
        1e3 * sum(report.cpu_ms(each, "through").values()) / each["tokens"]
        + 1e6 * each["load_cpu_s"] / each["tokens"]
        for each in runs
    ]
    return median(used) if used else 0.0


def _waits(report: Report) -> str:
    """Where the time to first token of the platform goes, by its usage rows."""
    rows = []
    for key in report.keys("through"):
        runs = [each for each in report.results("through", key, "through") if "queue_p50_s" in each]
        if runs:
            names = (
                "queue_p50_s",
                "queue_p99_s",
                "own_ttft_p50_s",
                "own_ttft_p99_s",
                "ttft_p50_s",
                "ttft_p99_s",
            )
            rows.append([key, *(f"{1e3 * middle(runs, name):,.1f}" for name in names)])
    head = [
        "at once",
        "queued p50 ms",
        "p99",
        "TTFT by the API process p50 ms",
        "p99",
        "by the client p50 ms",
        "p99",
    ]
    return section("Waits through the platform", head, rows)


def _events(report: Report) -> str:
    """How evenly tokens come: gaps between the reads of a stream."""
    rows = []
    for key in report.keys("through"):
        for target in report.targets:
            if runs := [each for each in report.results("through", key, target) if "gap_p50_s" in each]:
                engine = median(1e6 * each["cpu_s"]["engine"] / each["tokens"] for each in runs)
                gaps = [f"{1e3 * middle(runs, name):,.1f}" for name in ("gap_p50_s", "gap_p99_s")]
                rows.append([key, target, *gaps, f"{engine:,.0f}"])
    return section("Events", ["at once", "", "gap p50 ms", "gap p99 ms", "engine CPU us a token"], rows)


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
