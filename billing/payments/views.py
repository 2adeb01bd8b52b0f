"""Payments for display: customers, purchases, payments, refunds, disputes, events. Amounts are decimal dollars."""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide


class CustomerView(msgspec.Struct, frozen=True):
    """An organisation's Stripe customer."""

    tenant_id: UUID
    name: str
    customer_id: str | None
    tax_id: str | None
    card: str | None
    """Such as "visa 4242 (12/2030)"."""
    dunning: str
    """current | past_due | suspended"""
    dunning_since: str | None


class TopupView(msgspec.Struct, frozen=True):
    """A purchase of credit."""

    id: UUID
    tenant_id: UUID
    kind: str
    amount_usd: str
    status: str
    payment_intent: str | None
    error: str | None
    created_by: str
    created_at: str
    url: str | None


class PaymentView(msgspec.Struct, frozen=True):
    """A received payment."""

    payment_intent: str
    tenant_id: UUID
    purpose: str
    amount_usd: str
    invoice_id: UUID | None
    paid_at: str


class RefundView(msgspec.Struct, frozen=True):
    """A refund."""

    id: UUID
    tenant_id: UUID
    payment_intent: str
    amount_usd: str
    status: str
    reason: str
    error: str | None
    created_by: str
    created_at: str


class DisputeView(msgspec.Struct, frozen=True):
    """A dispute."""

    id: str
    tenant_id: UUID
    payment_intent: str
    amount_usd: str
    fee_usd: str
    clawed_back_usd: str
    reason: str
    status: str
    evidence_due_at: str | None
    opened_at: str


class EventView(msgspec.Struct, frozen=True):
    """An event of Stripe and its outcome."""

    id: str
    type: str
    object_id: str
    found_by: str
    outcome: str | None
    attempts: int
    error: str | None
    created_at: str
    applied_at: str | None


class BlockedView(msgspec.Struct, frozen=True):
    """An invoice or credit note that could not be sent to Stripe."""

    kind: str
    object_id: UUID
    tenant_id: UUID
    error: str | None
    updated_at: str


_CUSTOMERS = """
    SELECT c.tenant_id, c.name, c.customer_id, c.tax_id_kind || ' ' || c.tax_id_value AS tax_id,
        m.brand || ' ' || m.last4 || ' (' || m.exp_month || '/' || m.exp_year || ')' AS card, c.dunning, c.dunning_since
    FROM stripe_customers c LEFT JOIN stripe_payment_methods m ON m.id = c.default_payment_method
    WHERE (CAST(:tenant AS uuid) IS NULL OR c.tenant_id = :tenant) ORDER BY c.name, c.tenant_id LIMIT :limit
"""
_TOPUPS = """
    SELECT id, tenant_id, kind, cents AS amount_usd, status, payment_intent, error, created_by, created_at,
        CASE WHEN status = 'pending' THEN url END AS url
    FROM stripe_topups WHERE (CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant)
    ORDER BY created_at DESC, id LIMIT :limit
"""
_PAYMENTS = """
    SELECT payment_intent, tenant_id, purpose, cents AS amount_usd, invoice_id, paid_at FROM stripe_payments
    WHERE (CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant) ORDER BY paid_at DESC, payment_intent LIMIT :limit
"""
_REFUNDS = """
    SELECT id, tenant_id, payment_intent, cents AS amount_usd, status, reason, error, created_by, created_at
    FROM stripe_refunds WHERE (CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant)
    ORDER BY created_at DESC, id LIMIT :limit
"""
_DISPUTES = """
    SELECT id, tenant_id, payment_intent, cents AS amount_usd, fee_cents AS fee_usd,
        clawed_back / 10000000000 AS clawed_back_usd, reason, status, evidence_due_at, opened_at
    FROM stripe_disputes WHERE (CAST(:tenant AS uuid) IS NULL OR tenant_id = :tenant)
    ORDER BY opened_at DESC, id LIMIT :limit
"""
_EVENTS = """
    SELECT id, type, object_id, found_by, outcome, attempts, error, created_at, applied_at FROM stripe_events
    WHERE NOT :open OR applied_at IS NULL ORDER BY received_at DESC, id LIMIT :limit
"""


def _view_fields(row: Any) -> dict[str, Any]:
    """The fields of a view: cents as dollars, instants as text."""
    found = dict(row._mapping)
    for name, value in found.items():
        if name.endswith("_usd"):
            found[name] = pico_to_usd(int(value * PICO_PER_CENT))
        elif name.endswith(("_at", "_since")) and value is not None:
            found[name] = value.isoformat()
    return found


@platform_wide("with a tenant: that organisation's; without: the platform's own list")
async def list_customers(
    connection: AsyncConnection, tenant_id: UUID | None, limit: int
) -> list[CustomerView]:
    """At most `limit` customers by name; `tenant_id` None = of all organisations, here and below."""
    rows = await connection.execute(text(_CUSTOMERS), {"tenant": tenant_id, "limit": limit})
    return [CustomerView(**_view_fields(row)) for row in rows]


@platform_wide("with a tenant: that organisation's; without: the platform's own list")
async def list_topups(connection: AsyncConnection, tenant_id: UUID | None, limit: int) -> list[TopupView]:
    """At most `limit` purchases, newest first."""
    rows = await connection.execute(text(_TOPUPS), {"tenant": tenant_id, "limit": limit})
    return [TopupView(**_view_fields(row)) for row in rows]


@platform_wide("with a tenant: that organisation's; without: the platform's own list")
async def list_payments(connection: AsyncConnection, tenant_id: UUID | None, limit: int) -> list[PaymentView]:
    """At most `limit` payments, newest first."""
    rows = await connection.execute(text(_PAYMENTS), {"tenant": tenant_id, "limit": limit})
    return [PaymentView(**_view_fields(row)) for row in rows]


@platform_wide("with a tenant: that organisation's; without: the platform's own list")
async def list_refunds(connection: AsyncConnection, tenant_id: UUID | None, limit: int) -> list[RefundView]:
    """At most `limit` refunds, newest first."""
    rows = await connection.execute(text(_REFUNDS), {"tenant": tenant_id, "limit": limit})
    return [RefundView(**_view_fields(row)) for row in rows]


@platform_wide("with a tenant: that organisation's; without: the platform's own list")
async def list_disputes(connection: AsyncConnection, tenant_id: UUID | None, limit: int) -> list[DisputeView]:
    """At most `limit` disputes, newest first."""
    rows = await connection.execute(text(_DISPUTES), {"tenant": tenant_id, "limit": limit})
    return [DisputeView(**_view_fields(row)) for row in rows]


async def list_events(connection: AsyncConnection, limit: int, *, only_open: bool = False) -> list[EventView]:
    """At most `limit` events, newest first; `only_open` selects those that are not applied."""
    rows = await connection.execute(text(_EVENTS), {"open": only_open, "limit": limit})
    return [EventView(**_view_fields(row)) for row in rows]


@platform_wide("operators resolve the blocked pushes of all organisations")
async def list_blocked(connection: AsyncConnection) -> list[BlockedView]:
    """At most 1000 blocked pushes, oldest first."""
    rows = await connection.execute(
        text(
            "SELECT kind, object_id, tenant_id, error, updated_at FROM stripe_pushes WHERE status = 'blocked' "
            "ORDER BY updated_at, object_id LIMIT 1000"
        )
    )
    return [BlockedView(**_view_fields(row)) for row in rows]
