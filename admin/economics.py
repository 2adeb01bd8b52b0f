"""GPU economics for platform roles: cost and margin, the margin bridge, host prices, providers' invoices."""

from datetime import date, datetime
from uuid import UUID

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import read, write_system
from billing.economics import host_prices, provider_invoices
from billing.economics.host_prices import HostPriceView
from billing.economics.provider_invoices import InvoiceIn, InvoiceView, StateRow, VarianceRow
from billing.ledger.months import parse_month
from billing.reports import margin, margin_compare
from billing.reports.margin import EconomicsRow
from billing.reports.margin_compare import BridgeView
from billing.usage.query import check_period
from core.db import Database
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES

HalfOpenPeriod = tuple[datetime, datetime]


async def economics_report(
    database: Database,
    actor: Actor,
    *,
    start: datetime,
    end: datetime,
    by: tuple[str, ...] = ("tenant", "model"),
    fully_loaded: bool = False,
) -> list[EconomicsRow]:
    """Cost and margin of [start, end) by any of tenant, model, hour, day. Raises InvalidRequest, PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await margin.economics_report(connection, start, end, by, fully_loaded=fully_loaded)


async def host_states(database: Database, actor: Actor, *, start: datetime, end: datetime) -> list[StateRow]:
    """Host-hours and their cost by kind of host and state. Raises InvalidRequest, PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        check_period(start, end)
        return await provider_invoices.host_states(connection, start, end)


async def margin_bridge(
    database: Database, actor: Actor, *, before: HalfOpenPeriod, after: HalfOpenPeriod
) -> BridgeView:
    """Why the margin of one period differs from another's. Raises InvalidRequest, PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await margin_compare.margin_bridge(connection, before, after)


async def list_host_prices(
    database: Database, actor: Actor, *, host_kind: str | None = None
) -> list[HostPriceView]:
    """Dated prices of hosts in US dollars per hour, of one kind or of all."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await host_prices.list_host_prices(connection, host_kind)


async def set_host_price(
    database: Database,
    actor: Actor,
    *,
    host_kind: str,
    usd_per_hour: str,
    source: str,
    effective_from: datetime | None = None,
) -> HostPriceView:
    """Set the hourly price of a kind of host from a whole UTC hour on (None = the present hour).

    Raises InvalidRequest, and Conflict when it would change the cost of a closed month.
    """
    require(actor, *PLATFORM_ROLES)
    async with write_system(database) as connection:
        before = await host_prices.list_host_prices(connection, host_kind)
        after = await host_prices.set_host_price(
            connection,
            host_kind=host_kind,
            usd_per_hour=usd_per_hour,
            source=source,
            effective_from=effective_from,
        )
        replaced = [view for view in before if view.effective_from == after.effective_from]
        await record(
            connection,
            actor,
            "host_price.set",
            tenant_id=None,
            object_kind="host_price",
            object_id=host_kind,
            before=replaced[0] if replaced else None,
            after=after,
        )
    return after


async def enter_provider_invoice(
    database: Database, actor: Actor, *, invoice: InvoiceIn, source: str = "entered"
) -> InvoiceView:
    """Store a provider's invoice. Raises InvalidRequest, Conflict."""
    require(actor, *PLATFORM_ROLES)
    month = parse_month(invoice.month)
    async with write_system(database) as connection:
        view = await provider_invoices.enter_invoice(
            connection, invoice, month, source=source, entered_by=actor.label
        )
        await record(
            connection,
            actor,
            "provider_invoice.enter",
            tenant_id=None,
            object_kind="provider_invoice",
            object_id=str(view.id),
            after=view,
        )
    return view


async def void_provider_invoice(
    database: Database, actor: Actor, *, invoice_id: UUID, reason: str
) -> InvoiceView:
    """Void a mistaken invoice, which then no longer counts. Raises NotFound, Conflict, InvalidRequest."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        view = await provider_invoices.void_invoice(connection, invoice_id, actor.label)
        await record(
            connection,
            actor,
            "provider_invoice.void",
            tenant_id=None,
            object_kind="provider_invoice",
            object_id=str(invoice_id),
            reason=reason,
            after=view,
        )
    return view


async def list_provider_invoices(
    database: Database, actor: Actor, *, month: date | None = None
) -> list[InvoiceView]:
    """Providers' invoices of a month or of all, voided ones included."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await provider_invoices.list_invoices(connection, month)


async def provider_variance(database: Database, actor: Actor, *, month: date) -> list[VarianceRow]:
    """Invoiced and recorded cost of a month, by kind of host and in total."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await provider_invoices.variance(connection, month)
