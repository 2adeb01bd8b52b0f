"""`python -m bench.gateway`: CPU per request and per chunk, added latency; JSON and a plot into bench/out."""

import argparse
import asyncio
import json
import time
from pathlib import Path

import psutil
import uvloop

from bench.gateway.load import Streams, Target, closed_loop, open_loop
from bench.gateway.rig import rig
from bench.provenance import provenance

OUT = Path(__file__).resolve().parents[1] / "out"
TARGETS = {"cpu_ms_per_request": 1.0, "cpu_us_per_chunk": 20.0}
"""Upper limit of each figure that has a target; the units are in the names."""
ANSWER_TOKENS = 16
"""Number of tokens in each answer."""
DISTANCE_MS = 10
"""Milliseconds between chunks of a stream."""
RAMP_PER_S = 100.0
"""Streams opened per second."""


def cpu_s(pid: int) -> float:
    """Return the user and system CPU seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def requests_cost(target: Target, requests: int, concurrency: int) -> dict[str, float]:
    """Measure non-streaming requests at saturation."""
    raw = target.raw(max_tokens=ANSWER_TOKENS)
    await closed_loop(target, raw, concurrency=concurrency, requests=requests // 4, stream=False)
    before = cpu_s(target.pid)
    took = await closed_loop(target, raw, concurrency=concurrency, requests=requests, stream=False)
    used = cpu_s(target.pid) - before
    return {
        "cpu_ms_per_request": 1e3 * used / requests,
        "requests_per_s": requests / took,
        "core_share": used / took,
    }


async def chunks_cost(target: Target, streams: int, seconds: float) -> dict[str, float]:
    """Measure the CPU per chunk while all paced streams are open and nothing but chunks is processed."""
    chunks = int((seconds + streams / RAMP_PER_S + 25) * 1000 / DISTANCE_MS)
    load = Streams(target, target.raw(max_tokens=chunks, stream=True, seed=DISTANCE_MS), streams)
    await load.begin(RAMP_PER_S)
    before, events, start = cpu_s(target.pid), load.events, time.perf_counter()
    await asyncio.sleep(seconds)
    used, seen, took = cpu_s(target.pid) - before, load.events - events, time.perf_counter() - start
    await load.end()
    return {
        "cpu_us_per_chunk": 1e6 * used / seen,
        "chunks_per_s": seen / took,
        "core_share": used / took,
        "refused_while_starting": load.refused,
    }


async def latency(target: Target, rate: float, seconds: float) -> dict[str, float]:
    """Measure non-streaming requests in an open loop."""
    raw = target.raw(max_tokens=ANSWER_TOKENS)
    await open_loop(target, raw, rate=rate, seconds=2)
    took = await open_loop(target, raw, rate=rate, seconds=seconds)
    return {"p50_ms": 1e3 * took[len(took) // 2], "p99_ms": 1e3 * took[int(len(took) * 0.99)]}


async def measure(given: argparse.Namespace) -> dict[str, object]:
    """Measure all targets in one run and return the report."""
    results: dict[str, dict[str, float]] = {}
    async with rig(given.api_core, given.other_core) as targets:
        for name, target in targets.items():
            print(f"measuring {name} ...", flush=True)
            found = results[name] = {}
            found |= await latency(target, given.rate, given.seconds)
            found |= await requests_cost(target, given.requests, given.concurrency)
            for streams in given.streams:
                cost = await chunks_cost(target, streams, given.seconds / 2)
                found |= {f"{key}_at_{streams}": value for key, value in cost.items()}
            found["refused"] = target.refused
    for found in results.values():
        for quantile in ("p50_ms", "p99_ms"):
            found[f"added_{quantile}"] = found[quantile] - results["direct"][quantile]
    return {"conditions": conditions(given), "results": results}


def conditions(given: argparse.Namespace) -> dict[str, object]:
    """Return the conditions that must accompany the figures."""
    return {
        **provenance(),
        "answer_tokens": ANSWER_TOKENS,
        "chunk_distance_ms": DISTANCE_MS,
        "concurrency": given.concurrency,
        "rate_per_s": given.rate,
        "load_average": psutil.getloadavg()[0],
    }


def show(report: dict[str, object], streams: int) -> bool:
    """Print the table, and return whether the targets are met."""
    results = report["results"]
    rows = [
        ("CPU ms per request", "cpu_ms_per_request", "{:.3f}"),
        ("requests/s on one core", "requests_per_s", "{:,.0f}"),
        (f"CPU us per chunk at {streams} streams", f"cpu_us_per_chunk_at_{streams}", "{:.1f}"),
        (f"chunks/s at {streams} streams", f"chunks_per_s_at_{streams}", "{:,.0f}"),
        ("refused and asked again", "refused", "{:,.0f}"),
        ("p50 ms", "p50_ms", "{:.2f}"),
        ("p99 ms", "p99_ms", "{:.2f}"),
        ("added p50 ms", "added_p50_ms", "{:.2f}"),
        ("added p99 ms", "added_p99_ms", "{:.2f}"),
    ]
    print("\n" + json.dumps(report["conditions"]))
    print(f"{'':38}" + "".join(f"{name:>14}" for name in results))
    for title, key, form in rows:
        print(f"{title:38}" + "".join(f"{form.format(found[key]):>14}" for found in results.values()))
    ours = results["penstock"]
    met = {
        "cpu_ms_per_request": ours["cpu_ms_per_request"] <= TARGETS["cpu_ms_per_request"],
        "cpu_us_per_chunk": ours[f"cpu_us_per_chunk_at_{streams}"] <= TARGETS["cpu_us_per_chunk"],
    }
    for name, reached in met.items():
        print(f"mark {name} <= {TARGETS[name]}: {'met' if reached else 'MISSED'}")
    return all(met.values())


def plot(report: dict[str, object], streams: int, path: Path) -> None:
    """Plot bars of the three measured systems."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    results = report["results"]
    keys = [
        ("cpu_ms_per_request", "CPU ms per request"),
        (f"cpu_us_per_chunk_at_{streams}", f"CPU us per chunk, {streams} streams"),
        ("p50_ms", "p50 ms at 200/s"),
        ("p99_ms", "p99 ms at 200/s"),
    ]
    figure, axes = plt.subplots(1, len(keys), figsize=(14, 3.6), layout="constrained")
    for axis, (key, title) in zip(axes, keys, strict=True):
        bars = axis.bar(
            list(results), [found[key] for found in results.values()], color=["#999", "#6699cc", "#cc6633"]
        )
        axis.bar_label(bars, fmt="%.2f")
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Gateway, commit {report['conditions']['commit']}, {report['conditions']['date']}")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--api-core", type=int, default=0)
    parser.add_argument("--other-core", type=int, default=1)
    given = parser.parse_args()
    report = uvloop.run(measure(given))
    streams = max(given.streams)
    met = show(report, streams)
    OUT.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    (OUT / f"gateway-{stamp}.json").write_text(json.dumps(report, indent=1))
    plot(report, streams, OUT / f"gateway-{stamp}.png")
    print(f"written: bench/out/gateway-{stamp}.json and .png")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
