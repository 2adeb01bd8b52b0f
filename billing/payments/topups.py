"""Purchases of credit by Checkout: a session, then a payment that becomes a credit lot (payments.py)."""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.book_updates import BookUpdate, UpdateOutcome, no_change, not_ours
from billing.payments.customers import SEARCH_AFTER_S, TENANT_KEY, ensure_customer, refresh_cards, tenant_of
from billing.payments.idempotency import idempotent_write
from billing.payments.payments import TOPUP_KEY, prepare_payment
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import CheckoutSession
from core.db import Database
from core.errors import Conflict, InvalidRequest
from core.ids import uuid7
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

MIN_CENTS = 500
"""Smallest purchase, $5."""
MAX_CENTS = 10_000_000
"""Largest purchase, $100,000."""


class StartedTopup(msgspec.Struct, frozen=True):
    """A purchase that waits for its payment."""

    id: UUID
    amount_usd: str
    url: str
    """Stripe's page, valid for 24 h."""


def to_cents(amount: int, param: str = "amount_usd") -> int:
    """The cents of `amount` picodollars. Raises InvalidRequest for a fraction of a cent or one out of bounds.

    `param` names the request's parameter in the error.
    """
    cents, rest = divmod(amount, PICO_PER_CENT)
    if rest or not MIN_CENTS <= cents <= MAX_CENTS:
        raise InvalidRequest(
            f"{param} must be whole cents from ${MIN_CENTS // 100} to ${MAX_CENTS // 100:,}, "
            f"not {pico_to_usd(amount)}",
            param=param,
        )
    return cents


async def start_topup(
    database: Database,
    gateway: StripeGateway,
    *,
    tenant_id: UUID,
    cents: int,
    return_url: str,
    by: str,
    topup_id: UUID | None = None,
) -> StartedTopup:
    """Start a purchase of credit, which also saves the card. Idempotent by `topup_id` (None = a new one).

    `cents` as from `to_cents`; Stripe sends the browser to `return_url` afterwards; `by` names the person. Raises
    Conflict for a postpaid account or an id in use by another purchase, NotFound for an unknown organisation,
    Unavailable when Stripe does not answer.
    """
    topup_id = topup_id or uuid7()
    customer_id = await ensure_customer(database, gateway, tenant_id)
    async with database.system() as connection:
        row = await _insert(connection, topup_id, tenant_id, cents, by)
    if row.url is not None:
        return _started(topup_id, cents, row.url)
    metadata = {TENANT_KEY: str(tenant_id), TOPUP_KEY: str(topup_id)}
    params = _session(customer_id, cents, metadata, return_url)

    async def find() -> CheckoutSession | None:
        return await _find(gateway, customer_id, topup_id, int(row.created))

    session = await idempotent_write(
        lambda key: gateway.create_checkout_session(params, key),
        find,
        f"penstock-topup-{topup_id}",
        find_first=row.old,
    )
    async with database.system() as connection:
        await connection.execute(
            text(
                "UPDATE stripe_topups SET session_id = :session, url = :url WHERE id = :id AND tenant_id = :tenant"
            ),
            {"session": session.id, "url": session.url, "id": topup_id, "tenant": tenant_id},
        )
    return _started(topup_id, cents, session.url or "")


def _started(topup_id: UUID, cents: int, url: str) -> StartedTopup:
    return StartedTopup(id=topup_id, amount_usd=pico_to_usd(cents * PICO_PER_CENT), url=url)


async def _insert(connection: AsyncConnection, topup_id: UUID, tenant_id: UUID, cents: int, by: str) -> Any:
    mode = await connection.execute(
        text("SELECT mode FROM billing_accounts WHERE tenant_id = :tenant"), {"tenant": tenant_id}
    )
    if mode.scalar_one_or_none() != "prepaid":
        raise Conflict("only a prepaid account buys credit; a postpaid one gets invoices")
    await connection.execute(
        text(
            "INSERT INTO stripe_topups (id, tenant_id, kind, cents, created_by) "
            "VALUES (:id, :tenant, 'checkout', :cents, :by) ON CONFLICT (id) DO NOTHING"
        ),
        {"id": topup_id, "tenant": tenant_id, "cents": cents, "by": by},
    )
    found = await connection.execute(
        text(
            "SELECT url, extract(epoch FROM created_at)::bigint AS created, "
            "clock_timestamp() - created_at > make_interval(secs => :old) AS old FROM stripe_topups "
            "WHERE id = :id AND tenant_id = :tenant AND cents = :cents AND kind = 'checkout'"
        ),
        {"id": topup_id, "tenant": tenant_id, "cents": cents, "old": SEARCH_AFTER_S},
    )
    row = found.one_or_none()
    if row is None:
        raise Conflict(f"the purchase {topup_id} exists already with other facts")
    return row


async def _find(
    gateway: StripeGateway, customer_id: str, topup_id: UUID, created_at: int
) -> CheckoutSession | None:
    for session in await gateway.checkout_sessions_since(customer_id, created_at - 300):
        if session.metadata.get(TOPUP_KEY) == str(topup_id):
            return session
    return None


def _session(customer_id: str, cents: int, metadata: dict[str, str], return_url: str) -> dict[str, Any]:
    product = {"currency": "usd", "unit_amount": cents, "product_data": {"name": "Inference credit"}}
    return {
        "mode": "payment",
        "customer": customer_id,
        "line_items": [{"price_data": product, "quantity": 1}],
        "metadata": metadata,
        "payment_intent_data": {"metadata": metadata, "setup_future_usage": "off_session"},
        "success_url": return_url,
        "cancel_url": return_url,
    }


async def prepare_session(database: Database, gateway: StripeGateway, session_id: str) -> BookUpdate:
    """The book update of a Checkout session: that of its payment, or the expiry of an unpaid purchase.

    Copies the customer's saved cards when the session is complete.
    """
    session = await gateway.checkout_session(session_id)
    async with database.read() as connection:
        tenant_id = await tenant_of(connection, session.customer)
    if tenant_id is None or session.customer is None:
        return not_ours
    if session.status == "complete":
        await refresh_cards(database, gateway, session.customer)
    if session.payment_intent is not None:
        return await prepare_payment(gateway, session.payment_intent)
    topup_id = session.metadata.get(TOPUP_KEY)
    if session.status != "expired" or topup_id is None:
        return no_change

    @platform_wide("by the purchase's own id")
    async def update(connection: AsyncConnection) -> UpdateOutcome:
        await connection.execute(
            text(
                "UPDATE stripe_topups SET status = 'expired', ended_at = clock_timestamp() "
                "WHERE id::text = :id AND tenant_id = :tenant AND status = 'pending'"
            ),
            {"id": topup_id, "tenant": tenant_id},
        )
        return "applied"

    return update
