"""`penstock adjustments`: adjustments of customers' accounts, with an approval above a limit."""

from typing import Annotated
from uuid import UUID

import typer

from admin import adjustments as admin_adjustments
from admin.actor import Actor
from cli.context import AsJson, DataDir, perform
from cli.deciding import add_decisions
from cli.tenancy import Reason, TenantRef, tenant_id_of
from core.db import Database

app = typer.Typer(
    no_args_is_help=True,
    help="Corrections of what a customer owes. Above the approval limit another person must approve; the "
    "person at the command line is the user of the operating system.",
)

Usd = Annotated[
    str,
    typer.Argument(
        metavar="USD", help="Dollars in the customer's favour; below 0 charges. After -- if below 0."
    ),
]
MaybeTenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this organisation: short name, name or id.")
]


@app.command(
    context_settings={"ignore_unknown_options": True},  # an amount may begin with a minus
    epilog='Example: penstock adjustments request acme-robotics 12.50 --corrects 2026-10 --reason "wrong price"',
)
def request(
    tenant: TenantRef,
    usd: Usd,
    reason: Reason,
    corrects: Annotated[str | None, typer.Option(help="The month that was wrong, YYYY-MM.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask for a correction: booked at once up to the limit, else it waits for a second person."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_adjustments.request_adjustment(
            database,
            who,
            tenant_id=await tenant_id_of(database, who, tenant),
            amount_usd=usd,
            reason=reason,
            corrects=corrects,
        )

    perform(act, data_dir, as_json)


async def _decide(
    database: Database, who: Actor, approval_id: UUID, approve: bool, reason: str | None
) -> object:
    return await admin_adjustments.decide_adjustment(
        database, who, approval_id=approval_id, approve=approve, reason=reason
    )


add_decisions(
    app,
    _decide,
    group="adjustments",
    what="request",
    approve="Agree to an adjustment that another person requested; this books it.",
    reject="Refuse an adjustment, or take one's own request back.",
)


@app.command("list", epilog="Example: penstock adjustments list --waiting --json")
def list_(
    tenant: MaybeTenant = None,
    month: Annotated[str | None, typer.Option(help="Booked in this month, YYYY-MM.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Those that wait for a second person.")] = False,
    limit: Annotated[int, typer.Option(help="Rows.", min=1, max=1000)] = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List booked corrections, the newest first, or those that wait."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        if waiting:
            return await admin_adjustments.list_requests(database, who, tenant_id=tenant_id)
        return await admin_adjustments.list_adjustments(
            database, who, tenant_id=tenant_id, month=month, limit=limit
        )

    perform(act, data_dir, as_json)
