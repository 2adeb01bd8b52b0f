"""Reader of Mooncake's traces (Qin et al., FAST'25): JSON lines of timestamp in ms, lengths in tokens,
hash_ids.

`hash_ids` has one id per 512-token block of the prompt, the last one possibly partial; equal ids are the same
text after the same prefix. Only whole blocks can be cached, so a partial last block is omitted.

The format has neither tenants nor conversations. Both are derived: rows whose first id that is not common (such
as a shared system prompt) is the same form a conversation, and conversations are assigned to a fixed number of
tenants by that id. Lines may also have `tenant`, `model`, `tier`, `weight`, `session` and `block_tokens`, as
Penstock's exports of recorded requests do; those values are then used.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from sim.pool.workloads.files import lines, refuse, tokens
from sim.pool.workloads.hashes import chained, key_of
from sim.pool.workloads.trace import Label, Trace

BLOCK_TOKENS = 512
"""Number of prompt tokens per id where a line does not state another."""
TENANTS = 32
"""Number of tenants to which conversations are assigned."""
MAX_IDS_PER_ROW = 16_384
"""Maximum number of block ids in one line."""
MAX_IDS = 10_000_000
"""Maximum block ids in a file: 5 billion prompt tokens, about thirty times the published traces, in 160 MB of
memory.
"""
COMMON_SHARE = 0.05
"""Share of the rows (0 to 1) above which, together with COMMON_ROWS, an id counts as common to many conversations."""
COMMON_ROWS = 64
"""Number of rows above which, together with COMMON_SHARE, an id counts as common."""


class Row(msgspec.Struct):
    """One line. The first four fields are Mooncake's; Penstock's exports add the others."""

    timestamp: float
    """Milliseconds from the start of the trace."""
    input_length: int
    output_length: int
    hash_ids: Sequence[int] = ()
    tenant: str = ""
    model: str = ""
    tier: str = "standard"
    weight: float = 1.0
    session: str = ""
    block_tokens: int = BLOCK_TOKENS
    cached_tokens: int = 0
    queue_ms: int = -1
    ttft_ms: int = -1
    total_ms: int = -1
    outcome: str = ""
    """Outcome that was measured (scheduler/request_trace.py); empty where there is no measurement."""


def read_mooncake(path: Path, name: str) -> Trace:
    """Return the trace in `path`. Raises InvalidRequest naming the invalid line and the reason."""
    return to_trace(read_rows(path), name)


def read_rows(path: Path) -> list[Row]:
    """Return the validated lines of `path`. Raises InvalidRequest naming the invalid line and the reason."""
    rows: list[Row] = []
    decoder = msgspec.json.Decoder(Row)
    ids = 0
    before = -1.0
    for number, text in lines(path):
        try:
            row = decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise refuse(path, number, f"not a Mooncake request: {error}") from None
        tokens(path, number, "input_length", row.input_length)
        tokens(path, number, "output_length", row.output_length)
        tokens(path, number, "cached_tokens", row.cached_tokens)
        if not 0 <= row.timestamp < 1e12:
            raise refuse(path, number, f"timestamp is {row.timestamp}, not milliseconds from the start")
        if row.timestamp < before:
            raise refuse(
                path, number, f"timestamp {row.timestamp:g} is before the previous line's {before:g}"
            )
        if row.tier not in ("priority", "standard", "batch"):
            raise refuse(path, number, f"tier is {row.tier!r}, not priority, standard or batch")
        if not 0 < row.weight <= 1e6:
            raise refuse(path, number, f"weight is {row.weight:g}, must be above zero")
        if not 1 <= row.block_tokens <= 65_536:
            raise refuse(path, number, f"block_tokens is {row.block_tokens}, not 1 to 65,536")
        if not all(-1 <= each < 1e12 for each in (row.queue_ms, row.ttft_ms, row.total_ms)):
            raise refuse(path, number, "queue_ms, ttft_ms and total_ms are milliseconds; -1 where unknown")
        whole = row.input_length // row.block_tokens
        if len(row.hash_ids) > MAX_IDS_PER_ROW or len(row.hash_ids) > whole + 1:
            raise refuse(
                path, number, f"{len(row.hash_ids)} hash_ids are too many for {row.input_length} tokens"
            )
        if any(not 0 <= block < 1 << 64 for block in row.hash_ids):
            raise refuse(path, number, "hash_ids must be whole numbers from 0 to 2^64 - 1")
        row.hash_ids = array("Q", row.hash_ids[:whole])
        ids += len(row.hash_ids)
        if ids > MAX_IDS:
            raise refuse(path, number, f"more than {MAX_IDS:,} hash_ids")
        before = row.timestamp
        rows.append(row)
    if not rows:
        raise refuse(path, 1, "the file has no requests")
    return rows


def to_trace(rows: list[Row], name: str) -> Trace:
    """Return the trace of the rows, which must be in order of time."""
    common = _common(rows)
    labels: dict[Label, int] = {}
    label, session, offsets = [], [], [0]
    chain = array("Q")
    for number, row in enumerate(rows):
        own = next((block for block in row.hash_ids if block not in common), None)
        # A prompt of one common block, or of none, is a conversation of its own.
        talk = key_of("row", number) if own is None else key_of("id", own)
        tenant = row.tenant or f"tenant-{talk % TENANTS:02}"
        label.append(labels.setdefault(Label(tenant, row.model, row.tier, row.weight), len(labels)))
        session.append((key_of(row.session) if row.session else talk) >> 1)
        chain.extend(chained(row.hash_ids))
        offsets.append(len(chain))
    return Trace(
        name,
        np.array([row.timestamp for row in rows], dtype=np.float64) / 1000,
        np.array([row.input_length for row in rows], dtype=np.int64),
        np.array([row.output_length for row in rows], dtype=np.int64),
        tuple(labels),
        np.array(label, dtype=np.int64),
        np.array(session, dtype=np.int64),
        np.array(chain, dtype=np.uint64),
        np.array(offsets, dtype=np.int64),
        np.array([row.block_tokens for row in rows], dtype=np.int64),
    )


def _common(rows: list[Row]) -> set[int]:
    counts: dict[int, int] = {}
    for row in rows:
        for block in row.hash_ids[:8]:
            counts[block] = counts.get(block, 0) + 1
    limit = max(COMMON_ROWS, COMMON_SHARE * len(rows))
    return {block for block, count in counts.items() if count > limit}
