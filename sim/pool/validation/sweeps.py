"""Sweeps: published or own measurements of one engine at several concurrencies and lengths, read from CSV.

Columns (further ones are ignored). Needed: `input_tokens`, `output_tokens` (nominal lengths), `concurrency`,
`ttft_mean_s` and `tpot_mean_s` in seconds. Optional: `output_tok_s` (measured throughput of the whole engine), `sweep`
(name of the sweep that the row belongs to), `max_batched_tokens` (of one step; else 8,192), `model`,
`checkpoint_precision`, `engine`, `engine_version`, `gpus`, `gpu_type`, `parallelism`, `speculation`, `dataset`, `date`,
`source`. Where `dataset` says "80-100 %", lengths were drawn evenly from 80 to 100 % of the nominal ones; otherwise
every request had the nominal lengths.
"""

import csv
import gzip
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from core.errors import InvalidRequest
from workers.wire import USUAL_BATCHED_TOKENS

SHIPPED = Path(__file__).with_name("data") / "sweeps.csv.gz"
"""The sweeps behind the catalog's figures; data/README.md has their source and licence."""
NEEDED = ("input_tokens", "output_tokens", "concurrency", "ttft_mean_s", "tpot_mean_s")
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a file of sweeps in bytes after decompression."""
_PLAIN = ("none", "unknown")
"""Beginnings of `speculation` of an engine that drafts nothing, as far as is known."""
MAX_CONCURRENCY = 8192
_IDENTITY = (
    "model",
    "checkpoint_precision",
    "engine",
    "engine_version",
    "gpus",
    "gpu_type",
    "parallelism",
    "speculation",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Nominal lengths of a benchmark's requests, in tokens."""

    input_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.input_tokens}/{self.output_tokens}"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a benchmark: so many users, each with one request at a time."""

    shape: Shape
    concurrency: int
    ttft_s: float
    """Mean seconds to the first token."""
    tpot_s: float
    """Mean seconds per output token after the first."""
    output_tok_s: float | None = None
    """Output tokens per second of the whole engine; None = not measured."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of one engine on one machine."""

    name: str
    title: str
    """Model, format, machine and engine in words."""
    source: str
    gpu: str
    gpus: int
    shortest: float
    """Shortest request, as a share of the nominal lengths."""
    points: tuple[Point, ...]
    speculates: bool = False
    """Whether its rows say that the engine drafted tokens."""
    max_batched_tokens: int = USUAL_BATCHED_TOKENS
    """Most tokens of one step of the measured engine."""

    @property
    def shapes(self) -> list[Shape]:
        """The shapes, shortest answers first, then shortest prompts."""
        found = {point.shape for point in self.points}
        return sorted(found, key=lambda shape: (shape.output_tokens, shape.input_tokens))


def read_sweeps(path: Path) -> dict[str, Sweep]:
    """Return the sweeps of a CSV file (gzipped or not) by name. Raises InvalidRequest with the line that is wrong."""
    rows: dict[str, list[dict[str, str]]] = {}
    points: dict[str, list[Point]] = {}
    for number, row in _rows(path):
        name = row.get("sweep") or " ".join(row[key] for key in _IDENTITY if row.get(key)) or path.stem
        rows.setdefault(name, []).append(row)
        points.setdefault(name, []).append(_point(path, number, row))
    if not rows:
        raise InvalidRequest(f"{path} has no rows", param="sweep")
    return {name: _sweep(name, rows[name], points[name]) for name in rows}


def _rows(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            raw = source.read(MAX_BYTES + 1)
        text = raw.decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="sweep") from None
    if len(raw) > MAX_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_BYTES:,} bytes", param="sweep")
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise InvalidRequest(f"{path} lacks the columns {', '.join(missing)}", param="sweep")
    for row in reader:
        yield reader.line_num, {key: value or "" for key, value in row.items() if key is not None}


def _point(path: Path, line: int, row: Mapping[str, str]) -> Point:
    def number(name: str) -> float:
        try:
            value = float(row[name])
        except ValueError:
            raise InvalidRequest(f"{path}, line {line}: {name} is {row[name]!r}, not a number") from None
        if not 0.0 < value < 1e9:
            raise InvalidRequest(
                f"{path}, line {line}: {name} is {value:g}, must be above zero and below 1e9"
            )
        return value

    if row.get("max_batched_tokens"):
        number("max_batched_tokens")
    concurrency = int(number("concurrency"))
    if concurrency > MAX_CONCURRENCY:
        raise InvalidRequest(
            f"{path}, line {line}: concurrency is {concurrency}, at most {MAX_CONCURRENCY} are replayed"
        )
    shape = Shape(int(number("input_tokens")), int(number("output_tokens")))
    throughput = number("output_tok_s") if row.get("output_tok_s") else None
    return Point(shape, concurrency, number("ttft_mean_s"), number("tpot_mean_s"), throughput)


def _sweep(name: str, rows: list[dict[str, str]], points: list[Point]) -> Sweep:
    """The sweep of these rows; repeated runs of one point count by their medians."""
    first = rows[0]
    runs: dict[tuple[Shape, int], list[Point]] = {}
    for point in points:
        runs.setdefault((point.shape, point.concurrency), []).append(point)
    merged = []
    order = sorted(runs, key=lambda run: (run[0].output_tokens, run[0].input_tokens, run[1]))
    for shape, concurrency in order:
        same = runs[shape, concurrency]
        measured = [point.output_tok_s for point in same if point.output_tok_s is not None]
        merged.append(
            Point(
                shape,
                concurrency,
                median(point.ttft_s for point in same),
                median(point.tpot_s for point in same),
                median(measured) if measured else None,
            )
        )
    gpus = first.get("gpus", "")
    machine = f"{gpus}x{first.get('gpu_type', '')}".strip("x")
    words = (first.get("model"), first.get("checkpoint_precision"), machine, first.get("parallelism"))
    engine = " ".join(filter(None, (first.get("engine"), first.get("engine_version"))))
    return Sweep(
        name=name,
        title=", ".join(filter(None, (" ".join(filter(None, words)), engine))) or name,
        source=first.get("source", ""),
        gpu=first.get("gpu_type", ""),
        gpus=int(gpus) if gpus.isdigit() else 1,
        shortest=0.8 if "80-100 %" in first.get("dataset", "") else 1.0,
        points=tuple(merged),
        max_batched_tokens=int(float(first.get("max_batched_tokens") or USUAL_BATCHED_TOKENS)),
        speculates=bool(first.get("speculation")) and not first["speculation"].startswith(_PLAIN),
    )
