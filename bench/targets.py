"""The targets of docs/performance.md, and what runs of `bench.gateway` and `bench.through` measured of them."""

from collections import Counter
from statistics import median

from bench.gateway import tables as gateway_tables
from bench.report import Report, median_interval, section
from bench.through import tables as through_tables

OURS = "penstock"
RIVAL = "vllm-router"
REQUEST_COSTS: tuple[tuple[str, float, str, str, tuple[str, ...]], ...] = (
    ("API process, ms per whole answer of 1 token", 0.5, "cpu", "whole 1", ("api",)),
    ("API process, ms per whole answer of 1,000 tokens", 1.0, "cpu", "whole 1000", ("api",)),
    ("all processes, ms per whole answer of 1 token", 1.0, "cpu", "whole 1", ()),
    ("scheduler, ms per request at 1,000 requests/s", 0.15, "rate", "1000", ("scheduler",)),
    ("PostgreSQL, ms per request at 1,000 requests/s", 0.2, "rate", "1000", ("postgres",)),
    ("Redis and jobs, ms per request at 1,000 requests/s", 0.15, "rate", "1000", ("redis", "jobs")),
)
"""Targets of CPU per request: what, limit, cell by section and key, and the processes that are summed; () = all."""


def targets(gateway: Report | None, through: Report | None, pinned: Report | None = None) -> str:
    """Return the table of targets and what these runs measured; a figure that was not measured has no line.

    `pinned`: of `bench.through` with processors of its own for the engine.
    """
    rows = [
        *(_gateway_targets(gateway) if gateway else []),
        *(_through_targets(through) if through else []),
        *(_pinned_targets(pinned) if pinned else []),
    ]
    table = section("Targets", ["", "target", "measured", ""], rows)
    return f"{table}\n\n{_JUDGED}" if table else ""


_JUDGED = """Where pairs were measured, a target is met when the whole interval of their median meets it: of 95 %, below
six pairs from the least to the greatest. Elsewhere the median of the rounds is judged. A failed cell misses its
target."""


def _gateway_targets(report: Report) -> list[list[str]]:
    rows = []
    for what, limit, name, key, roles in REQUEST_COSTS:
        if cost := _request_ms(report, name, key):
            rows.append(_row(what, limit, sum(cost[role] for role in roles or cost)))
        elif reason := report.unmeasured(name, key, OURS):
            rows.append(_failed(what, limit, reason))
    for key in ("64", "512"):
        if pairs := gateway_tables.ratios(report, key, OURS, RIVAL):
            rows.append(_pairs(f"CPU per chunk over {RIVAL}'s at {key} streams", 1.2, pairs))
        elif reason := report.unmeasured("chunks", key, OURS, RIVAL):
            rows.append(_failed(f"CPU per chunk over {RIVAL}'s at {key} streams", 1.2, reason))
    for name, field, limits in (("latency", "e2e", (2.0, 8.0)), ("ttft", "ttft", (2.0,))):
        what = (
            "latency, ms at 200 requests/s" if name == "latency" else "time to first token, ms at 64 streams"
        )
        found = gateway_tables.added(report, name, field, OURS)
        rows += [
            _row(f"added p{percent} {what}", limit, 1e3 * value)
            for percent, limit, value in zip((50, 99), limits, found, strict=False)
        ]
        if not found and (reason := _unadded(report, name)):
            rows += [
                _failed(f"added p{percent} {what}", limit, reason)
                for percent, limit in zip((50, 99), limits, strict=False)
            ]
    if reason := report.unmeasured("memory", "2000", OURS):
        rows.append(_failed("KB per idle stream", 20.0, reason))
    for each in report.results("memory", "2000", OURS):
        grown = each["rss_open"]["api"] - each["rss_before"]["api"]
        rows.append(_row("KB per idle stream", 20.0, grown / each["streams"] / 1000))
    if reason := report.unmeasured("late", "2000", OURS):
        rows += [_failed(f"events {name} at 2,000 streams", 0, reason) for name in ("lost", "late")]
    for each in report.results("late", "2000", OURS):
        rows += [_row(f"events {name} at 2,000 streams", 0, each[name]) for name in ("lost", "late")]
    return rows


def _unadded(report: Report, name: str) -> str:
    """Return why a target adds an unknown time; "" where it is known or was not measured."""
    return next((report.unmeasured(name, key, OURS, "direct") for key in report.keys(name)[:1]), "")


def _request_ms(report: Report, part: str, key: str) -> dict[str, float]:
    runs = [(report.cpu_ms(each, OURS), each["requests"]) for each in report.results(part, key, OURS)]
    return {name: median(used[name] / count for used, count in runs) for name in runs[0][0]} if runs else {}


def _through_targets(report: Report) -> list[list[str]]:
    rows = []
    for key in report.keys("through"):
        if pairs := through_tables.shares(report, key):
            rows.append(_pairs(f"share of the engine's tokens/s at {key} at once", 0.95, pairs, least=True))
        elif reason := report.unmeasured("through", key, "through", "direct"):
            rows.append(_failed(f"share of the engine's tokens/s at {key} at once", 0.95, reason, least=True))
    if report.results("through", "128", "through") and report.results("through", "128", "direct"):
        ratio = through_tables.ttft_ratio(report, "128", "ttft_p99_s")
        rows.append(_row("p99 time to first token over direct at 128 at once", 1.3, ratio))
    elif reason := report.unmeasured("through", "128", "through", "direct"):
        rows.append(_failed("p99 time to first token over direct at 128 at once", 1.3, reason))
    refused: Counter[str] = Counter()
    for record in report.records:
        refused.update(record.result.get("refused", {}))
    rows.append(_row("refusals `billing_unavailable`", 0, refused["503 billing_unavailable"]))
    return rows


def _row(what: str, limit: float, value: float) -> list[str]:
    return [what, _limit(limit), f"{value:.3g}", "met" if value <= limit else "missed"]


def _pairs(what: str, limit: float, pairs: list[float], *, least: bool = False) -> list[str]:
    """Return a row that is met when the whole interval of the pairs' median meets the limit."""
    share, low, high = median_interval(pairs)
    met = low >= limit if least else high <= limit
    note = f"{low:.2f} to {high:.2f}, {len(pairs)} pairs" if len(pairs) > 1 else "1 pair"
    measured = f"{share:.3g} ({note})"
    return [what, _limit(limit, least=least), measured, "met" if met else "missed"]


def _failed(what: str, limit: float, reason: str, *, least: bool = False) -> list[str]:
    return [what, _limit(limit, least=least), f"failed: {reason}", "missed"]


def _limit(limit: float, *, least: bool = False) -> str:
    return f"{'at least' if least else 'at most'} {limit:g}"


def _pinned_targets(report: Report) -> list[list[str]]:
    return [
        _pairs(f"the same at {key} at once, the engine on processors of its own", 0.99, pairs, least=True)
        for key in report.keys("through")
        if (pairs := through_tables.shares(report, key))
    ]
