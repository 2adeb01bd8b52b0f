"""docs/performance.md: the figures of `bench.gateway` and `bench.through`, their plot and their data.

Each of the two benchmarks replaces its own data with --publish and writes the page anew from both. From saved records:

  python -m bench.performance --gateway bench/out/gateway-X.json --through bench/out/through-X.json
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.gateway import tables as gateway_tables
from bench.report import Report
from bench.stack import ROLES, ROOT
from bench.targets import OURS, targets
from bench.through import tables as through_tables

DOCS = ROOT / "docs"
FLAME, FLAME_WHOLE = "performance-flame.svg", "performance-flame-whole.svg"
"""Pictures of the API process's time: 64 streams, and whole answers of 1 token at 500 requests a second."""
"""File of the flame graph among the images."""
COLOURS = {
    "api": "#0b6e4f", "scheduler": "#6699cc", "postgres": "#336699", "redis": "#d1495b", "jobs": "#edae49",
    "agent": "#999999", "console": "#bbbbbb", "stripe-sim": "#cccccc", "supervisor": "#dddddd",
}  # fmt: skip


def publish(*, gateway: Report | None = None, through: Report | None = None, docs: Path = DOCS) -> list[Path]:
    """Write the data of the given reports, and page and plot of these and the stored ones; return the paths.

    Raises ValueError for a quick run, and for one of a checkout with changed files.
    """
    for report in (gateway, through):
        stated = report.conditions if report else {}
        if reason := unpublishable(stated.get("commit", ""), quick=stated.get("quick", False)):
            raise ValueError(reason)
    for name in ("data", "images"):
        (docs / name).mkdir(parents=True, exist_ok=True)
    stores = {name: docs / "data" / f"{name}.json" for name in ("gateway", "through", "through-pinned")}
    written = []
    for report in (gateway, through):
        if report is not None:
            store = stores[
                "gateway" if report is gateway else "through-pinned" if pinned(report) else "through"
            ]
            store.write_text(report.as_json())
            written.append(store)
    gateway, *both = (
        Report.from_json(path.read_text()) if path.exists() else None for path in stores.values()
    )
    page = docs / "performance.md"
    page.write_text(page_text(gateway, *both, docs=docs))
    if gateway is not None:
        written.append(plot(gateway, docs / "images" / "performance.svg"))
    return [*written, page]


def unpublishable(commit: str, *, quick: bool) -> str:
    """Return why figures of a commit do not belong on the page; "" when they do."""
    if quick:
        return "a quick run is too short for the page"
    return f"{commit}: the checkout has changed files" if commit.endswith("+") else ""


def pinned(through: Report) -> bool:
    """Return whether the engine had processors of its own."""
    return bool(through.conditions.get("cores", {}).get("engine"))


def page_text(
    gateway: Report | None, through: Report | None, apart: Report | None = None, *, docs: Path = DOCS
) -> str:
    """Return the page. `apart`: of `bench.through` with processors of its own for the engine."""
    parts = [_HEAD, targets(gateway, through, apart)]
    if gateway is not None:
        parts += [
            "## Beside other gateways", _GATEWAY, _conditions(gateway), gateway_tables.tables(gateway, head=False),
            "![CPU per request, per chunk, added latency](images/performance.svg)",
        ]  # fmt: skip
        if (docs / "images" / FLAME).exists():
            parts += [f"![CPU time of the API process by call, 64 streams](images/{FLAME})", _FLAME]
        if (docs / "images" / FLAME_WHOLE).exists():
            parts += [
                f"![CPU time of the API process by call, whole answers](images/{FLAME_WHOLE})",
                _FLAME_WHOLE,
            ]
    if through is not None:
        parts += [
            "## The real vLLM",
            _THROUGH,
            _conditions(through),
            through_tables.tables(through, head=False),
        ]
    if apart is not None:
        cores = apart.conditions["cores"]
        parts += [
            "## The real vLLM on processors of its own",
            _APART.format(**{name: ", ".join(map(str, found)) for name, found in cores.items()}),
            _conditions(apart),
            through_tables.tables(apart, head=False),
        ]
    return "\n\n".join([*(part for part in parts if part), _INSTALL]) + "\n"


_HEAD = """# Performance

Written by `make bench-gateway ARGS=--publish` and `make bench-through ARGS=--publish`; do not edit. Every figure is
measured through `penstock up` with everything on: keys, limits on all scopes, prepaid credit, holds, settlement,
scheduler, jobs and console. Machines differ and drift: compare figures of one run, not of two."""
_GATEWAY = """`penstock up --engine external` in front of a mock engine (`bench/gateway/mock_engine.py`) that answers
as vLLM does. The gateways share a processor, engine and load generator have another one; all are measured in turn.
While one is measured, the background work of all others runs on the same processor: latencies contain it.
`bare` is an ASGI application that only forwards bytes. `splice` reads and writes without a look at them, which is the
least that a process in Python can do. `splice-metered` also parses HTTP, and reads and removes the count of every
event, without limits, errors or deadlines: the floor of a metering gateway in Python. `splice-asking` does that after
one exchange with Redis, then one with PostgreSQL and one with another process at the same time: what a metered request
waits for at least (`bench/gateway/asking.py`). CPU is the time of a process
with its children; what it uses without load is in the first table, measured for all in the same seconds, and is
subtracted for all in the others, except where the head or the line says so. `~0` is less than the subtraction can
resolve."""
_THROUGH = """The engine that `penstock up` starts, asked at its own port and through the customer API, in turn.
Lengths of prompts and answers vary; both sides get the same ones. CPU is by token of the answers; idle cost is not
subtracted. TTFT is the time to the first event with a choice; TPOT is the time from it to the end of the answer, over
the other tokens."""
_APART = """The same with processors of each side's own, so that the platform takes nothing from the engine: the engine
has {engine}, the platform {platform}, the load generator {load}. What is lost above and not here is the CPU that the
engine shares."""
_FLAME = """The flame graph (py-spy, native frames included) shows where a chunk's time in the API process goes:
`read` and `write` are the kernel, `take` is what counts and relays. Draw it again with `--flame PY_SPY`."""
_FLAME_WHOLE = """The same for whole answers of 1 token at 500 requests a second: what a request costs before, around
and after its tokens, which is also what delays its first token while others arrive."""
_INSTALL = """## Measure it yourself

```sh
make bench-gateway ARGS=--quick      # a minute and a quarter
make bench-gateway                   # up to 25 minutes
make bench-through ARGS=--quick      # two minutes
make bench-through                   # half an hour
```

Other gateways are no dependency. Install them in environments of their own and name the folders of their programs:

```sh
python3 -m venv ~/peers/routers && ~/peers/routers/bin/pip install vllm-router sglang-router
python3 -m venv ~/peers/litellm && ~/peers/litellm/bin/pip install 'litellm[proxy]'
make bench-gateway ARGS="--peers-bin ~/peers/routers/bin --peers-bin ~/peers/litellm/bin"
```

TensorZero has no package for pip: put its gateway's binary into such a folder as `tensorzero-gateway`. A program that
is in no folder is skipped with a line. `--only SECTION` measures a part, `--repo before=../other-checkout` measures
another checkout in the same run, `--json FILE` keeps the records. `make bench-through` takes `--platform-cores`,
`--engine-cores` and `--load-cores`, which give each side processors of its own."""


def _conditions(report: Report) -> str:
    given = report.conditions
    what = f"{given['date'][:10]}, commit {given['commit']}, {given['machine']}, load average {given['load_average']}"
    notes = [f"- {note}" for note in given.get("notes", []) if "skipped" not in note]
    return "\n\n".join([f"Measured on {what}.", *(["\n".join(notes)] if notes else [])])


def plot(report: Report, path: Path) -> Path:
    """Draw CPU per request by process, CPU per chunk over streams, and added latency; return the path."""
    with rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none", "font.size": 8}):
        canvas = Figure(figsize=(11, 6), layout="constrained")
        whole, streamed, chunks, latency, ttft, memory = canvas.subplots(2, 3).flat
        _requests(whole, report, "whole")
        _requests(streamed, report, "streamed")
        _chunks(chunks, report)
        _bars(latency, "added latency p50 and p99 at 200/s, ms", {
            target: [1e3 * each for each in gateway_tables.added(report, "latency", "e2e", target)]
            for target in report.targets if target != "direct"
        })  # fmt: skip
        _bars(ttft, "added time to first token p50 and p99, ms", {
            target: [1e3 * each for each in gateway_tables.added(report, "ttft", "ttft", target)]
            for target in report.targets if target != "direct"
        })  # fmt: skip
        _bars(memory, "KB per idle stream", {target: _stream_kb(report, target) for target in report.targets})
        stated = report.conditions
        canvas.suptitle(f"Commit {stated['commit']}, {stated['date'][:10]}, {stated['machine']}")
        canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _requests(axes: Any, report: Report, mode: str) -> None:
    """Bars of all targets by length of answer; ours in layers of processes."""
    keys = [key for key in report.keys("cpu") if key.startswith(f"{mode} ")]
    targets = [target for target in report.targets if any(report.results("cpu", key, target) for key in keys)]
    width = 0.8 / max(len(targets), 1)
    for number, target in enumerate(targets):
        places = [place + width * number for place in range(len(keys))]
        floor = [0.0] * len(keys)
        for name in ROLES if report.is_platform(target) else (target,):
            heights = [_cost(report, key, target, name) for key in keys]
            colour = COLOURS.get(name, f"C{number}")
            label = name if name in COLOURS and target == OURS else target if name == target else None
            axes.bar(places, heights, width, bottom=floor, color=colour, label=label)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(keys))], [key.split()[1] for key in keys])
    tallest = sorted((max(_cost(report, key, target) for key in keys), target) for target in targets)
    beyond = ""
    if len(tallest) > 1 and tallest[-1][0] > 2 * tallest[-2][0]:
        axes.set_ylim(0, 1.2 * tallest[-2][0])
        beyond = f" ({tallest[-1][1]}: up to {tallest[-1][0]:.0f})"
    axes.set(title=f"CPU ms per request, {mode}{beyond}", xlabel="tokens of the answer")
    if targets:
        axes.legend(frameon=False, fontsize=6)


def _cost(report: Report, key: str, target: str, process: str = "") -> float:
    """Return CPU milliseconds per request of one process, "" = of all together."""
    costs = []
    for each in report.results("cpu", key, target):
        used = report.cpu_ms(each, target)
        costs.append((used.get(process, 0.0) if process else sum(used.values())) / each["requests"])
    return max(median(costs), 0.0) if costs else 0.0


def _chunks(axes: Any, report: Report) -> None:
    for target in report.targets:
        points = {
            int(key): median(
                1e3 * sum(report.cpu_ms(each, target).values()) / each["events"] for each in runs
            )
            for key in report.keys("chunks")
            if (runs := report.results("chunks", key, target))
        }
        if points:
            axes.plot(list(points), list(points.values()), "o-", label=target)
    axes.set(title="CPU us per chunk", xlabel="open streams", xscale="log", yscale="log")
    if len(axes.lines):
        axes.legend(frameon=False, fontsize=6)


def _stream_kb(report: Report, target: str) -> list[float]:
    runs = report.results("memory", "2000", target)
    name = "api" if runs and "api" in runs[0]["rss_open"] else target
    return [(each["rss_open"][name] - each["rss_before"][name]) / each["streams"] / 1000 for each in runs]


def _bars(axes: Any, title: str, values: dict[str, list[float]]) -> None:
    """One group of bars per target."""
    found = {target: heights for target, heights in values.items() if heights}
    for place, heights in enumerate(found.values()):
        places = [place + 0.35 * number for number in range(len(heights))]
        axes.bar_label(
            axes.bar(places, heights, 0.33, color=["#6699cc", "#cc6633"][: len(heights)]),
            fmt="%.3g",
            fontsize=6,
        )
    axes.set_xticks([place + 0.17 for place in range(len(found))], list(found), rotation=20, fontsize=6)
    axes.set_title(title)


def main() -> None:
    """Publish saved records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("gateway", "through"):
        parser.add_argument(f"--{name}", type=Path, help=f"records of bench.{name}")
    given = parser.parse_args()
    gateway, through = (
        Report.from_json(path.read_text()) if path else None for path in (given.gateway, given.through)
    )
    for path in publish(gateway=gateway, through=through):
        print(path)


if __name__ == "__main__":
    main()
