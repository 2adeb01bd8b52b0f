"""The usage report's columns and objects, and the comparison of two periods as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from billing.usage.query import ReportRow
from core.spreadsheets import escape_formula

GPU_COLUMNS = ("gpu_seconds", "gpu_cost_usd", "gpu_cost_per_mtok_usd", "margin_usd", "margin_pct")
"""Columns that customers must not see."""
COLUMNS = tuple(ReportRow.__struct_fields__)


def columns(with_gpu: bool) -> tuple[str, ...]:
    """The report's columns in order; `with_gpu` False omits GPU_COLUMNS."""
    return tuple(name for name in COLUMNS if with_gpu or name not in GPU_COLUMNS)


def to_objects(rows: Sequence[ReportRow], *, with_gpu: bool = True) -> list[dict[str, Any]]:
    """The lines as objects with `columns(with_gpu)`."""
    names = columns(with_gpu)
    return [{name: getattr(row, name) for name in names} for row in rows]


def compared_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Compared lines (billing/reports/compare.py `flatten`) as CSV: RFC 4180 with a header, amounts as decimals.

    Names are escaped with `escape_formula`. Content beyond ASCII begins with a byte order mark, without which Excel
    assumes another encoding.
    """
    output = io.StringIO()
    writer = csv.writer(output)
    names = list(rows[0]) if rows else []
    writer.writerow(names)
    for row in rows:
        writer.writerow([row[name] if _is_figure(name) else _cell(row[name]) for name in names])
    content = output.getvalue()
    return content if content.isascii() else "\ufeff" + content


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape_formula(str(value))


def _is_figure(name: str) -> bool:
    """Whether a column of a comparison holds numbers, which are not escaped."""
    return name.endswith(("_usd", "_before", "_difference", "_percent", "_pct", "_seconds"))
