"""GPU cost: host hours by state, the provider's invoices, and their variance against the recorded cost."""

from collections.abc import Sequence
from datetime import date
from uuid import UUID

from nicegui import ui

from admin import economics as admin_economics
from billing.economics.provider_invoices import InvoiceIn, InvoiceLineIn, InvoiceView, StateRow, VarianceRow
from billing.ledger.months import bounds, month_name
from console.components.base import box, card, notice
from console.components.dialogs import confirm, form_dialog, primary, text_input
from console.components.flash import reload_with
from console.components.table import Column, Row, actions_cell, cell, data_table
from console.deps import Console
from console.format import DASH, Formatted, moment, money
from console.panels.amounts import parse_usd
from console.panels.margin import LINES
from console.viewer import Viewer


async def provider_panel(console: Console, viewer: Viewer, month: date) -> None:
    """Draw variance, invoices, host hours and host prices of a month."""
    database, actor = console.database, viewer.actor
    variance = await admin_economics.provider_variance(database, actor, month=month)
    invoices = await admin_economics.list_provider_invoices(database, actor, month=month)
    start, end = bounds(month)
    states = await admin_economics.host_states(database, actor, start=start, end=end)
    prices = await admin_economics.list_host_prices(database, actor)
    kinds = sorted({row.host_kind for row in states} | {price.host_kind for price in prices})
    _variance(month, variance, [one for one in invoices if one.voided_at is None])
    _invoices(console, viewer, month, invoices, kinds)
    with card(f"Host hours in {month_name(month)}", "By kind of host and by what it did.", flush=True):
        data_table(
            (
                Column("kind", "Host"),
                Column("state", "State"),
                Column("hours", "Hours", numeric=True),
                Column("cost", "Cost", numeric=True),
            ),
            state_rows(states),
            label="Host hours",
            nothing="No host ran in this month.",
        )
    rows: list[Row] = [
        {
            "id": f"{one.host_kind} {one.effective_from}",
            "kind": cell(one.host_kind, sub=one.source, text=True),
            "price": cell(money(one.usd_per_hour)),
            "from": cell(moment(one.effective_from, console.clock.now())),
            "state": cell(
                "In force" if one.in_force else "Not in force", tone="ok" if one.in_force else "idle"
            ),
        }
        for one in prices
    ]
    with card("Host prices", "What an hour of a host costs us.", flush=True):
        data_table(
            (
                Column("kind", "Host"),
                Column("price", "Per hour", numeric=True),
                Column("from", "From", numeric=True),
                Column("state", "State"),
            ),
            rows,
            label="Host prices",
            nothing="No host has a price.",
        )


def _variance(month: date, rows: Sequence[VarianceRow], invoices: Sequence[InvoiceView]) -> None:
    if not invoices and any(row.accounted_usd != "0.00" for row in rows):
        notice(
            "warn",
            f"No invoice of {month_name(month)} is entered",
            "The month cannot be closed until the provider's invoice stands beside our account.",
        )
    with card(
        "Invoiced against accounted", "Above zero: the provider asks for more than we accounted.", flush=True
    ):
        data_table(
            (
                Column("kind", "Host"),
                Column("our_hours", "Accounted hours", numeric=True),
                Column("ours", "Accounted", numeric=True),
                Column("their_hours", "Invoiced hours", numeric=True),
                Column("theirs", "Invoiced", numeric=True),
                Column("variance", "Variance", numeric=True),
            ),
            variance_rows(rows),
            label="Variance",
            nothing="Nothing was accounted or invoiced.",
        )


def hours(text: str | None) -> Formatted:
    """Hours from a decimal string, with two decimals; the tooltip has all decimals."""
    if text is None:
        return Formatted(DASH, "", float("-inf"))
    return Formatted(f"{float(text):,.2f}", f"{text} hours", float(text))


def variance_rows(rows: Sequence[VarianceRow]) -> list[Row]:
    """Table rows by kind of host; the last row is the total."""
    return [
        {
            "id": row.host_kind if row.host_kind is not None else "total",
            "kind": cell("Total" if row.host_kind is None else row.host_kind or "not for a kind of host"),
            "our_hours": cell(hours(row.accounted_hours)),
            "ours": cell(money(row.accounted_usd)),
            "their_hours": cell(hours(row.invoiced_hours)),
            "theirs": cell(money(row.invoiced_usd)),
            "variance": cell(money(row.variance_usd)),
        }
        for row in rows
    ]


def state_rows(states: Sequence[StateRow]) -> list[Row]:
    """Table rows of host hours."""
    return [
        {
            "id": f"{row.host_kind} {row.state}",
            "kind": cell(row.host_kind),
            "state": cell("Serving" if row.state == "serving" else LINES.get(row.state, row.state)),
            "hours": cell(hours(row.hours)),
            "cost": cell(money(row.cost_usd)),
        }
        for row in states
    ]


def _invoices(
    console: Console, viewer: Viewer, month: date, invoices: Sequence[InvoiceView], kinds: Sequence[str]
) -> None:
    by_id = {str(one.id): one for one in invoices}

    async def enter() -> None:
        _open_form(console, viewer, month, kinds)

    async def void(_: str, row: str) -> None:
        reason = await confirm(
            viewer,
            f"Void invoice {by_id[row].number}?",
            "It counts no longer in the variance and the close; it stays in the list.",
            "Void",
            danger=True,
        )
        if reason is not None:
            await admin_economics.void_provider_invoice(
                console.database, viewer.actor, invoice_id=UUID(row), reason=reason
            )
            reload_with("The invoice is void.")

    now = console.clock.now()
    rows: list[Row] = [
        {
            "id": str(one.id),
            "number": cell(one.number, sub=one.provider, text=True),
            "total": cell(money(one.total_usd)),
            "source": cell(one.source, sub=one.entered_by),
            "at": cell(moment(one.entered_at, now)),
            "state": cell("Void" if one.voided_at else "Counts", tone="idle" if one.voided_at else "ok"),
            "acts": actions_cell([] if one.voided_at else [("void", "Void", "bad")], f"invoice {one.number}"),
        }
        for one in invoices
    ]
    with card(f"Provider's invoices of {month_name(month)}", flush=True) as actions:
        with actions:
            primary("Enter invoice", viewer.act(enter), icon="post_add")
        data_table(
            (
                Column("number", "Invoice"),
                Column("total", "Total", numeric=True),
                Column("source", "Source"),
                Column("at", "Entered", numeric=True),
                Column("state", "State"),
                Column("acts", ""),
            ),
            rows,
            label="Provider's invoices",
            nothing="No invoice is entered for this month.",
            on_action=viewer.act(void),
        )


def _open_form(console: Console, viewer: Viewer, month: date, kinds: Sequence[str]) -> None:
    """Open the form of an invoice: its total, and its hours and amount for each kind of host."""
    parts: dict[str, tuple[ui.input, ui.input]] = {}

    def lines() -> list[InvoiceLineIn]:
        made = []
        for kind, (amount, spent) in parts.items():
            text, amount.error = (amount.value or "").strip(), None
            if not text:
                continue
            try:
                usd = parse_usd(text, zero=True)
            except ValueError as error:
                amount.error = str(error)
                continue
            made.append(
                InvoiceLineIn(amount_usd=usd, host_kind=kind, hours=(spent.value or "").strip() or None)
            )
        return made

    async def save() -> bool:
        for field in (provider, number):
            field.error = None if (field.value or "").strip() else "As it stands on the invoice."
        total.error, usd = None, "0"
        try:
            usd = parse_usd(total.value or "")
        except ValueError as error:
            total.error = str(error)
        made = lines() or [InvoiceLineIn(amount_usd=usd)]
        if any(field.error for field in (provider, number, total, *(pair[0] for pair in parts.values()))):
            return False
        await admin_economics.enter_provider_invoice(
            console.database,
            viewer.actor,
            invoice=InvoiceIn(
                provider=provider.value.strip(),
                number=number.value.strip(),
                month=month_name(month),
                total_usd=usd,
                lines=made,
            ),
        )
        reload_with("The invoice is entered.")
        return True

    with form_dialog(
        f"Provider's invoice of {month_name(month)}",
        "Save invoice",
        viewer,
        save,
        sub="The parts must add up to the total; without any, the whole counts as not for a kind of host.",
        wide=True,
    ):
        with box("div", "fields"):
            provider = text_input("Provider", "DigitalOcean")
            number = text_input("Number")
            total = text_input("Total in US dollars").props("inputmode=decimal prefix=$")
        for kind in (*kinds, ""):
            with box("div", "fields"):
                parts[kind] = (
                    text_input(f"{kind or 'Everything else'}: US dollars").props(
                        "inputmode=decimal prefix=$"
                    ),
                    text_input(f"{kind or 'Everything else'}: hours", hint="Empty when not told."),
                )
