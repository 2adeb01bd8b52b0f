"""`penstock sla`: service levels of contracts, measured and credited."""

from typing import Annotated

import typer

from admin import statements as admin_statements
from admin.actor import Actor
from billing.ledger.months import parse_month
from cli.context import AsJson, DataDir, perform
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="Service levels of contracts, measured and credited.")


@app.callback()
def group() -> None:
    """Service levels of contracts."""


@app.command("run", epilog="Example: penstock sla run --month 2026-10 --dry-run")
def run_(
    month: Annotated[str, typer.Option("--month", help="Such as 2026-10.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; credit nothing.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a month against every contract's service level and credit what was missed, once."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_statements.run_sla(database, who, month=parse_month(month), dry_run=dry_run)

    perform(act, data_dir, as_json)
