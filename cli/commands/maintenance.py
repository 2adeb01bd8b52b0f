"""`penstock maintenance`: refuse requests that begin, with a notice, while everything else runs."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from admin import maintenance as admin_maintenance
from admin.actor import Actor
from cli.context import AsJson, DataDir, emit, open_db, perform, run, shell_actor
from cli.durations import parse_duration
from core.db import Database

app = typer.Typer(
    no_args_is_help=True, help="Maintenance: refuse requests that begin, with a notice; the rest goes on."
)

Why = Annotated[str | None, typer.Option("--reason", help="Kept in the audit log.")]


@app.command(epilog="Example: penstock maintenance show --json")
def show(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the maintenance in progress."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            found = await admin_maintenance.get_maintenance(database, shell_actor())
        if found is None and not as_json:
            typer.echo("no maintenance: requests are served")
        else:
            emit(found, as_json)

    run(act)


@app.command(epilog='Example: penstock maintenance begin "Upgrade of the database." --for 30m')
def begin(
    notice: Annotated[str, typer.Argument(metavar="NOTICE", help="What customers read.")],
    lasting: Annotated[
        str | None, typer.Option("--for", help="When it is expected to be over, from now: 30m, 2h.")
    ] = None,
    reason: Why = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Refuse requests that begin from now on. Open answers go on; so do administration, billing and the console.

    Again: replace the notice and the expected end. It ends with `penstock maintenance end` alone.
    """
    end = None if lasting is None else datetime.now(UTC) + parse_duration(lasting, "for")

    async def act(database: Database, who: Actor) -> object:
        return await admin_maintenance.begin_maintenance(
            database, who, notice=notice, expected_end=end, reason=reason
        )

    perform(act, data_dir, as_json)


@app.command("end", epilog="Example: penstock maintenance end")
def end_(reason: Why = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Serve requests again. Prints the maintenance that has ended."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_maintenance.end_maintenance(database, who, reason=reason)

    perform(act, data_dir, as_json)
