"""The data sets of finance: what each is called, its columns, and its records as a stream in small blocks."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from typing import IO, Literal
from uuid import UUID

import msgspec

from billing.exports.columns import Column, Kind, Record
from billing.exports.writers import Format, open_sink
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


class Tally(msgspec.Struct):
    """What was written: records, and the exact sum of each column of amounts."""

    rows: int = 0
    sums: dict[str, str] = {}


async def write(dataset: Dataset, format: Format, file: IO[bytes]) -> Tally:
    """Write every record to `file` with at most a few blocks in memory; returns what was written."""
    sink = open_sink(format, dataset.columns, file, dataset.name.replace("_", " ").capitalize())
    amounts = {i: Decimal(0) for i, column in enumerate(dataset.columns) if column.kind is Kind.AMOUNT}
    rows = 0
    try:
        async for block in dataset.blocks:
            sink.add(block)
            rows += len(block)
            _add_up(amounts, block)
    except BaseException:
        sink.abort()
        raise
    sink.close()
    sums = {dataset.columns[i].name: usd_text(total) for i, total in amounts.items()}
    return Tally(rows, sums)


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
