"""`penstock starter-credit`: the credit that new prepaid organisations get."""

from typing import Annotated

import typer

from admin import starter_credit as admin_starter_credit
from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.tenancy import Reason
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="The credit that new prepaid organisations get.")


@app.command(epilog="Example: penstock starter-credit show --json")
def show(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what a new prepaid organisation gets."""
    perform(admin_starter_credit.get_starter_credit, data_dir, as_json)


@app.command("set", epilog='Example: penstock starter-credit set 5 --expires-days 90 --reason "launch"')
def set_(
    usd: Annotated[str, typer.Argument(metavar="USD", help="Dollars, such as 5 or 2.50; 0 = nothing.")],
    reason: Reason,
    expires_days: Annotated[
        int | None, typer.Option(help="Days after which what is left expires; default: never.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set what organisations that are made from now on get; another person approves it where there are two."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_starter_credit.set_starter_credit(
            database, who, amount_usd=usd, expires_days=expires_days, reason=reason
        )

    perform(act, data_dir, as_json)
