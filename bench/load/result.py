"""What a run of sustained load found, and the books after it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import asyncpg

SETTLE_TIMEOUT_S = 60.0


@dataclass
class Sample:
    """Counts of the clients since the start (bench.load.client.Counts), and memory by process."""

    at_s: float
    open_streams: int
    started: int
    finished: int
    tokens: int
    events: int
    refused: dict[str, int]
    errors: dict[str, int]
    late_ms: dict[str, float]
    ttft_ms: dict[str, float]
    done: bool
    memory: dict[str, int]
    """Private bytes by process."""


@dataclass
class Result:
    """A run."""

    conditions: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)
    """CPU seconds a second by process."""
    books: dict[str, int] = field(default_factory=dict)

    @property
    def last(self) -> Sample:
        """The counts at the end."""
        return self.samples[-1]


async def settled(url: str, requests: int) -> dict[str, int]:
    """Wait until no hold is open and `requests` requests have rows; return what the books say then, or in the end."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        connection = await asyncpg.connect(url)
        try:
            (found,) = await connection.fetch(_BOOKS)
        finally:
            await connection.close()
        books = {name: int(value) for name, value in found.items()}
        if (not books["open_holds"] and books["rows"] >= requests) or time.monotonic() > deadline:
            return books
        await asyncio.sleep(1)


_BOOKS = """
    SELECT (SELECT count(*) FROM usage_rows) AS rows,
        (SELECT coalesce(sum(output_tokens), 0) FROM usage_rows) AS output_tokens,
        (SELECT count(*) FROM usage_rows WHERE outcome NOT IN ('completed', 'length')) AS not_completed,
        (SELECT count(*) FROM holds WHERE state = 'open') AS open_holds,
        (SELECT coalesce(sum(held), 0) FROM billing_accounts) AS held,
        (SELECT coalesce(sum(debit) - sum(credit), 0) FROM ledger_balances) AS ledger,
        (SELECT count(*) FROM settle_errors) AS parked,
        (SELECT coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY queue_us), 0) FROM usage_rows) AS queue_p99_us,
        (SELECT coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY ttft_us), 0) FROM usage_rows) AS ttft_p99_us
"""


def growth(samples: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """Return a process's median MiB in the second quarter of the samples under full load, and in their last quarter.

    Samples after the last new request are left out: then streams end.
    """
    most = max(each["open_streams"] for each in samples)
    full = [each["memory"][name] / 2**20 for each in samples if each["open_streams"] > 0.9 * most]
    quarter = max(len(full) // 4, 1)
    return median(full[quarter : 2 * quarter] or full), median(full[-quarter:])
