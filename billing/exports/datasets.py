"""Data sets: names, columns and a stream of records in blocks; writing one to a file."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from typing import IO, Literal
from uuid import UUID

import msgspec

from billing.exports.columns import Column, ColumnKind, Record
from billing.exports.writers import Format, Sink, open_sink
from core.money import pico_to_usd

DatasetName = Literal["report", "focus_charges", "focus_gpu", "journal", "invoices", "audit"]
DATASETS: tuple[DatasetName, ...] = ("report", "focus_charges", "focus_gpu", "journal", "invoices", "audit")
PLATFORM_ONLY: tuple[DatasetName, ...] = ("focus_gpu", "journal", "audit")
"""Data sets that customers must not see."""
BLOCK = 2_000
"""Records per block."""


class DatasetQuery(msgspec.Struct, frozen=True):
    """A data set of the period [start, end) and one organisation (None = all)."""

    dataset: DatasetName
    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ("tenant", "model")
    tenant_id: UUID | None = None
    with_gpu: bool = False


class Dataset(msgspec.Struct):
    """A data set with its columns, and its records as a stream that can be read once."""

    name: str
    version: str
    """Version of the columns, which changes with them."""
    columns: tuple[Column, ...]
    blocks: AsyncIterator[Sequence[Record]]


class WriteTotals(msgspec.Struct):
    """The number of records written, and the exact sum of each column of amounts."""

    rows: int = 0
    sums: dict[str, str] = {}


async def write_dataset(dataset: Dataset, format: Format, file: IO[bytes]) -> WriteTotals:
    """Write all records to `file`, with a few blocks in memory at most; returns rows and sums.

    Formatting runs in a thread, because the API process makes downloads and closing a workbook takes seconds.
    """
    sink = open_sink(format, dataset.columns, file, dataset.name.replace("_", " ").capitalize())
    amounts = {i: Decimal(0) for i, column in enumerate(dataset.columns) if column.kind is ColumnKind.AMOUNT}
    rows = 0
    try:
        async for block in dataset.blocks:
            await _in_thread(_add, sink, amounts, block)
            rows += len(block)
    except BaseException:
        sink.abort()
        raise
    await _in_thread(sink.close)
    sums = {dataset.columns[i].name: usd_text(total) for i, total in amounts.items()}
    return WriteTotals(rows, sums)


async def _in_thread(work: Callable[..., None], *args: object) -> None:
    """Run `work` in a thread; a cancellation is raised only when the thread is done, because it uses the file."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


def _add(sink: Sink, amounts: dict[int, Decimal], block: Sequence[Record]) -> None:
    sink.add(block)
    _add_up(amounts, block)


def _add_up(amounts: dict[int, Decimal], block: Sequence[Record]) -> None:
    """Add a block's values exactly to the sums by column index."""
    with localcontext() as context:
        context.prec = 60
        for i in amounts:
            amounts[i] += sum((value for one in block if isinstance(value := one[i], Decimal)), Decimal(0))


def usd(pico: int) -> Decimal:
    """Exact dollars of picodollars."""
    return Decimal(pico_to_usd(pico))


def usd_text(amount: Decimal) -> str:
    """Exact dollars with at least two decimals and no further trailing zeros."""
    whole, _, rest = format(amount, "f").partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"
