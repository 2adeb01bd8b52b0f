"""Opens a data set by its name, and writes it to a file for a download."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports import audit_rows, book_rows, focus, focus_gpu, report_rows
from billing.exports.datasets import DATASETS, Dataset, DatasetQuery, WriteTotals, write_dataset
from billing.exports.writers import Format
from core.errors import InvalidRequest

CHUNK = 64 * 1024
"""Bytes of a piece of a download."""
SPOOL_BYTES = 4 * 1024 * 1024
"""Bytes up to which a download is kept in memory; a larger one is in a temporary file."""

_MAKERS = {
    "report": report_rows.report_dataset,
    "focus_charges": focus.focus_charges,
    "focus_gpu": focus_gpu.focus_gpu,
    "journal": book_rows.journal,
    "invoices": book_rows.invoices,
    "audit": audit_rows.audit,
}


def open_dataset(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """The data set of `query`, read from `connection` while it is written. Raises InvalidRequest."""
    if query.dataset not in _MAKERS:
        raise InvalidRequest(
            f"dataset must be one of {', '.join(DATASETS)}, not {query.dataset[:40]!r}", param="dataset"
        )
    return _MAKERS[query.dataset](connection, query)


async def write_query(
    connection: AsyncConnection, query: DatasetQuery, format: Format, file: IO[bytes]
) -> WriteTotals:
    """Write the data set of `query` to `file`; returns rows and sums. Raises InvalidRequest, Conflict for bad data."""
    return await write_dataset(open_dataset(connection, query), format, file)


@contextmanager
def spool() -> Iterator[IO[bytes]]:
    """A temporary file for one download, deleted at the end."""
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES, prefix="penstock-export-") as file:
        yield file


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The content of `file` from its beginning, in pieces of CHUNK bytes."""
    file.seek(0)
    while piece := file.read(CHUNK):
        yield piece
