"""The result of `bench.hostile` as text, and as docs/results/hostile.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import median_interval, section
from bench.results import enlist
from bench.stack import ROOT

DOCS = ROOT / "docs"
MOST_MS = 20.0
"""Most by which the 99th percentile of other streams' delays may move (ADR 24)."""
_HEAD = """# Hostile bodies

Written by `make bench-hostile ARGS=--publish`; do not edit. `penstock up --engine external` runs in front of a mock
engine (`bench/gateway/mock_engine.py`) with everything on. One customer has open streams whose chunks state when the
engine wrote them. In every second run three other customers send hostile bodies (`bench/hostile/bodies.py`): nearly as
large as the model takes, deeply nested, cut off, of wrong types, with huge schemas. Clients, engine and platform share
the machine.

`api waited`: seconds in which the API process was ready to run and had no processor; where it is large, a delay is the
machine's."""


def moved(found: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return by how many milliseconds p99 moves: the median over the pairs with its interval."""
    p99 = [(pair["quiet"]["delay_p99_ms"], pair["hostile"]["delay_p99_ms"]) for pair in found["pairs"]]
    return median_interval(hostile - quiet for quiet, hostile in p99)


def met(found: Mapping[str, Any]) -> bool:
    """Return whether the whole interval meets MOST_MS and no chunk was lost."""
    lost = sum(run["lost"] for pair in found["pairs"] for run in pair.values())
    return moved(found)[2] <= MOST_MS and not lost


def text(found: Mapping[str, Any]) -> str:
    """Return the verdict and the tables."""
    middle, low, high = moved(found)
    given = found["conditions"]
    verdict = (
        f"{given['rate_per_s']:g} hostile bodies a second move the 99th percentile of the delays of "
        f"{given['streams']} other streams by {middle:.1f} ms ({low:.1f} to {high:.1f}, {len(found['pairs'])} pairs; "
        f"at most {MOST_MS:g}): {'met' if met(found) else 'MISSED'}."
    )
    head = ["pair", "", "chunks", "p50 ms", "p99 ms", "max ms", "lost", "api CPU s/s", "api waited s"]
    rows = [
        [str(number), name, *_row(run)]
        for number, pair in enumerate(found["pairs"], 1)
        for name, run in pair.items()
    ]
    answers = [[name, f"{count:,}"] for name, count in found["answers"].items()]
    last = section("Answers to the hostile bodies, last pair", ["body: status", "answers"], answers)
    return "\n\n".join([verdict, section("Chunks behind the engine", head, rows), last])


def _row(run: Mapping[str, Any]) -> list[str]:
    times = [f"{run[key]:.1f}" for key in ("delay_p50_ms", "delay_p99_ms", "delay_max_ms")]
    cpu = run["cpu_s"]["api"] / run["window_s"]
    return [f"{run['events']:,}", *times, str(run["lost"]), f"{cpu:.2f}", f"{run['waited_s']:.2f}"]


def publish(found: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write page and data, and their line in the list of results; return the paths."""
    given = found["conditions"]
    data, page = docs / "data" / "hostile.json", docs / "results" / "hostile.md"
    data.write_text(json.dumps(found) + "\n")
    measured = (
        f"Measured on {given['date'][:10]}, commit {given['commit']}, {given['machine']}, load average "
        f"{given['load_average']}: {given['streams']} streams, a chunk every {given['pace_ms']} ms."
    )
    page.write_text("\n\n".join([_HEAD, measured, text(found)]) + "\n")
    shows = "what hostile bodies of some customers do to the open streams of another"
    command = "make bench-hostile ARGS=--publish"
    return [data, page, enlist(docs, page.name, "Hostile bodies", shows, command, given)]
