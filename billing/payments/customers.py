"""Stripe customers, one per organisation, with their tax ids and saved payment methods."""

from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.idempotency import idempotent_write
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Card, Customer
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants.scoping import platform_wide

SEARCH_AFTER_S = 12 * 3600
"""Age in seconds after which the result of an attempt is searched for before it is repeated: Stripe forgets idempotency
keys after 24 h."""
TENANT_KEY = "penstock_tenant_id"
"""Metadata key of the tenant's id on customers, payments and invoices."""


async def ensure_customer(database: Database, gateway: StripeGateway, tenant_id: UUID) -> str:
    """The id of the organisation's Stripe customer, created once, also when called concurrently or after a crash.

    Raises NotFound for an unknown organisation.
    """
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO stripe_customers (tenant_id, name) SELECT id, name FROM tenants WHERE id = :tenant "
                "ON CONFLICT DO NOTHING"
            ),
            {"tenant": tenant_id},
        )
        row = (
            await connection.execute(
                text(
                    "SELECT customer_id, name, extract(epoch FROM requested_at)::bigint AS requested, "
                    "clock_timestamp() - requested_at > make_interval(secs => :old) AS old "
                    "FROM stripe_customers WHERE tenant_id = :tenant"
                ),
                {"tenant": tenant_id, "old": SEARCH_AFTER_S},
            )
        ).one_or_none()
    if row is None:
        raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
    if row.customer_id is not None:
        return str(row.customer_id)
    metadata = {TENANT_KEY: str(tenant_id)}

    async def find() -> Customer | None:
        return await _find(gateway, tenant_id, int(row.requested))

    found = await idempotent_write(
        lambda key: gateway.create_customer(row.name, metadata, key),
        find,
        f"penstock-customer-{tenant_id}",
        find_first=row.old,
    )
    async with database.system() as connection:
        await connection.execute(
            text(
                "UPDATE stripe_customers SET customer_id = :customer "
                "WHERE tenant_id = :tenant AND customer_id IS NULL"
            ),
            {"customer": found.id, "tenant": tenant_id},
        )
    return found.id


async def _find(gateway: StripeGateway, tenant_id: UUID, requested_at: int) -> Customer | None:
    for customer in await gateway.customers_since(requested_at - 300):
        if customer.metadata.get(TENANT_KEY) == str(tenant_id):
            return customer
    return None


async def ensure_email(
    database: Database, gateway: StripeGateway, tenant_id: UUID, customer_id: str
) -> str | None:
    """Set the customer's address, which Stripe needs to mail invoices, to the first active owner's; returns it.

    None when there is neither an active owner nor an earlier address.
    """
    async with database.read() as connection:
        row = (
            await connection.execute(
                text(
                    "SELECT c.email AS known, (SELECT u.email FROM memberships m JOIN users u ON u.id = m.user_id "
                    "WHERE m.tenant_id = c.tenant_id AND m.role = 'tenant_owner' AND u.status = 'active' "
                    "ORDER BY u.id LIMIT 1) AS email FROM stripe_customers c WHERE c.tenant_id = :tenant"
                ),
                {"tenant": tenant_id},
            )
        ).one()
    if row.email is None or row.email == row.known:
        return None if row.known is None else str(row.known)
    await gateway.update_customer(customer_id, {"email": row.email})
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE stripe_customers SET email = :email WHERE tenant_id = :tenant"),
            {"email": row.email, "tenant": tenant_id},
        )
    return str(row.email)


@platform_wide("a Stripe customer names the organisation")
async def tenant_of(connection: AsyncConnection, customer_id: str | None) -> UUID | None:
    """The organisation of a Stripe customer; None for a customer that is not ours."""
    found = await connection.execute(
        text("SELECT tenant_id FROM stripe_customers WHERE customer_id = :customer"),
        {"customer": customer_id},
    )
    tenant_id: UUID | None = found.scalar_one_or_none()
    return tenant_id


async def set_tax_id(
    database: Database, gateway: StripeGateway, tenant_id: UUID, kind: str, value: str
) -> None:
    """Make ("eu_vat", "DE123456789") or its like the customer's only tax id.

    `kind` is one of Stripe's tax id types, `value` 1 to 40 printable characters. Raises InvalidRequest when it is not,
    or when Stripe refuses it.
    """
    if not kind.isascii() or not kind.replace("_", "").isalnum() or len(kind) > 20:
        raise InvalidRequest(f"{kind[:40]!r} is no kind of tax id; one is eu_vat", param="kind")
    if not value.strip() or len(value) > 40 or not value.isprintable():
        raise InvalidRequest("the tax id must be 1 to 40 printable characters", param="value")
    customer_id = await ensure_customer(database, gateway, tenant_id)
    async with database.read() as connection:
        old = (
            await connection.execute(
                text(
                    "SELECT tax_id_kind, tax_id_value, tax_id FROM stripe_customers WHERE tenant_id = :tenant"
                ),
                {"tenant": tenant_id},
            )
        ).one()
    if (old.tax_id_kind, old.tax_id_value) == (kind, value):
        return
    key = f"penstock-tax-{tenant_id}-{kind}-{value}-{old.tax_id}"

    async def find() -> str | None:
        known = await gateway.tax_ids(customer_id)
        return next((each[0] for each in known if each[1:] == (kind, value)), None)

    made = await idempotent_write(lambda key: gateway.add_tax_id(customer_id, kind, value, key), find, key)
    if old.tax_id is not None and old.tax_id != made:
        await gateway.remove_tax_id(customer_id, old.tax_id)
    async with database.system() as connection:
        await connection.execute(
            text(
                "UPDATE stripe_customers SET tax_id_kind = :kind, tax_id_value = :value, tax_id = :id "
                "WHERE tenant_id = :tenant"
            ),
            {"kind": kind, "value": value, "id": made, "tenant": tenant_id},
        )


async def refresh_cards(database: Database, gateway: StripeGateway, customer_id: str) -> int:
    """Copy the customer's saved cards from Stripe; returns their number. Without a default card, set the oldest."""
    async with database.read() as connection:
        tenant_id = await tenant_of(connection, customer_id)
    if tenant_id is None:
        return 0
    customer = await gateway.customer(customer_id)
    cards = [] if customer.deleted else await gateway.cards(customer_id)
    default = customer.default_payment_method
    if cards and default not in {card.id for card in cards}:
        default = cards[-1].id
        settings: dict[str, Any] = {"invoice_settings": {"default_payment_method": default}}
        await gateway.update_customer(customer_id, settings)
    async with database.system() as connection:
        await _store(connection, tenant_id, cards, default if cards else None)
    return len(cards)


async def _store(
    connection: AsyncConnection, tenant_id: UUID, cards: list[Card], default: str | None
) -> None:
    for card in cards:
        await connection.execute(
            text(
                "INSERT INTO stripe_payment_methods (id, tenant_id, kind, brand, last4, exp_month, exp_year) "
                "VALUES (:id, :tenant, :kind, :brand, :last4, :month, :year) ON CONFLICT (id) DO UPDATE SET "
                "brand = excluded.brand, last4 = excluded.last4, exp_month = excluded.exp_month, "
                "exp_year = excluded.exp_year, detached_at = NULL, seen_at = clock_timestamp()"
            ),
            {
                "id": card.id,
                "tenant": tenant_id,
                "kind": card.kind,
                "brand": card.brand,
                "last4": card.last4,
                "month": card.exp_month,
                "year": card.exp_year,
            },
        )
    await connection.execute(
        text(
            "UPDATE stripe_payment_methods SET detached_at = clock_timestamp() "
            "WHERE tenant_id = :tenant AND detached_at IS NULL AND NOT (id = ANY(CAST(:kept AS text[])))"
        ),
        {"tenant": tenant_id, "kept": [card.id for card in cards]},
    )
    await connection.execute(
        text("UPDATE stripe_customers SET default_payment_method = :method WHERE tenant_id = :tenant"),
        {"method": default, "tenant": tenant_id},
    )


def require_usd(currency: str, what: str) -> None:
    """Raise Conflict unless `currency` is usd; `what` names the object in the message."""
    if currency != "usd":
        raise Conflict(f"{what} is in {currency.upper()}: only USD can be booked", code="wrong_currency")
