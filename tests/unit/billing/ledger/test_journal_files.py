"""The journal's files: long amounts and texts that look like formulas survive a spreadsheet."""

import csv
import io

import msgspec
import openpyxl
import pytest

from billing.ledger.journal_files import write
from core.errors import InvalidRequest


class Row(msgspec.Struct):
    name: str
    amount_usd: str
    count: int
    note: str | None = None


ROWS = [Row("=1+1", "-0.000000000007", 3), Row("ä", "123456789012.123456789012", 0, "x,y\n")]
COLUMNS = ("name", "amount_usd", "count", "note")


def test_csv_keeps_amounts_exact_and_formulas_harmless() -> None:
    rows = list(csv.reader(io.StringIO(write(ROWS, COLUMNS, "csv").decode(), newline="")))
    assert rows == [
        list(COLUMNS),
        ["'=1+1", "-0.000000000007", "3", ""],
        ["ä", "123456789012.123456789012", "0", "x,y\n"],
    ]


def test_a_sheet_holds_numbers_it_can_keep_and_text_for_the_rest() -> None:
    sheet = openpyxl.load_workbook(io.BytesIO(write(ROWS, COLUMNS, "xlsx"))).active
    assert sheet is not None
    _, first, second = sheet.iter_rows(values_only=True)
    assert first == ("=1+1", -7e-12, 3, None)
    assert second == ("ä", "123456789012.123456789012", 0, "x,y\n")
    assert sheet["A2"].data_type == "s"
    assert sheet["B2"].number_format == "#,##0.00##########"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        write(ROWS, COLUMNS, "pdf")
