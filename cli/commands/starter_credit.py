"""`penstock starter-credit`: the credit that new prepaid organisations get."""

from typing import Annotated

import typer

from admin import starter_credit as admin_starter_credit
from cli.context import AsJson, DataDir, acting, emit, open_db, run
from cli.tenancy import Reason

app = typer.Typer(no_args_is_help=True, help="The credit that new prepaid organisations get.")


@app.command(epilog="Example: penstock starter-credit show --json")
def show(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what a new prepaid organisation gets."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            emit(await admin_starter_credit.get_starter_credit(database, who), as_json)

    run(act)


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

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            value = await admin_starter_credit.set_starter_credit(
                database, who, amount_usd=usd, expires_days=expires_days, reason=reason
            )
            emit(value, as_json)

    run(act, as_json=as_json)
