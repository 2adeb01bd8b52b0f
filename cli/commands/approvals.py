"""`penstock approvals`: acts above the approval limit, which another person approves."""

from typing import Annotated
from uuid import UUID

import typer

from admin import decisions, money_rules
from admin.actor import Actor
from cli.context import AsJson, DataDir, emit, open_db, perform, run
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
    expired: Annotated[
        bool, typer.Option("--expired", help="Show what expired in the last 30 days instead.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List what waits, the oldest first."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await decisions.list_approvals(database, who, kind=kind, tenant_id=tenant_id, expired=expired)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock approvals rules")
def rules(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show what one person may do alone, how long acts wait, and the credit limit of new organisations."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            emit(await money_rules.get_rules(database), as_json)

    run(act)


@app.command(
    "set-rules",
    epilog='Example: penstock approvals set-rules --approval-limit 250 --reason "larger customers"',
)
def set_rules(
    reason: Reason,
    approval_limit: Annotated[
        str | None,
        typer.Option(help="US dollars that one person may move alone for an organisation in 30 days."),
    ] = None,
    approval_days: Annotated[int | None, typer.Option(help="Days that an act may wait.")] = None,
    default_credit_limit: Annotated[
        str | None, typer.Option(help="US dollars that a new postpaid organisation may owe.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change the rules about money. On a platform with two people this waits for another person, too."""

    async def act(database: Database, who: Actor) -> object:
        return await money_rules.set_rules(
            database,
            who,
            reason=reason,
            approval_limit_usd=approval_limit,
            approval_days=approval_days,
            default_credit_limit_usd=default_credit_limit,
        )

    perform(act, data_dir, as_json)


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
