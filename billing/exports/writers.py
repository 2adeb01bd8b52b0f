"""File formats of exports: written in blocks with bounded memory, and deterministically (the same records give the
same bytes).

CSV is RFC 4180 in UTF-8 with a header. XLSX stores numbers as 64-bit floats with 15 digits, so each decimal column is
written as a number and, in a column at the right (`NAME (exact)`), as text with all digits. Parquet stores
DECIMAL(38,12) exactly.
"""

import csv
import io
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO, Any, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xlsxwriter

from billing.exports.columns import Column, ColumnKind, Record, Value, counts_text, decimal_text, instant_text
from core.errors import InvalidRequest
from core.spreadsheets import escape_formula

Format = Literal["csv", "json", "xlsx", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "json", "xlsx", "parquet")
MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
}
MAX_SHEET_ROWS = 1_048_575
"""Rows of an Excel sheet below its header."""
ROW_GROUP = 65_536
"""Rows of a Parquet row group."""
SCALE = 12
"""Decimals of a DECIMAL column in Parquet."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The creation date of all workbooks, so that their bytes do not depend on the clock."""


class Sink(Protocol):
    """A file being written."""

    def add(self, records: Sequence[Record]) -> None:
        """Append records with values in the order of the columns."""

    def close(self) -> None:
        """Finish the file; its handle stays open."""

    def abort(self) -> None:
        """Release resources without finishing the file."""


def open_sink(format: Format, columns: Sequence[Column], file: IO[bytes], title: str = "Export") -> Sink:
    """A sink of `format` into `file`, opened for writing bytes; `title` names an XLSX sheet.

    Raises InvalidRequest for an unknown format.
    """
    makers: dict[str, Callable[[], Sink]] = {
        "csv": lambda: CsvSink(columns, file),
        "json": lambda: JsonSink(columns, file),
        "xlsx": lambda: XlsxSink(columns, file, title),
        "parquet": lambda: ParquetSink(columns, file),
    }
    if format not in makers:
        raise InvalidRequest(
            f"format must be one of {', '.join(FORMATS)}, not {format[:40]!r}", param="format"
        )
    return makers[format]()


def json_value(value: Value) -> str | int | bool | dict[str, int] | None:
    """A value for JSON, with decimals and instants as text."""
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, datetime):
        return instant_text(value)
    return value


class CsvSink:
    """CSV; an empty field = null."""

    def __init__(self, columns: Sequence[Column], file: IO[bytes]) -> None:
        self._file = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._file)
        self._writer.writerow([column.name for column in columns])

    def add(self, records: Sequence[Record]) -> None:
        """See Sink."""
        self._writer.writerows([[self._cell(value) for value in record] for record in records])

    def close(self) -> None:
        """See Sink."""
        self._file.flush()
        self._file.detach()

    def abort(self) -> None:
        """See Sink."""
        self._file.detach()

    @staticmethod
    def _cell(value: Value) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return escape_formula(value)
        return counts_text(value) if isinstance(value, dict) else str(json_value(value))


class JsonSink:
    """A JSON list of objects, one per line; decimals are strings."""

    def __init__(self, columns: Sequence[Column], file: IO[bytes]) -> None:
        self._names = [column.name for column in columns]
        self._file = file
        self._first = True
        file.write(b"[")

    def add(self, records: Sequence[Record]) -> None:
        """See Sink."""
        for record in records:
            found = dict(zip(self._names, map(json_value, record), strict=True))
            self._file.write((b"\n" if self._first else b",\n") + msgspec.json.encode(found))
            self._first = False

    def close(self) -> None:
        """See Sink."""
        self._file.write(b"\n]\n")

    def abort(self) -> None:
        """See Sink."""


class XlsxSink:
    """An XLSX workbook with one sheet, written row by row."""

    def __init__(self, columns: Sequence[Column], file: IO[bytes], title: str) -> None:
        self._columns = columns
        self._exact = [i for i, column in enumerate(columns) if column.is_decimal]
        self._spool = tempfile.TemporaryDirectory(prefix="penstock-xlsx-")
        self._book = xlsxwriter.Workbook(
            file,
            {"constant_memory": True, "tmpdir": self._spool.name, "strings_to_formulas": False,
             "strings_to_urls": False, "strings_to_numbers": False},
        )  # fmt: skip
        self._book.set_properties({"title": title, "created": _EPOCH.replace(tzinfo=None)})
        self._sheet = self._book.add_worksheet(title[:31])
        self._sheet.freeze_panes(1, 0)
        self._formats = {
            ColumnKind.AMOUNT: self._book.add_format({"num_format": "#,##0.00####"}),
            ColumnKind.DECIMAL: self._book.add_format({"num_format": "#,##0.00####"}),
            ColumnKind.INTEGER: self._book.add_format({"num_format": "#,##0"}),
            ColumnKind.INSTANT: self._book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
        }
        bold = self._book.add_format({"bold": True})
        names = [column.name for column in columns] + [f"{columns[i].name} (exact)" for i in self._exact]
        self._sheet.set_column(0, len(names) - 1, 18)
        for i, name in enumerate(names):
            self._sheet.write_string(0, i, name, bold)
        self._row = 0

    def add(self, records: Sequence[Record]) -> None:
        """See Sink. Raises InvalidRequest beyond MAX_SHEET_ROWS."""
        if self._row + len(records) > MAX_SHEET_ROWS:
            raise InvalidRequest(
                f"a sheet holds {MAX_SHEET_ROWS:,} rows and this is more; choose csv or parquet, or group by less",
                param="format",
            )
        for record in records:
            self._row += 1
            for i, value in enumerate(record):
                self._put(i, value)
            for place, i in enumerate(self._exact, start=len(record)):
                if (value := record[i]) is not None:
                    self._sheet.write_string(self._row, place, str(json_value(value)))

    def _put(self, position: int, value: Value) -> None:
        cell_format = self._formats.get(self._columns[position].kind)
        if value is None:
            return
        if isinstance(value, bool):
            self._sheet.write_boolean(self._row, position, value)
        elif isinstance(value, str | dict):
            shown = counts_text(value) if isinstance(value, dict) else value
            self._sheet.write_string(self._row, position, shown)
        elif isinstance(value, datetime):
            self._sheet.write_datetime(
                self._row, position, value.astimezone(UTC).replace(tzinfo=None), cell_format
            )
        else:
            self._sheet.write_number(self._row, position, value, cell_format)

    def close(self) -> None:
        """See Sink."""
        self._book.close()
        self._spool.cleanup()

    def abort(self) -> None:
        """See Sink."""
        self._sheet.row_data_fh.close()
        self._book.fileclosed = True  # otherwise its destructor would finish the file
        self._spool.cleanup()


_ARROW: dict[ColumnKind, Any] = {
    ColumnKind.TEXT: pa.string(),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.AMOUNT: pa.decimal128(38, SCALE),
    ColumnKind.DECIMAL: pa.decimal128(38, SCALE),
    ColumnKind.INSTANT: pa.timestamp("us", tz="UTC"),
    ColumnKind.COUNTS: pa.string(),
}


class ParquetSink:
    """Parquet with zstd, in row groups of ROW_GROUP rows independent of the blocks."""

    def __init__(self, columns: Sequence[Column], file: IO[bytes]) -> None:
        self._schema = pa.schema([(column.name, _ARROW[column.kind]) for column in columns])
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", write_statistics=True)
        self._pending: list[Record] = []

    def add(self, records: Sequence[Record]) -> None:
        """See Sink."""
        self._pending.extend(records)
        while len(self._pending) >= ROW_GROUP:
            self._write(self._pending[:ROW_GROUP])
            del self._pending[:ROW_GROUP]

    def _write(self, records: Sequence[Record]) -> None:
        arrays = [
            pa.array([_parquet_value(record[i]) for record in records], type=field.type)
            for i, field in enumerate(self._schema)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROW_GROUP)

    def close(self) -> None:
        """See Sink."""
        if self._pending:
            self._write(self._pending)
            self._pending = []
        self._writer.close()

    def abort(self) -> None:
        """See Sink."""
        self._pending = []
        self._writer.close()


def _parquet_value(value: Value) -> Value:
    return counts_text(value) if isinstance(value, dict) else value
