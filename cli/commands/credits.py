"""`penstock credits`: prepaid credit, budgets and balances of organisations."""

from typing import Annotated, cast

import typer

from admin import accounts as admin_accounts
from admin import credits as admin_credits
from admin.actor import Actor
from billing.ledger.credits import LotKind
from billing.usage.period import parse_instant
from cli.context import AsJson, DataDir, perform
from cli.tenancy import Reason, TenantRef, tenant_id_of
from core.db import Database

app = typer.Typer(no_args_is_help=True, help="Credit, budgets and balances of organisations.")

Usd = Annotated[str, typer.Argument(metavar="USD", help="Dollars, such as 25 or 12.50.")]
UsdOrNone = Annotated[str, typer.Argument(metavar="USD|none", help="Dollars, or none to lift it.")]


@app.command(epilog="Example: penstock credits show acme-robotics --json")
def show(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show balance, held money, budget and this month's spending."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_accounts.get_account(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock credits list acme-robotics")
def list_(tenant: TenantRef, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the credits an organisation was given, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_credits.list_grants(database, who, tenant_id=tenant_id)

    perform(act, data_dir, as_json)


@app.command(
    epilog='Example: penstock credits grant acme-robotics 25 --expires 2027-01-01 --reason "welcome"'
)
def grant(
    tenant: TenantRef,
    usd: Usd,
    reason: Reason,
    expires: Annotated[
        str | None, typer.Option(help="Date or instant in UTC after which it is void; default: never.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="promotional, or purchased for money that came outside of Stripe.")
    ] = "promotional",
    priority: Annotated[
        int | None, typer.Option(help="Lower is used first; default: 10 promotional, 40 purchased.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give prepaid credit."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_credits.grant_credit(
            database,
            who,
            tenant_id=tenant_id,
            amount_usd=usd,
            reason=reason,
            kind=cast(LotKind, kind),
            expires_at=None if expires is None else parse_instant(expires, "--expires"),
            priority=priority,
        )

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock credits lots acme-robotics --spent --json")
def lots(
    tenant: TenantRef,
    spent: Annotated[bool, typer.Option("--spent", help="Lots with nothing left too.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List credit by lot in the order of use: kind, priority, expiry, what remains."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_credits.list_lots(database, who, tenant_id=tenant_id, spent=spent)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock credits budget acme-robotics 500")
def budget(tenant: TenantRef, usd: UsdOrNone, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Set or lift the monthly budget (UTC month); requests beyond it get 402."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_accounts.set_budget(database, who, tenant_id=tenant_id, usd=_usd_or_none(usd))

    perform(act, data_dir, as_json)


@app.command(epilog='Example: penstock credits limit acme-robotics 10000 --reason "contract 2026-11"')
def limit(
    tenant: TenantRef, usd: UsdOrNone, reason: Reason, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Bound what a postpaid organisation may owe."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_accounts.set_credit_limit(
            database,
            who,
            tenant_id=tenant_id,
            usd=_usd_or_none(usd),
            reason=reason,
        )

    perform(act, data_dir, as_json)


def _usd_or_none(text: str) -> str | None:
    return None if text.lower() == "none" else text
