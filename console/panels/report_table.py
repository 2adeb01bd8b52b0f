"""Tables of the usage report: lines with totals, and the comparison of two periods."""

from collections.abc import Sequence
from datetime import datetime

from billing.reports.compare import Change, ComparedRow
from billing.usage.query import ReportRow
from console.components.table import Cell, Column, Row, cell
from console.format import Formatted, count, money, per_mtok, percent, short_id
from console.panels.report_choice import GROUPS

_NUMBERS = (
    Column("requests", "Requests", numeric=True),
    Column("input", "Input", numeric=True),
    Column("output", "Output", numeric=True),
    Column("cost", "Cost", numeric=True),
    Column("price", "Price per M", numeric=True),
    Column("credits", "Paid by credit", numeric=True),
    Column("adjustment", "Adjustments", numeric=True),
)
_GPU_NUMBERS = (
    Column("gpu_cost", "GPU cost", numeric=True),
    Column("gpu_price", "GPU per M", numeric=True),
    Column("margin", "Margin", numeric=True),
)
_STATE = (Column("status", "Period"), Column("invoice", "Invoice"))
PERIOD_TONES = {"open": "info", "closing": "warn", "closed": "ok"}


def report_columns(by: Sequence[str], *, is_platform: bool) -> list[Column]:
    """Columns of the report grouped by `by`."""
    groups = [Column(name, GROUPS[name]) for name in by]
    return [*groups, *_NUMBERS, *(_GPU_NUMBERS if is_platform else ()), *_STATE]


def report_rows(rows: Sequence[ReportRow], by: Sequence[str], *, is_platform: bool) -> list[Row]:
    """Table rows of the report's lines."""
    return [
        {
            "id": str(number),
            **{name: cell(group_label(row, name), text=True) for name in by},
            **_numbers(row, is_platform),
        }
        for number, row in enumerate(rows)
    ]


def totals_row(total: ReportRow, groups: int, *, is_platform: bool) -> str:
    """The totals row as a Vue template: exact sums of the lines. Only formatted numbers may enter it."""
    cells = [count(total.requests), count(total.input_tokens), count(total.output_tokens)]
    cells += [money(total.cost_usd), per_mtok(total.price_per_mtok_usd)]
    cells += [money(total.credits_applied_usd), money(total.adjustment_usd)]
    if is_platform:
        cells += [money(total.gpu_cost_usd), per_mtok(total.gpu_cost_per_mtok_usd), money(total.margin_usd)]
    numbers = "".join(
        f'<q-td class="text-right"><span title="{one.exact}">{one.text}</span></q-td>' for one in cells
    )
    return (
        f'<q-tr class="total"><q-td colspan="{groups}">Total</q-td>{numbers}<q-td colspan="2"></q-td></q-tr>'
    )


def group_label(row: ReportRow, name: str) -> Formatted:
    """The line's value of the dimension `name`, for display."""
    if name in ("hour", "day", "month"):
        length = {"hour": 16, "day": 10, "month": 7}[name]
        text = row.period_start[:length].replace("T", " ")
        return Formatted(text, row.period_start, datetime.fromisoformat(row.period_start).timestamp())
    if name == "key":
        return Formatted(f"…{row.key_last4}", str(row.key_id)) if row.key_id else Formatted("–")
    if name == "tenant" and row.tenant_id is None:
        return Formatted("Idle", "GPU time that no tenant used")
    if name == "price_version":
        known = row.price_version
        return (
            Formatted("–")
            if known is None
            else Formatted(f"v{known}", f"price version {known}", float(known))
        )
    if name == "simulated":
        return Formatted("–" if row.simulated is None else "Simulated" if row.simulated else "Real")
    value = getattr(row, name)
    return Formatted(str(value), str(getattr(row, f"{name}_id", "") or "")) if value else short_id(None)


def _numbers(row: ReportRow, is_platform: bool) -> Row:
    status = row.period_status or ""
    numbers: Row = {
        "requests": cell(count(row.requests), sub=_unbilled(row)),
        "input": cell(count(row.input_tokens), sub=_cached(row)),
        "output": cell(count(row.output_tokens), sub=_reasoning(row)),
        "cost": cell(money(row.cost_usd), sub=_discount(row)),
        "price": cell(per_mtok(row.price_per_mtok_usd)),
        "credits": cell(money(row.credits_applied_usd)),
        "adjustment": cell(money(row.adjustment_usd)),
        "status": cell(status.capitalize(), tone=PERIOD_TONES.get(status, "idle")) if status else cell("–"),
        "invoice": cell(short_id(row.invoice_id)),
    }
    if is_platform:
        numbers["gpu_cost"] = cell(money(row.gpu_cost_usd))
        numbers["gpu_price"] = cell(per_mtok(row.gpu_cost_per_mtok_usd))
        share = "" if row.margin_pct is None else f"{row.margin_pct}%"
        numbers["margin"] = cell(money(row.margin_usd), sub=share)
    return numbers


def _unbilled(row: ReportRow) -> str:
    return f"{count(row.requests_unbilled).text} not billed" if row.requests_unbilled else ""


def _cached(row: ReportRow) -> str:
    if not row.cached_input_tokens:
        return ""
    return f"{percent(row.cached_input_tokens / row.input_tokens).text} cached"


def _reasoning(row: ReportRow) -> str:
    return f"{count(row.reasoning_tokens).text} reasoning" if row.reasoning_tokens else ""


def _discount(row: ReportRow) -> str:
    return f"{money(row.discount_usd).text} below list" if row.discount_usd.strip("0.") else ""


_COMPARED = {
    "requests": "Requests",
    "total_tokens": "Tokens",
    "cost_usd": "Cost",
    "price_per_mtok_usd": "Price per M",
}
_COMPARED_GPU = {"gpu_cost_usd": "GPU cost", "gpu_cost_per_mtok_usd": "GPU per M", "margin_usd": "Margin"}


def compared_figures(*, is_platform: bool) -> dict[str, str]:
    """Figures of a comparison -> their labels; GPU figures only for platform roles."""
    return _COMPARED | _COMPARED_GPU if is_platform else dict(_COMPARED)


def compared_columns(by: Sequence[str], *, is_platform: bool) -> list[Column]:
    """Columns of a comparison: each figure with its previous value and its change."""
    columns = [Column(name, GROUPS[name]) for name in by]
    for name, label in compared_figures(is_platform=is_platform).items():
        columns += [Column(name, label, numeric=True), Column(f"{name}_change", "Change", numeric=True)]
    return columns


def compared_rows(rows: Sequence[ComparedRow], by: Sequence[str], *, is_platform: bool) -> list[Row]:
    """Table rows of a comparison."""
    made = []
    for number, one in enumerate(rows):
        row: Row = {"id": str(number), **{name: cell(_name(one, name), text=True) for name in by}}
        for figure in compared_figures(is_platform=is_platform):
            change = one.figures.get(figure, Change(None, None, None, None))
            row[figure] = cell(shown_figure(figure, change.now), sub=_was(figure, change))
            row[f"{figure}_change"] = _change_cell(figure, change)
        made.append(row)
    return made


def _name(row: ComparedRow, name: str) -> Formatted:
    at = row.period_start or row.before_start
    named = {column: row.names[column] for column in row.names if column in ReportRow.__struct_fields__}
    return group_label(ReportRow(period_start=at, period_end=at, **named), name)


def shown_figure(name: str, value: str | int | None) -> Formatted:
    """A figure of the report, formatted by its unit."""
    if isinstance(value, int):
        return count(value)
    return per_mtok(value) if name.endswith("per_mtok_usd") else money(value)


def _was(name: str, change: Change) -> str:
    return "" if change.before is None else f"was {shown_figure(name, change.before).text}"


def _change_cell(name: str, change: Change) -> Cell:
    if change.difference is None:
        return cell(Formatted("–"))
    raw = str(change.difference)
    shown = shown_figure(name, change.difference)
    sign = "" if raw.startswith("-") or not raw.strip("0.") else "+"
    text = shown.text.replace("$-", "−$").replace("-", "−")
    share = "new" if change.percent is None else f"{_signed(change.percent)}%"
    if not raw.strip("-0."):
        share = ""
    return cell(Formatted(sign + text, shown.exact, shown.sort), sub=share)


def _signed(percent_text: str) -> str:
    return percent_text.replace("-", "−") if percent_text.startswith("-") else f"+{percent_text}"
