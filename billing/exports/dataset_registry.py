"""From a query to its data set, and from a data set to a file that can be sent: the place that knows them all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports import book_rows, focus, focus_gpu, report_rows
from billing.exports.datasets import DATASETS, Dataset, DatasetQuery, WriteTotals, write_dataset
from billing.exports.writers import Format
from core.errors import InvalidRequest

CHUNK = 64 * 1024
SPOOL_BYTES = 4 * 1024 * 1024
"""A download up to this size stays in memory, a larger one in a temporary file."""

_MAKERS = {
    "report": report_rows.report_dataset,
    "focus_charges": focus.focus_charges,
    "focus_gpu": focus_gpu.focus_gpu,
    "journal": book_rows.journal,
    "invoices": book_rows.invoices,
}


def open_dataset(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """The data set of `query`, read through `connection` as it is written. Raises InvalidRequest."""
    if query.dataset not in _MAKERS:
        raise InvalidRequest(
            f"dataset must be one of {', '.join(DATASETS)}, not {query.dataset[:40]!r}", param="dataset"
        )
    return _MAKERS[query.dataset](connection, query)


async def write_query(
    connection: AsyncConnection, query: DatasetQuery, format: Format, file: IO[bytes]
) -> WriteTotals:
    """Write the data set of `query` to `file`; returns rows and sums. Raises InvalidRequest."""
    return await write_dataset(open_dataset(connection, query), format, file)


@contextmanager
def spool() -> Iterator[IO[bytes]]:
    """A temporary file for one download, gone when its reader is."""
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES, prefix="penstock-export-") as file:
        yield file


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The content of `file` from its beginning, in pieces."""
    file.seek(0)
    while piece := file.read(CHUNK):
        yield piece
