"""`penstock adjustments`: adjustments of customers' accounts, with an approval above a limit."""

from typing import Annotated

import typer

from admin import adjustments as admin_adjustments
from cli.context import AsJson, DataDir, actor, emit, open_db, run
from cli.tenancy import MaybeReason, Reason, TenantRef, parse_id, tenant_id_of
from core.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    help="Corrections of what a customer owes. Above PENSTOCK_APPROVAL_LIMIT_USD another person must approve; the "
    "person at the command line is the user of the operating system.",
)

Usd = Annotated[
    str,
    typer.Argument(
        metavar="USD", help="Dollars in the customer's favour; below 0 charges. After -- if below 0."
    ),
]
ApprovalId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the request, as `list --waiting` shows it.")
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

    async def act() -> None:
        async with open_db(data_dir) as database:
            made = await admin_adjustments.request_adjustment(
                database,
                actor(),
                tenant_id=await tenant_id_of(database, actor(), tenant),
                amount_usd=usd,
                reason=reason,
                corrects=corrects,
                limit_usd=Settings().approval_limit_usd,
            )
            emit(made, as_json)

    run(act)


@app.command(epilog="Example: penstock adjustments approve 0199a1b2-0000-7000-8000-000000000000")
def approve(
    approval: ApprovalId, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Agree to a correction that somebody else asked for; this books it."""
    _decide(approval, True, reason, data_dir, as_json)


@app.command(
    epilog='Example: penstock adjustments reject 0199a1b2-0000-7000-8000-000000000000 --reason "not our fault"'
)
def reject(
    approval: ApprovalId, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Refuse a correction, or take one's own request back."""
    _decide(approval, False, reason, data_dir, as_json)


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

    async def act() -> None:
        async with open_db(data_dir) as database:
            tenant_id = None if tenant is None else await tenant_id_of(database, actor(), tenant)
            if waiting:
                emit(await admin_adjustments.list_requests(database, actor(), tenant_id=tenant_id), as_json)
                return
            emit(
                await admin_adjustments.list_adjustments(
                    database, actor(), tenant_id=tenant_id, month=month, limit=limit
                ),
                as_json,
            )

    run(act)


def _decide(approval: str, yes: bool, reason: str | None, data_dir: DataDir, as_json: bool) -> None:
    async def act() -> None:
        async with open_db(data_dir) as database:
            decided = await admin_adjustments.decide_adjustment(
                database, actor(), approval_id=parse_id(approval, "request"), approve=yes, reason=reason
            )
            emit(decided, as_json)

    run(act)
