"""The journal as CSV (UTF-8, exact decimals), JSON and XLSX files."""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import xlsxwriter

from core.errors import InvalidRequest
from core.spreadsheets import escape_formula

FORMATS = ("csv", "json", "xlsx")
MAX_XLSX_ROWS = 1_048_575
"""Rows of a sheet below its header."""

"""First characters that make a spreadsheet read a cell as a formula."""
_EXACT_DIGITS = 15
"""Significant digits of a spreadsheet's numbers; longer amounts are written as text."""


def write(rows: Sequence[msgspec.Struct], columns: Sequence[str], file_format: str) -> bytes:
    """The rows as one file in one of FORMATS, with `columns` in their order (JSON: all fields).

    Raises InvalidRequest for an unknown format or too many rows for a sheet.
    """
    if file_format == "csv":
        return "".join(csv_lines(rows, columns)).encode()
    if file_format == "json":
        return msgspec.json.format(msgspec.json.encode(list(rows)), indent=2)
    if file_format == "xlsx":
        return _xlsx(rows, columns)
    raise InvalidRequest(
        f"format must be one of {', '.join(FORMATS)}, not {file_format[:20]!r}", param="format"
    )


def csv_lines(rows: Iterable[msgspec.Struct], columns: Sequence[str]) -> Iterable[str]:
    """CSV lines (RFC 4180) with a header; a text that looks like a formula gets a leading apostrophe."""
    yield _csv_line(columns)
    for row in rows:
        yield csv_row(row, columns)


def csv_row(row: msgspec.Struct, columns: Sequence[str]) -> str:
    """One line of CSV."""
    return _csv_line([_cell(name, getattr(row, name)) for name in columns])


async def stream_csv(rows: AsyncIterator[Any], columns: Sequence[str]) -> AsyncIterator[str]:
    """The lines of `csv_lines` for streamed rows, one at a time."""
    yield _csv_line(columns)
    async for row in rows:
        yield csv_row(row, columns)


def _csv_line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    words = str(value)
    if name.endswith("_usd") or isinstance(value, int):
        return words
    return escape_formula(words)


def _xlsx(rows: Sequence[msgspec.Struct], columns: Sequence[str]) -> bytes:
    if len(rows) > MAX_XLSX_ROWS:
        raise InvalidRequest(
            f"a sheet holds {MAX_XLSX_ROWS} rows; take a shorter period or CSV", param="format"
        )
    out = io.BytesIO()
    book = xlsxwriter.Workbook(
        out, {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    )
    sheet = book.add_worksheet("journal")
    bold = book.add_format({"bold": True})
    money = book.add_format({"num_format": "#,##0.00##########"})
    for at, name in enumerate(columns):
        sheet.write_string(0, at, name, bold)
    for line, row in enumerate(rows, 1):
        for at, name in enumerate(columns):
            value = getattr(row, name)
            if isinstance(value, int) and not isinstance(value, bool):
                sheet.write_number(line, at, value)
            elif value is not None and name.endswith("_usd") and _is_exact_number(value):
                sheet.write_number(line, at, Decimal(value), money)
            elif value is not None:
                sheet.write_string(line, at, str(value))
    sheet.freeze_panes(1, 0)
    book.close()
    return out.getvalue()


def _is_exact_number(amount: str) -> bool:
    """Whether the amount has few enough digits for a spreadsheet's number to be exact."""
    return len(amount.replace("-", "").replace(".", "").strip("0")) <= _EXACT_DIGITS
