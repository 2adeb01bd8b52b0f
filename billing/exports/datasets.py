"""The data sets of finance: what each is called, its columns, and its records as a stream in small blocks."""

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

DatasetName = Literal["report", "focus_charges", "focus_gpu", "journal", "invoices"]
DATASETS: tuple[DatasetName, ...] = ("report", "focus_charges", "focus_gpu", "journal", "invoices")
PLATFORM_ONLY: tuple[DatasetName, ...] = ("focus_gpu", "journal")
"""Data sets that no customer sees."""
BLOCK = 2_000
"""Records a block."""


class DatasetQuery(msgspec.Struct, frozen=True):
    """Which data set, of which period and organisation (None = all)."""

    dataset: DatasetName
    start: datetime
    end: datetime
    group_by: tuple[str, ...] = ("tenant", "model")
    tenant_id: UUID | None = None
    with_gpu: bool = False


class Dataset(msgspec.Struct):
    """A data set that is about to be read: its shape, and its records once."""

    name: str
    version: str
    """Of the columns; it changes when they do."""
    columns: tuple[Column, ...]
    blocks: AsyncIterator[Sequence[Record]]


class WriteTotals(msgspec.Struct):
    """What was written: records, and the exact sum of each column of amounts."""

    rows: int = 0
    sums: dict[str, str] = {}


async def write_dataset(dataset: Dataset, format: Format, file: IO[bytes]) -> WriteTotals:
    """Write every record to `file` with at most a few blocks in memory; returns what was written.

    In a thread: a download is made in the process that serves requests, and a workbook takes seconds to close.
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
    """`work` in a thread, to its end even when who waits is cancelled: until then the file is in use."""
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
    """Add a block's values to the sums of their columns, exactly."""
    with localcontext() as context:
        context.prec = 60
        for i in amounts:
            amounts[i] += sum((value for one in block if isinstance(value := one[i], Decimal)), Decimal(0))


def usd(pico: int) -> Decimal:
    """Exact dollars of picodollars."""
    return Decimal(pico_to_usd(pico))


def usd_text(amount: Decimal) -> str:
    """Exact dollars as this project writes them: two decimals at least, no trailing zeros beyond."""
    whole, _, rest = format(amount, "f").partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"
