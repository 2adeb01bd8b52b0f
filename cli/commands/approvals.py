"""`penstock approvals`: acts above the approval limit, which another person approves."""

from typing import Annotated
from uuid import UUID

import typer

from admin import approval_limit, decisions
from admin.actor import Actor
from cli.context import AsJson, DataDir, acting, emit, open_db, run
from cli.deciding import add_decisions
from cli.tenancy import Reason, tenant_id_of
from core.db import Database

app = typer.Typer(
    no_args_is_help=True,
    help="Acts above the approval limit, and prices, contracts and closing, wait for another person. At the "
    "command line PENSTOCK_ADMIN_TOKEN, a token of the admin REST, says who you are.",
)


@app.command("list", epilog="Example: penstock approvals list --kind credit.grant --json")
def list_(
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as credit.grant.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only this organisation: short name, name or id.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what waits, the oldest first."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
            emit(await decisions.list_approvals(database, who, kind=kind, tenant_id=tenant_id), as_json)

    run(act)


@app.command(epilog="Example: penstock approvals limit")
def limit(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what one person may do alone for one organisation in 30 days."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            emit(await approval_limit.get_limit(database), as_json)

    run(act)


@app.command("set-limit", epilog='Example: penstock approvals set-limit 250 --reason "larger customers"')
def set_limit(
    usd: Annotated[str, typer.Argument(metavar="USD", help="US dollars.")],
    reason: Reason,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change what one person may do alone. On a platform with two people this waits for another person, too."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            emit(await approval_limit.set_limit(database, who, usd=usd, reason=reason), as_json)

    run(act, as_json=as_json)


async def _decide(
    database: Database, who: Actor, approval_id: UUID, approve: bool, reason: str | None
) -> object:
    decided = await decisions.decide(database, who, approval_id=approval_id, approve=approve, reason=reason)
    return decided.approval


add_decisions(
    app,
    _decide,
    group="approvals",
    what="request",
    approve="Agree to what another person requested; this carries it out.",
    reject="Refuse a request, or take one's own back.",
)
