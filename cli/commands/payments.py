"""`penstock payments`: purchases of credit, refunds, disputes, and the comparison of the books with Stripe."""

import os
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from admin import payments as admin_payments
from admin.actor import Actor
from billing.ledger.months import parse_month
from cli.context import AsJson, DataDir, acting, emit, open_db, perform, run, runtime
from cli.deciding import add_decisions
from cli.tenancy import Reason, TenantRef, parse_id, tenant_id_of
from core.db import Database
from core.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Payments, refunds, disputes; our books compared with Stripe.")

Usd = Annotated[str, typer.Argument(metavar="USD", help="Dollars, such as 25 or 12.50.")]
MaybeTenant = Annotated[str | None, typer.Option("--tenant", help="Only this organisation's.")]
Limit = Annotated[int, typer.Option("--limit", help="Rows shown.")]


def _settings(data_dir: Path | None) -> Settings:
    """Settings with Stripe's key and address: STRIPE_API_KEY, else the simulated Stripe of `penstock up`."""
    if os.environ.get("STRIPE_API_KEY"):
        return Settings()
    facts = runtime(data_dir)
    return Settings.model_validate(
        {
            "stripe_api_key": facts.get("stripe_api_key", ""),
            "stripe_base_url": facts.get("stripe_base_url", ""),
        }
    )


async def _scope(database: Database, who: Actor, tenant: str | None) -> UUID | None:
    return None if tenant is None else await tenant_id_of(database, who, tenant)


@app.command(epilog="Example: penstock payments customers --json")
def customers(
    tenant: MaybeTenant = None, limit: Limit = 100, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List payers: Stripe customer, saved card, tax id, dunning state."""

    async def act(database: Database, who: Actor) -> object:
        scope = await _scope(database, who, tenant)
        return await admin_payments.list_customers(database, who, tenant_id=scope, limit=limit)

    perform(act, data_dir, as_json)


@app.command("list", epilog="Example: penstock payments list --tenant acme-robotics")
def list_(
    tenant: MaybeTenant = None, limit: Limit = 100, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List payments that arrived, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        scope = await _scope(database, who, tenant)
        return await admin_payments.list_payments(database, who, tenant_id=scope, limit=limit)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock payments topup acme-robotics 25")
def topup(
    tenant: TenantRef,
    usd: Usd,
    return_url: Annotated[
        str, typer.Option("--return-url", help="Where the buyer lands afterwards.")
    ] = "http://127.0.0.1:8001/billing",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Begin to buy credit; prints the page to pay at."""
    from billing.payments.stripe_gateway import open_gateway

    async def act() -> None:
        async with open_db(data_dir) as database, open_gateway(_settings(data_dir)) as gateway:
            who = await acting(database, data_dir)
            tenant_id = await tenant_id_of(database, who, tenant)
            started = await admin_payments.start_topup(
                database, who, gateway, tenant_id=tenant_id, amount_usd=usd, return_url=return_url
            )
            emit(started, as_json)

    run(act)


@app.command(epilog="Example: penstock payments topups --tenant acme-robotics")
def topups(
    tenant: MaybeTenant = None, limit: Limit = 100, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List purchases of credit, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        scope = await _scope(database, who, tenant)
        return await admin_payments.list_topups(database, who, tenant_id=scope, limit=limit)

    perform(act, data_dir, as_json)


@app.command("auto-topup", epilog="Example: penstock payments auto-topup acme-robotics 10 50 500")
def auto_topup(
    tenant: TenantRef,
    below: Annotated[str, typer.Argument(metavar="BELOW_USD", help="Buy when less than this is left.")],
    usd: Usd,
    cap: Annotated[str, typer.Argument(metavar="CAP_USD", help="At most this much in a UTC month.")],
    off: Annotated[bool, typer.Option("--off", help="Keep the rule and switch it off.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Buy credit automatically by the saved card."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_payments.set_auto_topup(
            database,
            who,
            tenant_id=tenant_id,
            enabled=not off,
            threshold_usd=below,
            amount_usd=usd,
            monthly_cap_usd=cap,
        )

    perform(act, data_dir, as_json)


@app.command(epilog='Example: penstock payments refund acme-robotics pi_123 10 --reason "unhappy"')
def refund(
    tenant: TenantRef,
    payment_intent: Annotated[str, typer.Argument(metavar="PAYMENT", help="Stripe's payment id (pi_...).")],
    usd: Annotated[
        str | None, typer.Argument(metavar="[USD]", help="Default: all that is left of it.")
    ] = None,
    reason: Reason = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take bought credit back and pay it back to the card; above the limit it waits for a second person."""

    async def act(database: Database, who: Actor) -> object:
        tenant_id = await tenant_id_of(database, who, tenant)
        return await admin_payments.refund(
            database,
            who,
            tenant_id=tenant_id,
            payment_intent=payment_intent,
            amount_usd=usd,
            reason=reason,
        )

    perform(act, data_dir, as_json)


async def _decide(
    database: Database, who: Actor, approval_id: UUID, approve: bool, reason: str | None
) -> object:
    return await admin_payments.decide_refund(
        database, who, approval_id=approval_id, approve=approve, reason=reason
    )


add_decisions(
    app,
    _decide,
    group="payments",
    what="request",
    approve="Agree to a refund that another person requested; this books it, and a job sends it.",
    reject="Refuse a refund, or take one's own request back.",
    suffix="-refund",
)


@app.command(epilog="Example: penstock payments refunds --waiting --json")
def refunds(
    tenant: MaybeTenant = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Those that wait for a second person.")] = False,
    limit: Limit = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List refunds, the newest first, or those that wait."""

    async def act(database: Database, who: Actor) -> object:
        scope = await _scope(database, who, tenant)
        if waiting:
            return await admin_payments.list_waiting_refunds(database, who, tenant_id=scope)
        return await admin_payments.list_refunds(database, who, tenant_id=scope, limit=limit)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock payments disputes")
def disputes(
    tenant: MaybeTenant = None, limit: Limit = 100, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List disputes, the newest first."""

    async def act(database: Database, who: Actor) -> object:
        scope = await _scope(database, who, tenant)
        return await admin_payments.list_disputes(database, who, tenant_id=scope, limit=limit)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock payments events --open")
def events(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that wait or fail.")] = False,
    limit: Limit = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List Stripe's events and what became of them."""

    async def act(database: Database, who: Actor) -> object:
        return await admin_payments.list_events(database, who, only_open=only_open, limit=limit)

    perform(act, data_dir, as_json)


@app.command(epilog="Example: penstock payments blocked")
def blocked(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List invoices and credit notes that could not be sent to Stripe."""
    perform(admin_payments.list_blocked, data_dir, as_json)


@app.command(
    epilog='Example: penstock payments send-again invoice 0198... --reason "draft deleted in Stripe"'
)
def send_again(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="invoice or credit_note.")],
    identity: Annotated[str, typer.Argument(metavar="ID", help="As `blocked` shows it.")],
    reason: Reason,
    data_dir: DataDir = None,
) -> None:
    """Try once more to send what is blocked."""

    async def act() -> None:
        async with open_db(data_dir) as database:
            who = await acting(database, data_dir)
            object_id = parse_id(identity, "blocked object")
            await admin_payments.send_again(database, who, kind=kind, object_id=object_id, reason=reason)
            print("it will be sent within seconds")

    run(act)


@app.command(epilog="Example: penstock payments reconcile 2026-10")
def reconcile(
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Such as 2026-10.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare a month with Stripe: invoices, payments, credit notes, cash, the meter. Exit code 1 when they differ."""
    from billing.payments.stripe_gateway import open_gateway

    async def act() -> bool:
        async with open_db(data_dir) as database, open_gateway(_settings(data_dir)) as gateway:
            who = await acting(database, data_dir)
            await admin_payments.sync(database, who, gateway)
            found = await admin_payments.compare(database, who, gateway, month=parse_month(month))
            emit(found, as_json)
            return found.ok

    if not run(act):
        raise typer.Exit(1)
