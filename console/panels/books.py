"""The books: trial balance, journal files, deferred revenue by lot and expiry, verification of the whole ledger."""

from collections.abc import Sequence
from datetime import date, datetime
from urllib.parse import urlencode

from admin import ledger as admin_ledger
from billing.ledger.journal import DeferredLine, TrialBalance
from billing.ledger.months import bounds, month_name, next_month
from console.components.base import Text, box, card, formatted, link_button, notice
from console.components.dialogs import secondary
from console.components.lazy import lazy
from console.components.table import Column, Row, cell, data_table
from console.deps import Console
from console.format import DASH, Formatted, count, moment, money, short_id, words
from console.viewer import Viewer
from core.money import pico_to_usd, usd_to_pico

JOURNAL_FORMATS = ("csv", "xlsx", "json", "parquet")
_TRIAL = (
    Column("account", "Account"),
    Column("opening", "Opening", numeric=True),
    Column("debit", "Debit", numeric=True),
    Column("credit", "Credit", numeric=True),
    Column("closing", "Closing", numeric=True),
)
_DEFERRED = (
    Column("tenant", "Tenant"),
    Column("lot", "Lot"),
    Column("bought", "Since", numeric=True),
    Column("expires", "Expires", numeric=True),
    Column("unused", "Unused", numeric=True),
)
MAX_LOTS = 1000
"""Lots listed on the page; the command line writes all of them."""


async def books_panel(console: Console, viewer: Viewer, month: date) -> None:
    """Draw the month's trial balance; the parts that read the whole ledger load lazily."""

    async def trial() -> None:
        start, end = bounds(month)
        balance = await admin_ledger.trial_balance(console.database, viewer.actor, start=start, end=end)
        _trial(month, balance)

    async def deferred() -> None:
        lots = await admin_ledger.deferred_revenue(console.database, viewer.actor)
        _deferred(console, lots)

    _verification(console, viewer)
    lazy(viewer, "Adding up the ledger…", trial)
    lazy(viewer, "Looking at every lot of credit…", deferred)


def journal_address(month: date, format: str) -> str:
    """Path of the download of a month's journal."""
    last = date.fromordinal(next_month(month).toordinal() - 1)
    query = {"dataset": "journal", "period": "custom", "from": month, "to": last, "format": format}
    return f"/usage/download?{urlencode(query)}"


def _trial(month: date, balance: TrialBalance) -> None:
    with card(f"Trial balance of {month_name(month)}", flush=True) as actions:
        with actions:
            for format in JOURNAL_FORMATS:
                link_button(
                    f"Journal {format.upper()}", journal_address(month, format), "download", download=True
                )
        data_table(
            _TRIAL,
            trial_rows(balance),
            label="Trial balance",
            nothing="Nothing was ever booked.",
            page_size=50,
        )
    with box("p", "row-line"):
        Text("span", "Debits")
        formatted(money(balance.debit_usd), "b")
        Text("span", "credits")
        formatted(money(balance.credit_usd), "b")
        if balance.balanced:
            Text("span", "✓ the books balance", "ratio-plus")
    if not balance.balanced:
        notice(
            "bad", "The books do not balance", "Verify the ledger and find the cause before anything else."
        )


def trial_rows(balance: TrialBalance) -> list[Row]:
    """Table rows of the trial balance, in the order of the chart of accounts."""
    return [
        {
            "id": line.account,
            "account": cell(line.name, sub=f"{line.account}, {line.type}", text=True),
            "opening": cell(money(line.opening_usd)),
            "debit": cell(money(line.debit_usd)),
            "credit": cell(money(line.credit_usd)),
            "closing": cell(money(line.closing_usd)),
        }
        for line in balance.lines
    ]


def _deferred(console: Console, lots: Sequence[DeferredLine]) -> None:
    now = console.clock.now()
    total = money(pico_to_usd(sum(usd_to_pico(lot.unused_usd) for lot in lots)))
    with card(
        "Deferred revenue", f"Unused credit by lot: {total.text} in all, as the ledger says.", flush=True
    ):
        data_table(
            _DEFERRED,
            deferred_rows(lots[:MAX_LOTS], now),
            label="Deferred revenue",
            nothing="No credit is unused.",
        )
    if len(lots) > MAX_LOTS:
        Text("p", f"The first {MAX_LOTS} of {count(len(lots)).text} lots.", "muted")


def deferred_rows(lots: Sequence[DeferredLine], now: datetime) -> list[Row]:
    """Table rows of unused credit by lot."""
    return [
        {
            "id": f"{lot.tenant_id} {lot.lot_id}",
            "tenant": cell(lot.tenant, href=f"/tenants/{lot.tenant_id}", text=True),
            "lot": cell(words(lot.kind).capitalize(), sub=short_id(lot.lot_id).text if lot.lot_id else ""),
            "bought": cell(moment(lot.purchased_at, now)),
            "expires": cell(moment(lot.expires_at, now) if lot.expires_at else Formatted(DASH, "never")),
            "unused": cell(money(lot.unused_usd)),
        }
        for lot in lots
    ]


def _verification(console: Console, viewer: Viewer) -> None:
    """The button that verifies every invariant of the ledger; it runs on demand because it reads the whole ledger."""

    async def verify() -> None:
        button.disable()
        result.clear()
        try:
            books = await admin_ledger.verify_ledger(console.database, viewer.actor)
        finally:
            button.enable()
        with result:
            if books.problems:
                notice("bad", f"{len(books.problems)} problems in the books", "; ".join(books.problems[:5]))
            else:
                body = f"{count(books.transfers).text} transfers, {count(books.sealed).text} of them sealed."
                notice("ok", "The ledger verifies", body)

    with card("Verification", "Every invariant, and the chain of seals from its first link.") as actions:
        with actions:
            button = secondary("Verify the ledger", viewer.act(verify), icon="verified")
        result = box("div", "stack")
