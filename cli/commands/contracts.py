"""`penstock contracts`: discount, committed spend, payment terms and service level of organisations."""

import json
from typing import Annotated, Any

import typer

from admin import contracts as admin_contracts
from admin.actor import Actor
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run, warn
from cli.tenancy import Reason, TenantRef, parse_id, tenant_id_of
from core.db import Database
from core.errors import InvalidRequest

app = typer.Typer(
    no_args_is_help=True, help="Contracts: discount, committed spend, payment terms, service level."
)

Instant = Annotated[str | None, typer.Option(help="Date or instant in UTC.")]


@app.command(
    epilog='Example: penstock contracts add acme-robotics --discount-bps 1500 --commit 5000 --reason "2027 deal" '
    '--sla \'{"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}\''
)
def add(
    tenant: TenantRef,
    reason: Reason,
    discount_bps: Annotated[int, typer.Option(help="Basis points off the list price: 1500 = 15 %.")] = 0,
    commit: Annotated[str | None, typer.Option(help="Dollars that a month costs at least.")] = None,
    payment_days: Annotated[int, typer.Option(help="Days from an invoice to its due date.")] = 30,
    automatic_payment: Annotated[
        bool, typer.Option(help="Charge the saved card instead of mailing invoices with their due date.")
    ] = False,
    sla: Annotated[
        str | None, typer.Option(help="Service level as JSON; see docs/finance/credits.md.")
    ] = None,
    effective_from: Annotated[
        str | None, typer.Option("--from", help="Date or instant in UTC; default: now.")
    ] = None,
    effective_to: Annotated[
        str | None, typer.Option("--to", help="Date or instant in UTC, excluded; default: open.")
    ] = None,
    currency: Annotated[str, typer.Option(help="USD; no other is supported.")] = "USD",
    below_cost: Annotated[
        bool, typer.Option("--below-cost", help="Save it although its discount puts prices below cost.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a contract; its discount is in the customer's prices at once."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_contracts.add_contract(
            database,
            who,
            tenant_id=await tenant_id_of(database, who, tenant),
            effective_from=None if effective_from is None else parse_instant(effective_from, "--from"),
            effective_to=None if effective_to is None else parse_instant(effective_to, "--to"),
            discount_bps=discount_bps,
            commit_monthly_usd=commit,
            payment_days=payment_days,
            automatic_payment=automatic_payment,
            sla=_object(sla),
            currency=currency,
            below_cost=below_cost,
            reason=reason,
        )

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock contracts list --tenant acme-robotics")
def list_(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Short name, name or id.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List contracts, past and future."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = None if tenant is None else await tenant_id_of(database, who, tenant)
        return await admin_contracts.list_contracts(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command(
    epilog='Example: penstock contracts end 0199a1b2-0000-7000-8000-000000000000 --at 2027-01-01 --reason "cancelled"'
)
def end(
    contract: Annotated[str, typer.Argument(metavar="ID", help="Id of the contract.")],
    reason: Reason,
    at: Instant = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """End a contract now or at --at, and its prices with it; one that has not begun is withdrawn.

    Warns of the committed spend that remains due when it ends inside a month.
    """

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            ended = await admin_contracts.end_contract(
                database,
                who,
                contract_id=parse_id(contract, "contract"),
                at=None if at is None else parse_instant(at, "--at"),
                reason=reason,
            )
            emit(ended, as_json)
            if ended.warning is not None:
                warn(ended.warning)

    run(act, as_json=as_json)


def _object(text: str | None) -> dict[str, Any] | None:
    """The JSON object in `text`; None for None. Raises InvalidRequest."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"--sla is no JSON: {error}", param="sla") from None
    if not isinstance(value, dict):
        raise InvalidRequest("--sla must be a JSON object", param="sla")
    return value
