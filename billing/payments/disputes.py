"""Disputes: a bank takes a payment back. Credit that is left of it is taken back until the dispute is won."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import credits, ledger, notices
from billing.payments import cash
from billing.payments.effects import Effect, Outcome, foreign
from billing.payments.objects import Dispute
from billing.payments.payments import prepare_payment
from billing.stripe_gateway import StripeGateway
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide


async def prepare_dispute(gateway: StripeGateway, dispute_id: str) -> Effect:
    """What a dispute's state does; its payment is booked before it."""
    dispute = await gateway.dispute(dispute_id)
    intent = dispute.payment_intent
    if intent is None and dispute.charge is not None:
        intent = await gateway.payment_of_charge(dispute.charge)
    if intent is None:
        return foreign
    before = await prepare_payment(gateway, intent)

    async def effect(connection: AsyncConnection) -> Outcome:
        await before(connection)
        return await apply_dispute(connection, dispute, intent)

    return effect


@platform_wide("a dispute names its payment, and that its organisation")
async def apply_dispute(connection: AsyncConnection, dispute: Dispute, intent: str) -> Outcome:
    """Book what the bank withdrew and returned, and what became of the credit; an inquiry moves nothing."""
    payment = (
        await connection.execute(
            text("SELECT tenant_id, purpose FROM stripe_payments WHERE payment_intent = :pi FOR UPDATE"),
            {"pi": intent},
        )
    ).one_or_none()
    if payment is None:
        return "foreign"
    tenant_id, source = payment.tenant_id, cash.source(dispute.id)
    withdrawn = sum(-move.cents for move in dispute.moves if move.cents < 0) * PICO_PER_CENT
    returned = sum(move.cents for move in dispute.moves if move.cents > 0) * PICO_PER_CENT
    if withdrawn:
        await ledger.book(connection, "dispute", tenant_id, "disputed", "cash", withdrawn, source)
    for move in dispute.moves:
        await cash.record(connection, tenant_id, "dispute", dispute.id, move)
    clawed = await _clawed(connection, tenant_id, source)
    lot_id = cash.source(intent)
    if withdrawn and clawed is None and payment.purpose == "topup" and dispute.status != "won":
        clawed = await credits.take_back(
            connection, lot_id=lot_id, amount=withdrawn, kind="clawback", source_id=source
        )
    if returned:
        await ledger.book(connection, "dispute_won", tenant_id, "cash", "disputed", returned, source)
    if dispute.status == "won" and clawed is not None:
        await credits.give_back(connection, lot_id=lot_id, source_id=source)
    elif dispute.status == "lost" and (rest := withdrawn - returned - (clawed or 0)) > 0:
        await ledger.book(connection, "dispute_lost", tenant_id, "dispute_losses", "disputed", rest, source)
    await _store(connection, payment, dispute, intent, clawed or 0)
    return "applied"


async def _clawed(connection: AsyncConnection, tenant_id: UUID, source: UUID) -> int | None:
    """What of the lot was taken back for this dispute; None = nobody tried."""
    found = await connection.execute(
        text(
            "SELECT amount FROM grant_draws WHERE source_id = :source AND kind = 'clawback' AND tenant_id = :tenant"
        ),
        {"source": source, "tenant": tenant_id},
    )
    amount = found.scalar_one_or_none()
    return None if amount is None else int(amount)


async def _store(
    connection: AsyncConnection, payment: Row[Any], dispute: Dispute, intent: str, clawed: int
) -> None:
    """The state that people see, and a word to them when it changes."""
    due = None if dispute.due_at is None else datetime.fromtimestamp(dispute.due_at, UTC)
    before = await connection.execute(
        text("SELECT status FROM stripe_disputes WHERE id = :id AND tenant_id = :tenant"),
        {"id": dispute.id, "tenant": payment.tenant_id},
    )
    known = before.scalar_one_or_none()
    await connection.execute(
        text(
            "INSERT INTO stripe_disputes (id, tenant_id, payment_intent, cents, withdrawn_cents, returned_cents, "
            "fee_cents, clawed_back, reason, status, evidence_due_at, opened_at) VALUES (:id, :tenant, :pi, :cents, "
            ":withdrawn, :returned, :fee, :clawed, :reason, :status, :due, to_timestamp(:opened)) "
            "ON CONFLICT (id) DO UPDATE SET withdrawn_cents = excluded.withdrawn_cents, "
            "returned_cents = excluded.returned_cents, fee_cents = excluded.fee_cents, "
            "clawed_back = excluded.clawed_back, status = excluded.status, "
            "evidence_due_at = excluded.evidence_due_at, updated_at = clock_timestamp()"
        ),
        {
            "id": dispute.id,
            "tenant": payment.tenant_id,
            "pi": intent,
            "cents": dispute.cents,
            "withdrawn": sum(-move.cents for move in dispute.moves if move.cents < 0),
            "returned": sum(move.cents for move in dispute.moves if move.cents > 0),
            "fee": sum(move.fee_cents for move in dispute.moves),
            "clawed": clawed,
            "reason": dispute.reason,
            "status": dispute.status,
            "due": due,
            "opened": dispute.created_at,
        },
    )
    if known == dispute.status:
        return
    amount = pico_to_usd(dispute.cents * PICO_PER_CENT)
    until = "" if due is None else f" Evidence is due by {due:%Y-%m-%d %H:%M} UTC."
    await notices.notify(
        connection,
        tenant_id=None,
        kind="stripe.dispute",
        subject=f"A dispute over ${amount} is {dispute.status.replace('_', ' ')}",
        body=f"Dispute {dispute.id} of payment {intent}: {dispute.reason}.{until}",
        facts={"dispute_id": dispute.id, "tenant_id": str(payment.tenant_id), "status": dispute.status},
        key=f"stripe-dispute-{dispute.id}-{dispute.status}",
    )
