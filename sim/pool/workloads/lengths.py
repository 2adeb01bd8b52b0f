"""Readers of traces without prefixes: Azure's 2023 traces and Vidur's length files.

Azure (Patel et al., Splitwise, ISCA'24): CSV of TIMESTAMP, ContextTokens, GeneratedTokens. Vidur (Agrawal et
al., MLSys'24): CSV that begins with num_prefill_tokens, num_decode_tokens. It has no arrival times; they are
generated as a Poisson process. Neither has tenants or conversations: every request is its own conversation, and
all belong to one tenant.
"""

import math
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.pool.workloads.files import lines, refuse, tokens
from sim.pool.workloads.trace import Label, Trace

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
VIDUR_HEADER = "num_prefill_tokens,num_decode_tokens"
_VIDUR_ARRIVALS = 20_231
"""Seed of the generated arrivals; constant, so that reading a file always gives the same trace."""


def read_azure(path: Path, name: str) -> Trace:
    """Return the trace in `path`. Raises InvalidRequest naming the invalid line and the reason."""
    at: list[float] = []
    prompts, outputs = [], []
    for number, text in _below_header(path):
        cells = text.split(",")
        if len(cells) != 3:
            raise refuse(path, number, f"{len(cells)} columns, not {AZURE_HEADER}")
        seconds = _instant(path, number, cells[0])
        if at and seconds < at[-1]:
            raise refuse(path, number, f"TIMESTAMP {cells[0]} is before the previous line's")
        at.append(seconds)
        prompts.append(tokens(path, number, "ContextTokens", cells[1]))
        outputs.append(tokens(path, number, "GeneratedTokens", cells[2]))
    if not at:
        raise refuse(path, 1, "the file has no requests")
    return _trace(name, np.array(at) - at[0], prompts, outputs)


def read_vidur(path: Path, name: str) -> Trace:
    """Return the lengths in `path` with Poisson arrivals of one a second. Raises InvalidRequest naming the fault."""
    prompts, outputs = [], []
    for number, text in _below_header(path):
        cells = text.split(",")
        if len(cells) < 2:
            raise refuse(path, number, f"{len(cells)} columns, not {VIDUR_HEADER},...")
        prompts.append(tokens(path, number, "num_prefill_tokens", _whole(cells[0])))
        outputs.append(tokens(path, number, "num_decode_tokens", _whole(cells[1])))
    if not prompts:
        raise refuse(path, 1, "the file has no requests")
    gaps = np.random.default_rng(_VIDUR_ARRIVALS).exponential(size=len(prompts))
    return _trace(name, np.cumsum(gaps), prompts, outputs)


def _trace(name: str, at_s: NDArray[np.float64], prompts: list[int], outputs: list[int]) -> Trace:
    count = len(prompts)
    return Trace(
        name,
        at_s,
        np.array(prompts, dtype=np.int64),
        np.array(outputs, dtype=np.int64),
        (Label("tenant-00"),),
        np.zeros(count, dtype=np.int64),
        np.arange(count, dtype=np.int64),
        np.zeros(0, dtype=np.uint64),
        np.zeros(count + 1, dtype=np.int64),
        np.full(count, 64),
    )


def _below_header(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines after the header, which is the first line that is not empty."""
    return islice(lines(path), 1, None)


def _instant(path: Path, line: int, text: str) -> float:
    """Return the seconds of a timestamp such as 2023-11-16 18:17:03.9799600, which has a resolution of 100 ns.

    The traces of 2024 add +00:00; the others are in UTC too.
    """
    head, _, fraction = text.removesuffix("+00:00").partition(".")
    try:
        if not (fraction or "0").isdecimal():
            raise ValueError
        part = float(f"0.{fraction}") if fraction else 0.0
        whole = datetime.fromisoformat(f"{head}+00:00").timestamp()
    except ValueError:
        raise refuse(path, line, f"TIMESTAMP is {text!r}, not such as 2023-11-16 18:17:03.9799600") from None
    return whole + part


def _whole(text: str) -> object:
    """Return a whole number that a data frame may have written as 12.0."""
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if math.isfinite(value) and value == int(value) else text
