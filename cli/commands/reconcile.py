"""`penstock reconcile`: engines' counters against usage, ledger and Stripe."""

from typing import Annotated, Any

import msgspec
import typer

from admin import reconcile as admin_reconcile
from admin.actor import Actor
from billing.ledger.months import parse_month
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, acting, emit, open_db, perform
from cli.context import run as run_command
from cli.tenancy import Reason
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="Engines' counters against usage, ledger and Stripe.")

BootId = Annotated[str, typer.Argument(metavar="BOOT", help="Boot id of the engine, as `show` lists it.")]
Limit = Annotated[int, typer.Option(help="Rows, 1 to 1000.")]


@app.command(epilog="Example: penstock reconcile run --since 2026-11-01")
def run(
    since: Annotated[
        str | None, typer.Option(help="Compare again what came out, from this date or instant on.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare now; ends with code 1 while something is unexplained."""

    async def act() -> Any:
        instant = None if since is None else parse_instant(since, "--since")
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_reconcile.run_now(database, who, since=instant)

    outcome = run_command(act)
    emit(outcome, as_json)
    if any(outcome.unexplained.values()):
        raise typer.Exit(1)


@app.command(epilog="Example: penstock reconcile show engine-4f1c9a2b")
def show(
    boot: Annotated[str | None, typer.Argument(metavar="[BOOT]", help="One engine; default: all.")] = None,
    limit: Limit = 50,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show engines with what is unexplained, or one engine by interval."""

    async def act() -> Any:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            if boot is None:
                return await admin_reconcile.list_engines(database, who, limit=limit)
            return await admin_reconcile.list_intervals(database, who, boot_id=boot, limit=limit)

    rows = msgspec.to_builtins(run_command(act))
    if not as_json:
        hidden = ("first_seen", "last_seen", "checked_at", "accepted_by", "accepted_reason", "simulated")
        rows = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    emit(rows, as_json, "Engines" if boot is None else boot)


@app.command(epilog="Example: penstock reconcile trace engine-4f1c9a2b --limit 20")
def trace(
    boot: BootId,
    start: Annotated[str | None, typer.Option("--from", help="Only the interval from this instant.")] = None,
    limit: Limit = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the requests behind what does not come out; those without a usage row first."""

    async def act() -> Any:
        from_at = None if start is None else parse_instant(start, "--from")
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            return await admin_reconcile.trace(database, who, boot_id=boot, from_at=from_at, limit=limit)

    emit(run_command(act), as_json, f"Requests on {boot}")


@app.command(epilog='Example: penstock reconcile accept engine-4f1c9a2b --reason "disk of host 3 was lost"')
def accept(boot: BootId, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Accept what is unexplained of an engine and cannot be mended; it stays on the lines, and in the audit log."""

    async def act(database: Database, who: Actor) -> Any:
        return await admin_reconcile.accept(database, who, boot_id=boot, reason=reason)

    perform(act, data_dir, as_json, title=boot)


@app.command(epilog="Example: penstock reconcile chain --month 2026-11")
def chain(
    month: Annotated[str, typer.Option(help="As 2026-11.")], data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show a month as gateway, ledger, invoices and Stripe tell it, with the differences."""

    async def act(database: Database, who: Actor) -> Any:
        return await admin_reconcile.cross_check_month(database, who, month=parse_month(month))

    perform(act, data_dir, as_json, title=month)
