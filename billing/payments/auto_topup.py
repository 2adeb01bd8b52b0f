"""Automatic purchases of credit: one at a time per organisation, within its monthly cap, resumed after a crash."""

import logging
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import notices
from billing.payments import auto_topup_rules
from billing.payments.book_updates import apply_update
from billing.payments.customers import TENANT_KEY
from billing.payments.idempotency import idempotent_write
from billing.payments.payments import TOPUP_KEY, prepare_payment
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PaymentRequired, PenstockError, Unavailable
from core.ids import uuid7
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

BATCH = 50
"""Purchases started, and charged, in one run at most."""
_DUE = """
    SELECT t.tenant_id, t.cents, t.monthly_cap_cents, m.bought + t.cents > t.monthly_cap_cents AS capped
    FROM stripe_auto_topups t
    JOIN tenants o ON o.id = t.tenant_id AND o.status = 'active'
    JOIN billing_accounts a ON a.tenant_id = t.tenant_id AND a.mode = 'prepaid'
    JOIN stripe_customers c ON c.tenant_id = t.tenant_id,
    LATERAL (SELECT coalesce(sum(p.cents), 0) AS bought FROM stripe_topups p WHERE p.tenant_id = t.tenant_id
        AND p.kind = 'auto' AND p.status IN ('pending', 'succeeded')
        AND p.created_at >= date_trunc('month', now(), 'UTC')) m
    WHERE t.enabled AND (t.retry_at IS NULL OR t.retry_at <= now()) AND a.balance - a.held < t.threshold
        AND c.customer_id IS NOT NULL AND c.default_payment_method IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM stripe_topups p WHERE p.tenant_id = t.tenant_id AND p.kind = 'auto'
            AND p.status = 'pending')
        AND (m.bought + t.cents <= t.monthly_cap_cents OR NOT EXISTS (SELECT 1 FROM notices n
            WHERE n.dedupe_key = format('topup-cap-%s-%s', t.tenant_id, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM'))))
    ORDER BY t.tenant_id LIMIT :limit FOR UPDATE OF t SKIP LOCKED
"""
"""Active organisations below their threshold. One at its cap is selected until its notice exists, and then left out,
so that capped organisations do not fill the batch."""


async def run(database: Database, gateway: StripeGateway) -> int:
    """Start the purchases that are due and charge the pending ones; returns how many were charged.

    Raises Unavailable when Stripe does not answer.
    """
    await start_due(database)
    async with database.read() as connection:
        open_ones = await _chargeable(connection)
    charged = 0
    for row in open_ones:
        try:
            charged += await _charge(database, gateway, row)
        except Unavailable:
            raise
        except PenstockError as error:
            # The purchase stays pending until Stripe's event of its payment decides it.
            log.warning("the automatic purchase %s cannot go on: %s", row.id, error.message)
    return charged


@platform_wide("a job looks after every organisation's rule")
async def start_due(database: Database) -> int:
    """Insert the purchases that are due (a unique index allows one pending per organisation); returns their number."""
    begun = 0
    async with database.system() as connection:
        for due in (await connection.execute(text(_DUE), {"limit": BATCH})).all():
            if due.capped:
                await _notify_cap(connection, due)
                continue
            made = await connection.execute(
                text(
                    "INSERT INTO stripe_topups (id, tenant_id, kind, cents, created_by) "
                    "VALUES (:id, :tenant, 'auto', :cents, 'auto top-up') ON CONFLICT DO NOTHING RETURNING id"
                ),
                {"id": uuid7(), "tenant": due.tenant_id, "cents": due.cents},
            )
            begun += made.one_or_none() is not None
    return begun


async def _notify_cap(connection: AsyncConnection, due: Row[Any]) -> None:
    month = (
        await connection.execute(text("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')"))
    ).scalar_one()
    cap = pico_to_usd(due.monthly_cap_cents * PICO_PER_CENT)
    await notices.notify(
        connection,
        tenant_id=due.tenant_id,
        kind="topup.cap",
        subject="The monthly cap of automatic top-up is reached",
        body=f"Credit is low, and buying more would exceed the cap of ${cap} in {month}. Buy credit by hand, or "
        "raise the cap.",
        facts={"month": month, "monthly_cap_usd": cap},
        key=f"topup-cap-{due.tenant_id}-{month}",
    )


@platform_wide("a job finishes every organisation's purchase")
async def _chargeable(connection: AsyncConnection) -> list[Row[Any]]:
    """Purchases to charge: new ones, and those pending for more than an hour."""
    rows = await connection.execute(
        text(
            "SELECT p.id, p.tenant_id, p.cents, p.attempts, p.payment_intent, c.customer_id, "
            "c.default_payment_method AS method, extract(epoch FROM p.created_at)::bigint AS created "
            "FROM stripe_topups p JOIN stripe_customers c ON c.tenant_id = p.tenant_id "
            "WHERE p.kind = 'auto' AND p.status = 'pending' "
            "AND (p.payment_intent IS NULL OR p.created_at < now() - interval '1 hour') ORDER BY p.id LIMIT :limit"
        ),
        {"limit": BATCH},
    )
    return list(rows.all())


async def _charge(database: Database, gateway: StripeGateway, row: Row[Any]) -> bool:
    """Charge one; returns whether it succeeded. After an earlier attempt, look its payment up before charging.

    Nothing is charged when the rule was disabled, or the organisation suspended, after the purchase was started.
    """
    async with database.system() as connection:
        allowed = await _begin_attempt(connection, row)
    intent = row.payment_intent or (await _find(gateway, row) if row.attempts else None)
    if intent is None and not allowed:
        async with database.system() as connection:
            await _end_uncharged(connection, row, "automatic top-up was switched off")
        return False
    try:
        if intent is None:
            metadata = {TENANT_KEY: str(row.tenant_id), TOPUP_KEY: str(row.id)}

            async def make(key: str) -> str:
                made = await gateway.charge_off_session(row.customer_id, row.method, row.cents, metadata, key)
                return made.id

            key = f"penstock-auto-{row.id}-{row.method}"
            intent = await idempotent_write(make, lambda: _find(gateway, row), key)
    except PaymentRequired as error:
        intent = error.details.get("payment_intent")
        if intent is None:
            await _mark_failed(database, row, error.message)
            return False
    except (Conflict, InvalidRequest, NotFound) as error:
        await _mark_failed(database, row, error.message)
        return False
    payment = await gateway.payment_intent(intent)
    if payment.status.startswith("requires_"):
        await gateway.cancel_payment_intent(intent, f"penstock-cancel-{intent}")
    await apply_update(database, await prepare_payment(gateway, intent))
    return payment.status == "succeeded"


async def _begin_attempt(connection: AsyncConnection, row: Row[Any]) -> bool:
    """Count an attempt; returns whether the card may be charged: the purchase is pending, its rule enabled, the
    organisation active."""
    found = await connection.execute(
        text(
            "UPDATE stripe_topups p SET attempts = attempts + 1, "
            "payment_method = coalesce(payment_method, :method) "
            "WHERE p.id = :id AND p.tenant_id = :tenant AND p.status = 'pending' RETURNING EXISTS ("
            "SELECT 1 FROM stripe_auto_topups t JOIN tenants o ON o.id = t.tenant_id "
            "WHERE t.tenant_id = p.tenant_id AND t.enabled AND o.status = 'active')"
        ),
        {"method": row.method, "id": row.id, "tenant": row.tenant_id},
    )
    return bool(found.scalar_one_or_none())


async def _find(gateway: StripeGateway, row: Row[Any]) -> str | None:
    for payment in await gateway.payment_intents_since(row.customer_id, row.created - 300):
        if payment.metadata.get(TOPUP_KEY) == str(row.id):
            return payment.id
    return None


async def _mark_failed(database: Database, row: Row[Any], error: str) -> None:
    """Fail a purchase for which Stripe made no payment, and count the failure."""
    async with database.system() as connection:
        if await _end_uncharged(connection, row, error):
            await auto_topup_rules.record_failure(connection, row.tenant_id, error)


async def _end_uncharged(connection: AsyncConnection, row: Row[Any], error: str) -> bool:
    """Fail a pending purchase without a payment; returns whether it was pending."""
    done = await connection.execute(
        text(
            "UPDATE stripe_topups SET status = 'failed', error = :error, ended_at = clock_timestamp() "
            "WHERE id = :id AND tenant_id = :tenant AND status = 'pending' RETURNING id"
        ),
        {"error": error[:500], "id": row.id, "tenant": row.tenant_id},
    )
    return done.one_or_none() is not None
