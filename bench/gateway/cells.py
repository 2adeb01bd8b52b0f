"""What is measured: sections of cells, each a job of the load generator with its options."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby

from bench.gateway.mock_engine import EACH

TOKENS = (1, 16, 200, 1000)
"""Lengths of answers."""
STREAMS = (1, 64, 512, 2000)
"""Streams open at the same time while chunks are measured."""
DISTANCES_MS = {1: 10, 64: 10, 512: 80, 2000: 200}
"""Milliseconds between two tokens of a stream, by streams: at 64 and above 6,400 to 10,000 chunks a second."""


@dataclass(frozen=True)
class Cell:
    """One measurement, repeated for every target and round."""

    section: str
    key: str
    job: str
    options: dict[str, object] = field(default_factory=dict)
    rounds: int = 1
    needs_streams: int = 0
    """Streams that a target must be able to hold."""
    direct_too: bool = True
    """Whether the engine itself is measured without a gateway."""

    def options_for(self, slow: int) -> dict[str, object]:
        """Return the options for a gateway that is `slow` times as slow as the others: as many times fewer requests."""
        fewer = {name: self.options[name] // slow for name in ("requests", "warm") if name in self.options}
        return self.options | fewer


def cells(*, quick: bool, rounds: int, rate: float, only: Collection[str] = ()) -> list[Cell]:
    """Return the cells of the sections `only` (() = all) in the order in which they run, idle ones between them.

    `rounds` is for chunks at 64 and 512 streams.
    """
    found = (
        *_memory(quick=quick), *_cpu(quick=quick), *_core(quick=quick), *_rate(quick=quick),
        *_chunks(quick=quick, rounds=rounds), *_tokens(quick=quick), *_latency(quick=quick, rate=rate),
        *_late(quick=quick),
    )  # fmt: skip
    chosen = [cell for cell in found if not only or cell.section in only]
    pause = Cell("idle", "idle", "idle", {"seconds": 2 if quick else 8}, direct_too=False)
    sections = [list(group) for _, group in groupby(chosen, key=lambda cell: cell.section)]
    return [cell for section in sections for cell in (pause, *section)]


SECTIONS = ("memory", "cpu", "core", "rate", "chunks", "tokens", "latency", "ttft", "late")


def _memory(*, quick: bool) -> list[Cell]:
    if quick:
        return []
    options = {"count": 2000, "first": 1500, "ramp_per_s": 400, "max_tokens": 4, "seed": EACH + 60_000}
    return [Cell("memory", "2000", "memory", options, needs_streams=3500, direct_too=False)]


def _cpu(*, quick: bool) -> list[Cell]:
    """CPU per request, tokens 5 ms apart, 64 at the same time; of long whole answers more, so that some 100 a second
    end. Streamed: every token a chunk for every target.

    Whole: a gateway that asks the engine for a stream gets chunks at the interval that it asks for; one that asks for
    a whole answer gets it at once.
    """
    found = []
    for tokens in TOKENS[:3] if quick else TOKENS:
        shared = {"max_tokens": tokens, "concurrency": 64}
        whole = {"requests": {1: 1200, 16: 1200, 200: 1024, 1000: 1024}[tokens] // (2 if quick else 1)}
        whole |= {"concurrency": {1: 64, 16: 64, 200: 256, 1000: 512}[tokens]}
        whole |= {"warm": 64, "seed": 5 if tokens > 1 else 0}
        streamed = {"requests": {1: 900, 16: 600, 200: 192, 1000: 128}[tokens] // (2 if quick else 1)}
        streamed |= {"stream": True, "seed": EACH + 5}
        found += [
            Cell("cpu", f"whole {tokens}", "closed_loop", {**shared, **whole}, direct_too=False),
            Cell("cpu", f"streamed {tokens}", "closed_loop", {**shared, **streamed}, direct_too=False),
        ]
    return found


def _core(*, quick: bool) -> list[Cell]:
    """Requests per second at saturation, answered at once."""
    options = {"requests": 1500 if quick else 4000, "concurrency": 64, "warm": 128, "max_tokens": 16}
    return [Cell("core", "16", "closed_loop", options, direct_too=False)]


def _rate(*, quick: bool) -> list[Cell]:
    """CPU per request of whole answers of 1 token, by rate.

    1,000 a second only light gateways can keep on one processor. At 100 a second hardly any two requests share a wake
    of a process; so often end the long whole answers of `cpu`, and the difference to them is what their length costs.
    """
    seconds = 2 if quick else 5
    return [
        Cell(
            "rate",
            f"{rate:g}",
            "open_loop",
            {"rate": rate, "seconds": seconds, "max_tokens": 1},
            direct_too=False,
        )
        for rate in ((1000.0,) if quick else (100.0, 1000.0))
    ]


def _chunks(*, quick: bool, rounds: int) -> list[Cell]:
    """CPU per chunk, every token a chunk for every target."""
    return [
        Cell("chunks", str(count), "streams", _open(count, 4 if quick else 3, EACH),
             rounds=(1 if quick else rounds) if count in (64, 512) else 1, needs_streams=count, direct_too=False)
        for count in ((64,) if quick else STREAMS)
    ]  # fmt: skip


def _tokens(*, quick: bool) -> list[Cell]:
    """CPU per token at 64 streams of 100 tokens a second, with the interval that the gateway asks for.

    Streams before them show the platform the engine's speed, from which it chooses the interval.
    """
    if quick:
        return []
    return [Cell("tokens", "64", "streams", _open(64, 5, 0) | {"warm": 192}, direct_too=False)]


def _open(count: int, seconds: float, flag: int) -> dict[str, object]:
    ramp = 400 if count > 64 else 100
    distance = DISTANCES_MS[count]
    tokens = int((seconds + count / ramp + 20) * 1000 / distance)
    return {
        "count": count,
        "seconds": seconds,
        "ramp_per_s": ramp,
        "max_tokens": tokens,
        "seed": flag + distance,
    }


def _latency(*, quick: bool, rate: float) -> list[Cell]:
    """Added latency of whole answers of 16 tokens in an open loop; time to the first token among 64 streams."""
    found = [
        Cell("latency", f"{rate:g}", "open_loop", {"rate": rate, "seconds": 4 if quick else 6, "max_tokens": 16},
             rounds=1 if quick else 3),
    ]  # fmt: skip
    if not quick:
        options = {"requests": 448, "concurrency": 64, "max_tokens": 100, "stream": True, "seed": EACH + 10}
        found.append(Cell("ttft", "64", "closed_loop", options, rounds=2))
    return found


def _late(*, quick: bool) -> list[Cell]:
    if quick:
        return []
    options = _open(2000, 10, EACH) | {"stamps": True}
    return [Cell("late", "2000", "streams", options, needs_streams=2000)]
