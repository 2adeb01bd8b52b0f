"""`penstock periods`: accounting months, the close checklist, the close."""

from typing import Annotated

import typer

from admin import periods as admin_periods
from admin.actor import Actor
from billing.ledger.months import parse_month
from cli.commands.invoices import Month, progress_bar
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.tenancy import MaybeReason, Reason, parse_id
from core.db import Database

app = typer.Typer(
    no_args_is_help=True, help="Accounting months: show them, check whether one can be closed, close it."
)


@app.command(epilog="Example: penstock periods show --json")
def show(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every month since the first booking."""
    perform(admin_periods.list_periods, data_dir, as_json)


@app.command(epilog="Example: penstock periods check --month 2026-11")
def check(month: Month, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the close checklist; exit code 1 when something is red."""

    async def act() -> bool:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            found = await admin_periods.check_period(database, who, month=parse_month(month))
            emit(found if as_json else found.checks, as_json)
            return found.ok

    if not run(act):
        raise typer.Exit(1)


@app.command(epilog="Example: penstock periods close --month 2026-11")
def close(
    month: Month, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Make the month's invoices and freeze it; refused, with reasons, while a check is red."""

    async def act(database: Database, who: Actor) -> object:
        with progress_bar(f"Invoices of {month}") as progress:
            closed = await admin_periods.close_period(
                database, who, month=parse_month(month), reason=reason, progress=progress
            )
        return closed if as_json else closed.checks

    perform(act, data_dir, as_json)


@app.command(
    "write-off",
    epilog='Example: penstock periods write-off 0199a1b2-0000-7000-8000-000000000000 --reason "a test\'s record"',
)
def write_off(
    request: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="Request whose record could not be billed.")
    ],
    reason: Reason,
    data_dir: DataDir = None,
) -> None:
    """Decide that a record that could not be billed never will be, so that its month can be closed."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            await admin_periods.write_off_parked(
                database, who, request_id=parse_id(request, "request"), reason=reason
            )

    run(act)
