"""The result of a sustained load as text, as a plot, and as docs/results/load.md."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.load.result import growth
from bench.performance import COLOURS
from bench.report import section
from bench.results import enlist
from bench.stack import ROOT

DOCS = ROOT / "docs"
GROWTH_SHARE, GROWTH_MIB = 0.1, 16.0
"""Memory is flat when the last quarter's median is above the second quarter's by no more than one of them."""
_HEAD = """# Sustained load

Written by `make load ARGS=--publish`; do not edit. `penstock up --engine external` runs in front of a mock engine
(`bench/gateway/mock_engine.py`), with everything on: a key with limits on all scopes, prepaid credit, holds,
settlement, scheduler, jobs and console. Requests arrive at constant intervals. While fewer streams than wanted are
open, the next request is a stream of 30 to 90 seconds, each token an event; all others are whole answers of 16 tokens.
A refused request is sent again. Clients, engine and platform share the machine.

Memory is what a process has to itself (RssAnon, with children). It is flat when its median in the last quarter of the
load is at most 10 % or 16 MiB above that of the second quarter."""


def missed(found: Mapping[str, Any]) -> list[str]:
    """Return what did not hold, in words."""
    last, books = found["samples"][-1], found["books"]
    problems = [f"{times} errors: {what}" for what, times in last["errors"].items()]
    most = max(each["open_streams"] for each in found["samples"])
    if most < 0.98 * found["conditions"]["streams"]:
        problems.append(f"only {most:,} streams were open")
    for name in last["memory"]:
        before, after = growth(found["samples"], name)
        if after > before + max(GROWTH_SHARE * before, GROWTH_MIB):
            problems.append(f"{name} grew from {before:.1f} to {after:.1f} MiB")
    # One request more than the clients': the one that waited for the platform to answer.
    if books["rows"] != last["finished"] + 1 or books["output_tokens"] != last["tokens"] + 1:
        problems.append(
            f"{last['finished'] + 1:,} requests with {last['tokens'] + 1:,} tokens were answered, the books have "
            f"{books['rows']:,} rows with {books['output_tokens']:,}"
        )
    for name in ("not_completed", "open_holds", "held", "ledger", "parked"):
        if books[name]:
            problems.append(f"{name} is {books[name]:,}")
    return problems


def text(found: Mapping[str, Any]) -> str:
    """Return the verdict and the tables."""
    problems = missed(found)
    verdict = (
        "Everything held." if not problems else "MISSED:\n\n" + "\n".join(f"- {each}" for each in problems)
    )
    return "\n\n".join([verdict, _load(found), _refused(found), _processes(found)]).replace(
        "\n\n\n\n", "\n\n"
    )


def _load(found: Mapping[str, Any]) -> str:
    samples = found["samples"]
    last, books = samples[-1], found["books"]
    late, ttft = (max(each[name].get("p99", 0.0) for each in samples) for name in ("late_ms", "ttft_ms"))
    rows = [
        ["seconds of load", f"{found['conditions']['seconds']:g}"],
        ["most streams open", f"{max(each['open_streams'] for each in samples):,}"],
        ["requests", f"{last['started']:,}"],
        ["whole answers", f"{last['finished']:,}"],
        ["events of streams", f"{last['events']:,}"],
        ["errors that are no refusal", f"{sum(last['errors'].values()):,}"],
        ["refusals, sent again", f"{sum(last['refused'].values()):,}"],
        ["usage rows / tokens billed", f"{books['rows']:,} / {books['output_tokens']:,}"],
        ["holds left, money held, ledger sum", f"{books['open_holds']}, {books['held']}, {books['ledger']}"],
        ["events behind the engine, ms: worst p99 of 5 s", f"{late:.1f}"],
        ["time to first token, ms: worst p99 of 5 s", f"{ttft:.1f}"],
        ["the same by the usage rows, ms: p99 of all", f"{books['ttft_p99_us'] / 1e3:.1f}"],
        ["of it before dispatch, ms: p99 of all", f"{books['queue_p99_us'] / 1e3:.1f}"],
    ]
    return section("Load", ["", ""], rows)


def _refused(found: Mapping[str, Any]) -> str:
    rows = [[code, f"{times:,}"] for code, times in found["samples"][-1]["refused"].items()]
    return section("Refusals", ["code", "times"], rows)


def _processes(found: Mapping[str, Any]) -> str:
    rows = []
    for name, cores in found["cores"].items():
        before, after = growth(found["samples"], name)
        most = max(each["memory"][name] for each in found["samples"]) / 2**20
        rows.append([name, f"{cores:.3f}", *(f"{value:.1f}" for value in (before, after, most))])
    head = ["", "cores used", "MiB, second quarter", "MiB, last quarter", "most MiB"]
    return section("Processes", head, rows)


def plot(found: Mapping[str, Any], path: Path) -> Path:
    """Draw streams, rates, delays and memory over time; returns the path."""
    samples = found["samples"]
    minutes = [each["at_s"] / 60 for each in samples]
    with rc_context({"svg.hashsalt": "penstock", "font.size": 8}):
        figure = Figure(figsize=(10, 7), layout="constrained")
        streams, rates, delays, memory = figure.subplots(4, 1, sharex=True)
        streams.plot(minutes, [each["open_streams"] for each in samples], color="#0b6e4f")
        streams.set_ylabel("open streams")
        pairs = list(pairwise(samples))
        rates.plot(
            minutes[1:], [(b["started"] - a["started"]) / max(b["at_s"] - a["at_s"], 0.1) for a, b in pairs],
            color="#336699", label="new requests/s",
        )  # fmt: skip
        refusals = [(sum(b["refused"].values()) - sum(a["refused"].values())) for a, b in pairs]
        rates.plot(minutes[1:], refusals, color="#d1495b", label="refusals in 5 s")
        for name, label in (("late_ms", "events behind the engine"), ("ttft_ms", "time to first token")):
            delays.plot(minutes, [each[name].get("p99", 0.0) for each in samples], label=f"{label}, p99 ms")
        delays.set_yscale("symlog", linthresh=10)
        for name in samples[0]["memory"]:
            memory.plot(
                minutes, [each["memory"][name] / 2**20 for each in samples], label=name, color=COLOURS.get(name)
            )  # fmt: skip
        memory.set_ylabel("private MiB")
        memory.set_xlabel("minutes")
        for axes in (rates, delays, memory):
            axes.legend(ncols=5, frameon=False, fontsize=7)
        for axes in (streams, rates, delays, memory):
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def publish(found: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the page, its data and its plot, and list it; return the paths."""
    for name in ("data", "results"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    data, page = docs / "data" / "load.json", docs / "results" / "load.md"
    data.write_text(json.dumps(found) + "\n")
    page.write_text(page_text(found))
    given = found["conditions"]
    shows = f"{given['streams']:,} open streams and {given['rate_per_s']:g} new requests/s for ten minutes"
    listed = enlist(docs, page.name, "Sustained load", shows, "make load ARGS=--publish", given)
    return [data, plot(found, docs / "images" / "load.svg"), page, listed]


def page_text(found: Mapping[str, Any]) -> str:
    """Return the page."""
    given = found["conditions"]
    load = f"{given['streams']:,} streams at {given['events_per_s']:g} events/s, {given['rate_per_s']:g} new requests/s"
    measured = f"Measured on {given['date'][:10]}, commit {given['commit']}, {given['machine']}: {load}."
    plotted = "![Streams, rates, delays and memory over time](../images/load.svg)"
    return "\n\n".join([_HEAD, measured, text(found), plotted]) + "\n"
