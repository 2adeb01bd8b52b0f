"""`penstock ledger`: trial balance, general-ledger journal, deferred revenue, verification of the books."""

import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from admin import ledger as admin_ledger
from admin.actor import Actor
from billing.ledger.journal import JournalLine, TransferLine
from billing.ledger.journal_files import FORMATS, stream_csv, write
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run
from cli.tenancy import tenant_id_of
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True, help="The books: trial balance, journal, deferred revenue, verification."
)

Month = Annotated[str | None, typer.Option(help="YYYY-MM; default: this UTC month.")]
From = Annotated[str | None, typer.Option("--from", help="Date or instant in UTC, instead of a month.")]
To = Annotated[str | None, typer.Option("--to", help="Excluded.")]
ForTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this organisation: short name, name or id.")
]


@app.command("trial-balance", epilog="Example: penstock ledger trial-balance --month 2026-11 --json")
def trial_balance(
    month: Month = None,
    start: From = None,
    end: To = None,
    tenant: ForTenant = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show every account: opening balance, debits, credits, closing balance."""
    period = _period(month, start, end)

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            balance = await admin_ledger.trial_balance(
                database, who, start=period[0], end=period[1], tenant_id=await _tenant(database, who, tenant)
            )
        if as_json:
            emit(balance, True)
            return
        emit(balance.lines, False, f"{balance.period_start} to {balance.period_end}")
        print(f"debits {balance.debit_usd} = credits {balance.credit_usd}", end="; ")
        print("the books balance" if balance.balanced else "THE BOOKS DO NOT BALANCE")

    run(act)


@app.command(epilog="Example: penstock ledger journal --month 2026-11 --format xlsx --out journal.xlsx")
def journal(
    month: Month = None,
    start: From = None,
    end: To = None,
    tenant: ForTenant = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Every transfer instead of days, kinds and accounts.")
    ] = False,
    file_format: Annotated[str, typer.Option("--format", help="csv, json or xlsx.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Export the general-ledger journal."""
    period = _period(month, start, end)

    async def act() -> None:
        shape = "json" if as_json else file_format
        if shape not in FORMATS:
            raise InvalidRequest(f"--format must be one of {', '.join(FORMATS)}, not {shape[:20]!r}")
        if shape == "xlsx" and out is None:
            raise InvalidRequest("--format xlsx needs --out FILE")
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = await _tenant(database, who, tenant)
            if detail:
                rows = admin_ledger.transfers(
                    database, who, start=period[0], end=period[1], tenant_id=tenant_id
                )
                await _write_detail(rows, shape, out)
                return
            lines = await admin_ledger.journal_lines(
                database, who, start=period[0], end=period[1], tenant_id=tenant_id
            )
            _write_out(write(lines, JournalLine.__struct_fields__, shape), out)

    run(act)


@app.command(epilog="Example: penstock ledger deferred --at 2026-12-01 --json")
def deferred(
    at: Annotated[str | None, typer.Option(help="Date or instant in UTC; default: now.")] = None,
    tenant: ForTenant = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List unused credit by lot and expiry; it adds up to the ledger's liability."""

    async def act(database: Database, who: Actor) -> object:
        instant: datetime | None = None if at is None else parse_instant(at, "--at")
        return await admin_ledger.deferred_revenue(
            database, who, at=instant, tenant_id=await _tenant(database, who, tenant)
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock ledger verify")
def verify(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check every invariant of the books and the chain of seals; exit code 1 when one is broken."""

    async def act() -> bool:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            if sys.stderr.isatty():
                columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
                with Progress(*columns, transient=True) as progress:
                    progress.add_task("verifying the books")
                    books = await admin_ledger.verify_ledger(database, who)
            else:
                books = await admin_ledger.verify_ledger(database, who)
        emit(books, as_json)
        return not books.problems

    if not run(act):
        raise typer.Exit(1)


def _period(month: str | None, start: str | None, end: str | None) -> tuple[datetime, datetime]:
    async def parsed() -> tuple[datetime, datetime]:
        return admin_ledger.period_of(month, start, end)

    return run(parsed)


async def _tenant(database: Database, who: Actor, text: str | None) -> UUID | None:
    return None if text is None else await tenant_id_of(database, who, text)


async def _write_detail(rows: AsyncIterator[TransferLine], shape: str, out: Path | None) -> None:
    """Write every transfer. CSV is streamed, so that memory does not grow with the number of transfers."""
    columns: Sequence[str] = TransferLine.__struct_fields__
    if shape != "csv":
        _write_out(write([row async for row in rows], columns, shape), out)
        return
    if out is None:
        async for line in stream_csv(rows, columns):
            sys.stdout.write(line)
        return
    partial = out.with_name(f"{out.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as target:
            async for line in stream_csv(rows, columns):
                target.write(line)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _write_out(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(content.decode())
    else:
        out.write_bytes(content)
