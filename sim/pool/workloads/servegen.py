"""ServeGen's clients (Xiang et al., arXiv 2505.09999): each API user's arrivals and lengths by window.

The format is a tar of `chunk-N-trace.csv` (no header: window start in s, requests/s, coefficient of variation,
Gamma | Weibull | empty, shape, scale) and `chunk-N-dataset.json` (window start -> field -> a dict of tokens to
probability, written as a string). A client becomes a tenant. There are no prompts and no prefixes. Clients
without lengths are omitted.
"""

import csv
import io
import json
import math
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidRequest
from sim.pool.contract import SimRequest
from sim.pool.workloads.files import MAX_FILE_BYTES, MAX_TOKENS
from sim.pool.workloads.trace import check_run

MAX_CLIENTS = 2_000
"""Maximum number of clients in a tar."""
MAX_MEMBER_BYTES = 16 << 20
"""Maximum size of a member in bytes."""
MAX_WINDOWS = 20_000
"""Maximum number of windows of a client."""
MIN_SHAPE = 0.05
"""Smallest accepted shape parameter; smaller fits (coefficient of variation above 20) come from windows of few
requests.
"""
_MEMBER = re.compile(r"(?:^|/)chunk-(\d{1,6})-(trace\.csv|dataset\.json)$")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """A client's arrival process from `start_s` until the next window."""

    start_s: float
    per_s: float
    weibull: bool
    shape: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distributions of prompt and answer lengths in a window: values in tokens and their cumulative probabilities."""

    start_s: float
    inputs: NDArray[np.int64]
    input_cdf: Floats
    outputs: NDArray[np.int64]
    output_cdf: Floats


@dataclass(frozen=True, slots=True)
class Client:
    """One API user."""

    tenant: str
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]


def read_servegen(path: Path) -> tuple[Client, ...]:
    """Return the clients in a tar. Raises InvalidRequest naming the member, its line and the fault."""
    traces: dict[int, tuple[Window, ...]] = {}
    lengths: dict[int, tuple[Lengths, ...]] = {}
    for name, number, kind, data in _members(path):
        if kind == "trace.csv":
            traces[number] = _windows(name, data)
        else:
            lengths[number] = _lengths(name, data)
    clients = tuple(
        Client(f"client-{number:03}", traces[number], lengths[number])
        for number in sorted(traces.keys() & lengths.keys())
        if lengths[number] and any(window.per_s > 0 for window in traces[number])
    )
    if not clients:
        raise InvalidRequest(
            f"{path.name} holds no client with requests in chunk-N-trace.csv and with input_tokens and output_tokens "
            "in chunk-N-dataset.json"
        )
    return clients


def _members(path: Path) -> Iterator[tuple[str, int, str, bytes]]:
    """Yield name, client number, kind and content of the relevant members; nothing is unpacked to disk."""
    total, seen = 0, 0
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                total += member.size
                seen += 1
                if total > MAX_FILE_BYTES or seen > 4 * MAX_CLIENTS:
                    raise InvalidRequest(f"{path.name} holds more than {MAX_FILE_BYTES:,} bytes")
                found = _MEMBER.search(member.name)
                if found is None or not member.isfile():
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    raise InvalidRequest(f"{member.name} is larger than {MAX_MEMBER_BYTES:,} bytes")
                file = tar.extractfile(member)
                if file is not None:
                    yield member.name, int(found[1]), found[2], file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidRequest(f"{path.name} cannot be read as a tar: {error}") from None


def _windows(name: str, data: bytes) -> tuple[Window, ...]:
    windows: list[Window] = []
    for line, row in enumerate(csv.reader(io.StringIO(data.decode("utf-8", "replace"))), 1):
        if line > MAX_WINDOWS:
            raise InvalidRequest(f"{name}: more than {MAX_WINDOWS:,} windows")
        try:
            start, per_s, shape = float(row[0]), float(row[1]), float(row[4])
            family = row[3]
        except (ValueError, IndexError):
            raise InvalidRequest(
                f"{name}, line {line}: not start, rate, cv, Gamma|Weibull, shape, scale"
            ) from None
        if not (0 <= start < 1e9 and 0 <= per_s < 1e6 and 0 <= shape < 1e6):
            raise InvalidRequest(f"{name}, line {line}: a number is out of range")
        if family not in ("Gamma", "Weibull", ""):
            raise InvalidRequest(f"{name}, line {line}: inter-arrivals are {family!r}, not Gamma or Weibull")
        if windows and start <= windows[-1].start_s:
            raise InvalidRequest(f"{name}, line {line}: windows must follow one another")
        silent = not family or shape == 0
        windows.append(Window(start, 0.0 if silent else per_s, family == "Weibull", max(shape, MIN_SHAPE)))
    return tuple(windows)


def _lengths(name: str, data: bytes) -> tuple[Lengths, ...]:
    try:
        table: Any = json.loads(data)
        windows = sorted((float(start), fields) for start, fields in table.items())
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not JSON of windows: {error}") from None
    out = []
    for start, fields in windows:
        if not isinstance(fields, dict) or not {"input_tokens", "output_tokens"} <= fields.keys():
            continue
        inputs, outputs = (
            _distribution(name, start, fields[key]) for key in ("input_tokens", "output_tokens")
        )
        if len(inputs[0]) and len(outputs[0]):
            out.append(Lengths(start, *inputs, *outputs))
    return tuple(out)


def _distribution(name: str, start: float, text: object) -> tuple[NDArray[np.int64], Floats]:
    """Return the values and cumulative probabilities of '{tokens: probability, ...}'."""
    pairs = [item.partition(":") for item in str(text).strip("{} \n").split(",") if item.strip()]
    try:
        values = np.array([float(value) for value, _, _ in pairs])
        weights = np.array([float(weight) for _, _, weight in pairs])
    except ValueError:
        raise InvalidRequest(f"{name}, window {start:g}: not {{tokens: probability}}") from None
    if len(values) and not (
        np.all((values >= 0) & (values <= MAX_TOKENS))
        and np.all((weights >= 0) & (weights <= 1))
        and weights.sum()
    ):
        raise InvalidRequest(f"{name}, window {start:g}: tokens or probabilities are out of range")
    cumulated: Floats = np.cumsum(weights) / max(weights.sum(), 1e-300)
    return values.astype(np.int64), cumulated


class ServeGenWorkload:
    """Clients' requests from a start time that the seed chooses, in the trace's own time; their rates are
    scaled together.

    Within a window a client's arrivals are a stationary renewal process of the window's family and shape.
    Because such processes deviate far from their mean rate over minutes, the first n = rate x seconds arrivals
    are taken and their times scaled to `seconds`.
    """

    def __init__(self, name: str, clients: Sequence[Client], models: Sequence[str], context: int) -> None:
        self.name = name
        self.models = tuple(models)
        self._clients = tuple(clients)
        self._context = context
        ends = [client.windows[-1].start_s + _step(client) for client in clients]
        self._span_s = max(ends)

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        """Yield the requests; see Workload.requests."""
        count = check_run(rate, seconds)
        rng = np.random.default_rng(seed)
        begin = self._busy_start(rng, seconds)
        factor = rate / self._mean_rate(begin, seconds)
        horizon = 1.2 * seconds
        at, who = self._arrivals(begin, horizon, factor, rng)
        while len(at) < count:
            horizon *= 1.5
            at, who = self._arrivals(begin, horizon, factor, rng)
        at, who = at[:count], who[:count]
        pace = seconds * (count - 1) / count / at[-1] if count > 1 and at[-1] > 0 else 1.0
        inputs, outputs = self._draw(begin + at, who, rng)
        for key in range(count):
            client = self._clients[who[key]]
            yield SimRequest(
                key,
                float(at[key] * pace),
                client.tenant,
                self.models[0],
                int(inputs[key]),
                int(outputs[key]),
                session=f"{client.tenant}/{key}",
            )

    def _busy_start(self, rng: np.random.Generator, seconds: float) -> float:
        """Return a start time, in seconds of the trace, from which a run of `seconds` has arrivals."""
        for _ in range(1_000):
            begin = float(rng.random() * self._span_s)
            if self._mean_rate(begin, seconds) > 0:
                return begin
        raise InvalidRequest(f"{self.name} has hardly any traffic")

    def _mean_rate(self, begin: float, seconds: float) -> float:
        spans = (
            (end - start) * window.per_s
            for client in self._clients
            for window, start, end in self._pieces(client, begin, seconds)
        )
        return sum(spans) / seconds

    def _pieces(self, client: Client, begin: float, seconds: float) -> Iterator[tuple[Window, float, float]]:
        """Yield the client's windows in order of time from `begin`, with start and end in seconds since then."""
        starts = [window.start_s for window in client.windows]
        ends = [*starts[1:], starts[-1] + _step(client)]
        for turn in range(int((begin + seconds) // self._span_s) + 1):
            shift = turn * self._span_s - begin
            first = max(0, int(np.searchsorted(starts, -shift, side="right")) - 1)
            for window, start, end in zip(client.windows[first:], starts[first:], ends[first:], strict=True):
                if start + shift >= seconds:
                    break
                if end + shift > 0:
                    yield window, max(0.0, start + shift), min(seconds, end + shift)

    def _arrivals(
        self, begin: float, seconds: float, factor: float, rng: np.random.Generator
    ) -> tuple[Floats, NDArray[np.int64]]:
        times, owners = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
        for number, client in enumerate(self._clients):
            for window, start, end in self._pieces(client, begin, seconds):
                if window.per_s > 0:
                    found = start + _renewal(window, window.per_s * factor, end - start, rng)
                    times.append(found)
                    owners.append(np.full(len(found), number))
        at = np.concatenate(times)
        order = np.argsort(at, kind="stable")
        return at[order], np.concatenate(owners)[order]

    def _draw(
        self, at: Floats, who: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw prompt and answer lengths in tokens, limited to the context."""
        inputs, outputs = np.ones(len(at), dtype=np.int64), np.ones(len(at), dtype=np.int64)
        picks = rng.random((2, len(at)))
        for number, client in enumerate(self._clients):
            mine = (who == number).nonzero()[0]
            starts = [lengths.start_s for lengths in client.lengths]
            window = np.maximum(0, np.searchsorted(starts, at[mine] % self._span_s, side="right") - 1)
            for index in np.unique(window).tolist():
                rows, lengths = mine[window == index], client.lengths[index]
                inputs[rows] = _pick(lengths.inputs, lengths.input_cdf, picks[0, rows])
                outputs[rows] = _pick(lengths.outputs, lengths.output_cdf, picks[1, rows])
        outputs = np.clip(outputs, 1, self._context - 1)
        return np.clip(inputs, 1, self._context - outputs), outputs


def _step(client: Client) -> float:
    """Return the length of a client's window in seconds."""
    gaps = [later.start_s - earlier.start_s for earlier, later in pairwise(client.windows)]
    return min(gaps, default=600.0)


def _renewal(window: Window, per_s: float, seconds: float, rng: np.random.Generator) -> Floats:
    """Return arrivals in [0, seconds) of a stationary renewal process, taken from the middle of a longer one."""
    expected = per_s * seconds
    draws = int(1.5 * expected + 60)
    if window.weibull:
        gaps = rng.weibull(window.shape, draws) / math.gamma(1 + 1 / window.shape)
    else:
        gaps = rng.gamma(window.shape, 1 / window.shape, draws)
    at: Floats = np.cumsum(gaps) / per_s
    begin = rng.random() * max(0.0, at[-1] - seconds)
    inside: Floats = at[(at >= begin) & (at < begin + seconds)] - begin
    return inside


def _pick(values: NDArray[np.int64], cdf: Floats, picks: Floats) -> NDArray[np.int64]:
    return values[np.minimum(np.searchsorted(cdf, picks), len(values) - 1)]
