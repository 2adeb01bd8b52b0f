"""`penstock invoices`: make a month's invoices, read them, trace a line to its requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from admin import invoices as admin_invoices
from admin.actor import Actor
from billing.ledger.months import parse_month
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.tenancy import Reason, parse_id, tenant_id_of
from core.db import Database

app = typer.Typer(
    no_args_is_help=True, help="Invoices: make a month's, list and show them, trace, void, write off."
)

Month = Annotated[str, typer.Option("--month", help="A month such as 2026-11.")]
InvoiceRef = Annotated[str, typer.Argument(metavar="INVOICE", help="Number or id of the invoice.")]


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; yields the callback that takes (done, total)."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command(epilog="Example: penstock invoices make --month 2026-11")
def make(month: Month, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make the missing invoices of a month that is over for 48 hours; again makes nothing more."""

    async def act(database: Database, who: Actor) -> object:
        with progress_bar(f"Invoices of {month}") as progress:
            return await admin_invoices.make_invoices(
                database, who, month=parse_month(month), progress=progress
            )

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock invoices list --month 2026-11 --status open --json")
def list_(
    month: Annotated[str | None, typer.Option(help="Only this month, such as 2026-11.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this organisation: short name, name or id.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="open, paid, void, uncollectible or settled.")] = None,
    limit: Annotated[int, typer.Option(help="Rows.", min=1, max=1000)] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List invoices, the newest month first."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_invoices.list_invoices(
            database,
            who,
            month=None if month is None else parse_month(month),
            tenant_id=tenant_id,
            status=status,
            limit=limit,
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock invoices show PS-2026-11-000123")
def show(invoice: InvoiceRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show an invoice with its lines and credit notes."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            found = await admin_invoices.show_invoice(database, who, ref=invoice)
            if as_json:
                emit(found, True)
                return
            emit(found.invoice, False)
            emit(found.lines, False, "Lines")
            if found.credit_notes:
                emit(found.credit_notes, False, "Credit notes")

    run(act)


@app.command(epilog="Example: penstock invoices trace 6c1f2d0e-5a3b-5c77-9a51-0f5f4f0d2b11 --limit 20")
def trace(
    line: Annotated[str, typer.Argument(metavar="LINE", help="Id of the line, as `show` tells it.")],
    limit: Annotated[int, typer.Option(help="Requests of one page.", min=1, max=1000)] = 100,
    after: Annotated[str | None, typer.Option(help="Continue behind this request id.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the requests behind a usage line; the amounts of all pages add up to the line's exact amount."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            page = await admin_invoices.trace_line(
                database,
                who,
                line_id=parse_id(line, "line"),
                limit=limit,
                after=None if after is None else parse_id(after, "request"),
            )
            if as_json:
                emit(page, True)
                return
            emit(page.line, False)
            emit(page.rows, False, "Requests")
            if page.next is not None:
                print(f"more: --after {page.next}")

    run(act)


@app.command(epilog='Example: penstock invoices void PS-2026-11-000123 --reason "wrong address"')
def void(invoice: InvoiceRef, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Take an open invoice back; the next one carries its amount."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_invoices.void_invoice(database, who, ref=invoice, reason=reason)

    perform(act, data_dir, as_json)


@app.command(
    "write-off", epilog='Example: penstock invoices write-off PS-2026-11-000123 --reason "insolvent"'
)
def write_off(invoice: InvoiceRef, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Give up what is open of an invoice: it becomes an expense."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_invoices.write_off_invoice(database, who, ref=invoice, reason=reason)

    perform(act, data_dir, as_json)
