"""Renders a statement's body as a PDF, deterministically: the same body gives the same bytes.

The font is Helvetica, or DejaVu Sans when the body has characters beyond Latin-1.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

from billing.statements.canonical import canonical
from billing.statements.signing import sha256

_FONT = Path(__file__).with_name("fonts") / "DejaVuSans.ttf"
_INK, _SOFT, _LINE, _BAND = (24, 34, 48), (92, 104, 120), (214, 220, 228), (244, 246, 249)
_ACCENT, _WARN = (20, 92, 140), (176, 64, 16)
_LABELS = {
    "usage": "Usage",
    "uncollectible": "Not collected",
    "grant": "Credit given",
    "purchase": "Credit bought",
    "sla_credit": "Service level credit",
    "expiry": "Credit expired",
    "refund": "Refunded",
    "adjustment": "Adjustments",
    "commit": "Committed spend",
    "invoice": "Invoiced",
    "rounding": "Rounding to cents",
    "payment": "Payments",
    "credit_note": "Credit notes",
    "credit_note_rounding": "Rounding of credit notes",
    "credit_note_refund": "Credit notes paid out",
    "write_off": "Written off",
    "dispute": "Payment disputed",
    "dispute_won": "Dispute won",
    "dispute_lost": "Dispute lost",
    "clawback": "Credit taken back in a dispute",
    "clawback_return": "Credit returned after a dispute",
}
_ACCOUNTS = {
    "credit": "Prepaid credit",
    "receivable": "Used, not yet invoiced",
    "invoiced": "Invoiced, not yet paid",
    "disputed": "Under dispute",
}
_LOTS = {"purchased": "Bought", "promotional": "Given", "sla": "Service level", "adjustment": "Adjustment"}
_LEFT_ALIGNED = frozenset(
    {"Usage", "Movement", "Line", "Time", "Kind", "Date", "Reason", "Corrects", "Rule", "Credit", "Expires"}
)
_CLASSES = {"input": "input", "cached_input": "cached input", "output": "output", "reasoning": "reasoning"}


class _StatementPdf(FPDF):
    """A document of A4 pages with our footer."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(format="A4")
        text = canonical(body)
        self.footer_text = f"{body['tenant']['id']}  |  {body['month']}  |  content sha256 {sha256(text)}"
        self.family = "helvetica"
        try:
            text.decode("utf-8").encode("latin-1")
        except UnicodeEncodeError:  # one font for the whole document
            self.family = "dejavu"
            for style in ("", "B"):
                self.add_font(self.family, style, _FONT)
        self.set_margins(18, 16, 18)
        self.set_auto_page_break(True, margin=20)
        self.set_creation_date(datetime.strptime(body["issued_at"], "%Y-%m-%dT%H:%M:%S.%f%z"))
        self.set_title(f"Statement {body['month']}")
        self.set_producer("Penstock")
        self.set_lang("en")

    def footer(self) -> None:
        """Write the statement's identification and the page number."""
        self.set_y(-14)
        self.write_line(self.footer_text, 6 if self.family == "helvetica" else 5, _SOFT, width=150)
        self.set_xy(-48, -14)
        self.write_line(f"Page {self.page_no()} of {{nb}}", 6, _SOFT, width=30, align="R")

    def write_line(
        self,
        content: str,
        size: int,
        color: tuple[int, int, int] = _INK,
        *,
        bold: bool = False,
        width: int = 0,
        align: str = "L",
        height: int = 5,
    ) -> None:
        """Write one line of text and move to the next."""
        self.set_font(self.family, "B" if bold else "", size)
        self.set_text_color(*color)
        self.cell(width, height, content, align=align, new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def titled_table(
        self, title: str, heading: list[str], rows: list[list[str]], widths: list[int], *, total: bool = False
    ) -> None:
        """Write a table below a title; columns of text are left-aligned; `total` sets the last row in bold."""
        if self.will_page_break(32):
            self.add_page()
        self.ln(5)
        self.write_line(title, 11, _ACCENT, bold=True, height=7)
        self.set_font(self.family, "", 8)
        self.set_text_color(*_INK)
        self.set_draw_color(*_LINE)
        is_text = [name in _LEFT_ALIGNED for name in heading]
        with self.table(
            col_widths=widths,
            text_align=["LEFT" if left else "RIGHT" for left in is_text],
            line_height=5,
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            headings_style=FontFace(emphasis="BOLD", color=_SOFT, fill_color=_BAND),
            padding=(0, 1),
        ) as table:
            table.row(heading)
            for at, row in enumerate(rows):
                last = total and at == len(rows) - 1
                table.row(row, style=FontFace(emphasis="BOLD") if last else None)


def render(body: dict[str, Any]) -> bytes:
    """The PDF of a statement's body (billing/statements/body.py)."""
    page = _StatementPdf(body)
    page.add_page()
    _head(page, body)
    _summary(page, body)
    _usage(page, body)
    for code, title in _ACCOUNTS.items():
        _account(page, title, body["accounts"][code])
    _invoice(page, body["invoice"])
    _lists(page, body)
    _closing(page)
    return bytes(page.output())


def _head(page: _StatementPdf, body: dict[str, Any]) -> None:
    start = datetime.strptime(body["period"]["start"], "%Y-%m-%dT%H:%M:%S.%f%z")
    page.set_fill_color(*_ACCENT)
    page.rect(0, 0, page.w, 4, style="F")
    page.write_line("Penstock", 10, _SOFT, bold=True)
    page.ln(1)
    page.write_line(f"Statement {start:%B %Y}", 20, bold=True, height=10)
    page.write_line(body["tenant"]["name"], 12, bold=True, height=7)
    page.write_line(f"{body['tenant']['id']}, {body['mode']}", 8, _SOFT)
    period = f"{body['period']['start'][:10]} to {body['period']['end'][:10]} (excluded), UTC"
    page.write_line(f"{period}. US dollars, without tax. Issued {body['issued_at'][:16]}Z.", 8, _SOFT)
    if not body["final"]:
        page.ln(1)
        page.write_line(
            "DRAFT: the month is not closed, these numbers can still change.", 9, _WARN, bold=True
        )
    elif body["revision"] > 1:
        page.write_line(f"Revision {body['revision']}; it replaces the earlier ones.", 9, _WARN, bold=True)


def _summary(page: _StatementPdf, body: dict[str, Any]) -> None:
    """Four figures in boxes."""
    totals, accounts = body["totals"], body["accounts"]
    last = (
        ("Prepaid credit left", "credit") if body["mode"] == "prepaid" else ("Invoiced, not paid", "invoiced")
    )
    boxes = [
        ("At list prices", totals["list_cost_usd"]),
        ("Discount", totals["discount_usd"]),
        ("Cost of usage", totals["cost_usd"]),
        (last[0], accounts[last[1]]["closing_usd"]),
    ]
    page.ln(4)
    top, width = page.get_y(), page.epw / len(boxes)
    for at, (name, usd) in enumerate(boxes):
        left = page.l_margin + at * width
        page.set_fill_color(*_BAND)
        page.rect(left, top, width - 2, 17, style="F", round_corners=True, corner_radius=1)
        page.set_xy(left + 2, top + 2)
        page.write_line(name, 8, _SOFT, width=int(width) - 5)
        page.set_xy(left + 2, top + 8)
        page.write_line(f"${usd}", 12 if len(usd) < 14 else 8, bold=True, width=int(width) - 5, height=7)
    page.set_y(top + 18)


def _usage(page: _StatementPdf, body: dict[str, Any]) -> None:
    rows = []
    for line in body["usage"]:
        name = (
            f"{line['project'] or line['project_id']}: {line.get('adapter', line['model'])} ({line['tier']})"
        )
        for one in line["classes"]:
            rows.append(
                [
                    f"{name}, {_CLASSES[one['class']]}",
                    str(line["price_version"]),
                    f"{int(one['tokens']):,}",
                    one["price_per_mtok_usd"],
                    one["cost_usd"],
                ]
            )
    if not rows:
        page.ln(5)
        page.write_line("No usage was billed in this month.", 9)
        return
    totals = body["totals"]
    tokens = sum(int(totals[f"{name}_tokens"]) for name in _CLASSES)
    rows.append([f"Total of {int(totals['requests']):,} requests", "", f"{tokens:,}", "", totals["cost_usd"]])
    heading = ["Usage", "Price no.", "Tokens", "$ per million", "Cost $"]
    page.titled_table("Usage by project, model and class", heading, rows, [76, 16, 28, 24, 30], total=True)
    if totals["uncollectible_usd"] != "0.00":
        page.write_line(
            f"Of this ${totals['uncollectible_usd']} was not charged: no credit was left.", 8, _SOFT
        )


def _account(page: _StatementPdf, title: str, account: dict[str, Any]) -> None:
    if not account["movements"] and account["opening_usd"] == "0.00":
        return
    rows = [["Opening balance", "", account["opening_usd"]]]
    for move in account["movements"]:
        rows.append(
            [_LABELS.get(move["kind"], move["kind"]), f"{int(move['bookings']):,}", move["amount_usd"]]
        )
    rows.append(["Closing balance", "", account["closing_usd"]])
    page.titled_table(title, ["Movement", "Bookings", "Amount $"], rows, [104, 30, 40], total=True)


def _invoice(page: _StatementPdf, invoice: dict[str, Any] | None) -> None:
    if invoice is None:
        return
    rows = [[line["description"], line["exact_usd"], line["amount_usd"]] for line in invoice["lines"]]
    rows.append(["Total", invoice["exact_usd"], invoice["total_usd"]])
    due = "" if invoice["due_at"] is None else f", due {invoice['due_at'][:10]}"
    page.titled_table(
        f"Invoice {invoice['number']}{due}",
        ["Line", "Exact $", "Invoiced $"],
        rows,
        [104, 36, 34],
        total=True,
    )


def _lists(page: _StatementPdf, body: dict[str, Any]) -> None:
    """Tables of payments, adjustments, missed service levels and remaining credit lots."""
    payments = [
        [one["at"][:16] + "Z", _LABELS.get(one["kind"], one["kind"]), one["amount_usd"]]
        for one in body["payments"]
    ]
    if payments:
        page.titled_table("Payments", ["Time", "Kind", "Amount $"], payments, [40, 94, 40])
    adjustments = [
        [one["at"][:10], one["reason"], one["corrects"] or "", one["amount_usd"]]
        for one in body["adjustments"]
    ]
    if adjustments:
        heading = ["Date", "Reason", "Corrects", "In your favour $"]
        page.titled_table("Adjustments", heading, adjustments, [24, 90, 24, 36])
    sla = [[json.dumps(one["evidence"].get("rule", {})), one["amount_usd"]] for one in body["sla_credits"]]
    if sla:
        page.titled_table("Missed service levels", ["Rule", "Credit $"], sla, [134, 40])
    lots = [
        [
            _LOTS.get(lot["kind"], lot["kind"]),
            (lot["expires_at"] or "never")[:10],
            lot["amount_usd"],
            lot["remaining_usd"],
        ]
        for lot in body["lots"]["open"]
    ]
    if lots:
        title = f"Credits that are left (as of {body['lots']['as_of'][:16]}Z)"
        page.titled_table(title, ["Credit", "Expires", "Given $", "Left $"], lots, [60, 34, 40, 40])


def _closing(page: _StatementPdf) -> None:
    page.ln(6)
    page.set_font(page.family, "", 7)
    page.set_text_color(*_SOFT)
    page.multi_cell(
        0,
        4,
        "Amounts are exact; only invoices are rounded, once a line, to cents. This file is signed: check it with "
        "`penstock verify FILE` and the keys at /.well-known/penstock-keys.json. The JSON statement of the same month "
        "carries the same signature.",
    )
