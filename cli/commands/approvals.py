"""`penstock approvals`: acts above the approval limit, which another person approves."""

from typing import Annotated

import typer

from admin import decisions
from cli.context import AsJson, DataDir, actor, emit, open_db, run
from cli.tenancy import MaybeReason, parse_id, tenant_id_of

app = typer.Typer(
    no_args_is_help=True,
    help="Acts above PENSTOCK_APPROVAL_LIMIT_USD, and prices, contracts and closing, wait for another person. At the "
    "command line that is the person of the shell user: `penstock users claim-shell`.",
)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id of the request, as `list` shows it.")]


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
            tenant_id = None if tenant is None else await tenant_id_of(database, actor(), tenant)
            emit(await decisions.list_approvals(database, actor(), kind=kind, tenant_id=tenant_id), as_json)

    run(act)


@app.command(epilog="Example: penstock approvals approve 0199a1b2-0000-7000-8000-000000000000")
def approve(
    approval: ApprovalId, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Agree to what another person requested; this carries it out."""
    _decide(approval, True, reason, data_dir, as_json)


@app.command(epilog='Example: penstock approvals reject 0199a1b2-0000-7000-8000-000000000000 --reason "no"')
def reject(
    approval: ApprovalId, reason: MaybeReason = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Refuse a request, or take one's own back."""
    _decide(approval, False, reason, data_dir, as_json)


def _decide(approval: str, yes: bool, reason: str | None, data_dir: DataDir, as_json: bool) -> None:
    async def act() -> None:
        async with open_db(data_dir) as database:
            decided = await decisions.decide(
                database, actor(), approval_id=parse_id(approval, "request"), approve=yes, reason=reason
            )
            emit(decided.approval, as_json)

    run(act)
