"""Disputes (chargebacks): unused credit of a disputed purchase is clawed back until the dispute is won.

A dispute that was won can be lost later, when the bank withdraws the money again: each withdrawal begins a round with
bookings of its own.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits, transfers
from billing.notifications import notices
from billing.payments import auto_topup_rules, cash, lots
from billing.payments.book_updates import BookUpdate, UpdateOutcome, not_ours
from billing.payments.payments import prepare_payment
from billing.payments.stripe_gateway import StripeGateway
from billing.payments.stripe_types import Dispute
from core.ids import derived_uuid
from core.money import PICO_PER_CENT, pico_to_usd
from tenants.scoping import platform_wide

CLOSED_FOR_US = frozenset({"won", "warning_closed", "prevented"})
"""Statuses in which no bank demands the money."""


async def prepare_dispute(gateway: StripeGateway, dispute_id: str) -> BookUpdate:
    """The book update of a dispute; it applies the update of the disputed payment first."""
    dispute = await gateway.dispute(dispute_id)
    intent = dispute.payment_intent
    if intent is None and dispute.charge is not None:
        intent = await gateway.payment_intent_of_charge(dispute.charge)
    if intent is None:
        return not_ours
    before = await prepare_payment(gateway, intent)

    async def update(connection: AsyncConnection) -> UpdateOutcome:
        await before(connection)
        return await apply_dispute(connection, dispute, intent)

    return update


@platform_wide("a dispute names its payment, and that its organisation")
async def apply_dispute(connection: AsyncConnection, dispute: Dispute, intent: str) -> UpdateOutcome:
    """Book withdrawn and returned amounts, claw credit back or return it, and book a loss. An inquiry books nothing."""
    payment = (
        await connection.execute(
            text("SELECT tenant_id, purpose FROM stripe_payments WHERE payment_intent = :pi FOR UPDATE"),
            {"pi": intent},
        )
    ).one_or_none()
    if payment is None:
        return "foreign"
    tenant_id = payment.tenant_id
    for move in dispute.balance_transactions:
        await cash.record_transaction(connection, tenant_id, "dispute", dispute.id, move)
    lot_ids = await lots.lots_of(connection, tenant_id, intent)
    rounds = _rounds(dispute)
    for number, (withdrawn, returned) in enumerate(rounds):
        status = dispute.status if number == len(rounds) - 1 else "won"
        clawed = await _apply_round(
            connection, tenant_id, lot_ids, _round_source(dispute.id, number), status, withdrawn, returned
        )
    await _store(connection, payment, dispute, intent, clawed)
    return "applied"


def _rounds(dispute: Dispute) -> list[tuple[int, int]]:
    """The picodollars (withdrawn, returned) of each round of a dispute; one that was won may be lost in the next."""
    rounds = [(0, 0)]
    for move in sorted(dispute.balance_transactions, key=lambda one: one.created_at):
        withdrawn, returned = rounds[-1]
        if move.cents > 0:
            rounds[-1] = (withdrawn, returned + move.cents * PICO_PER_CENT)
        elif returned:
            rounds.append((-move.cents * PICO_PER_CENT, 0))
        else:
            rounds[-1] = (withdrawn - move.cents * PICO_PER_CENT, 0)
    return rounds


def _round_source(dispute_id: str, number: int) -> UUID:
    """The ledger source of a dispute's round by its number, from 0."""
    source = cash.source_id(dispute_id)
    return source if number == 0 else derived_uuid(source, "round", number)


async def _apply_round(
    connection: AsyncConnection,
    tenant_id: UUID,
    lot_ids: list[UUID],
    source: UUID,
    status: str,
    withdrawn: int,
    returned: int,
) -> int:
    """Book one round of a dispute, in picodollars; returns what its attempts have clawed back."""
    if withdrawn:
        await transfers.book(connection, "dispute", tenant_id, "disputed", "cash", withdrawn, source)
    lost = await _booked_loss(connection, tenant_id, source)
    if withdrawn and status != "won" and lost is None:
        clawed = await _claw_back(connection, tenant_id, lot_ids, source, withdrawn)
    else:
        clawed = sum(await _attempts(connection, lot_ids, source))
    if returned:
        await transfers.book(connection, "dispute_won", tenant_id, "cash", "disputed", returned, source)
    if status == "won":
        for number in range(len(await _attempts(connection, lot_ids, source))):
            await lots.reverse_clawback(connection, lot_ids=lot_ids, source=_attempt_source(source, number))
        if lost is not None and (rest := withdrawn - clawed) > 0:  # won on appeal: the loss is none any more
            back = derived_uuid(source, "appeal")
            await transfers.book(
                connection, "dispute_lost", tenant_id, "disputed", "dispute_losses", rest, back
            )
    elif status == "lost" and lost is None and (rest := withdrawn - returned - clawed) > 0:
        await transfers.book(
            connection, "dispute_lost", tenant_id, "dispute_losses", "disputed", rest, source
        )
    return clawed


async def claw_back_returned_credit(
    connection: AsyncConnection, tenant_id: UUID, intent: str, refund_id: UUID
) -> None:
    """After a failed refund made a new lot, claw the disputed amount of its payment back from that lot too.

    For a lost dispute the amount clawed back reduces the booked loss. `intent` is the payment intent of the refund.
    """
    rows = await connection.execute(
        text(
            "SELECT id, status, withdrawn_cents, returned_cents FROM stripe_disputes WHERE payment_intent = :pi "
            "AND tenant_id = :tenant AND withdrawn_cents > returned_cents AND status <> 'won' ORDER BY id FOR UPDATE"
        ),
        {"pi": intent, "tenant": tenant_id},
    )
    lot_ids = await lots.lots_of(connection, tenant_id, intent)
    for row in rows.all():
        source = await _last_round(connection, tenant_id, row.id)
        withdrawn = int(row.withdrawn_cents - row.returned_cents) * PICO_PER_CENT
        before = sum(await _attempts(connection, lot_ids, source))
        clawed = await _claw_back(connection, tenant_id, lot_ids, source, withdrawn)
        if clawed > before and row.status == "lost":
            back = derived_uuid(source, "recovered", refund_id)
            await transfers.book(
                connection, "dispute_lost", tenant_id, "disputed", "dispute_losses", clawed - before, back
            )
        await connection.execute(
            text("UPDATE stripe_disputes SET clawed_back = :clawed WHERE id = :id AND tenant_id = :tenant"),
            {"clawed": clawed, "id": row.id, "tenant": tenant_id},
        )


async def _last_round(connection: AsyncConnection, tenant_id: UUID, dispute_id: str) -> UUID:
    """The ledger source of the newest round of a dispute, the first that was not won."""
    number = 0
    while await connection.scalar(
        text(
            "SELECT count(*) FROM ledger_transfers WHERE source_id = :source AND kind = 'dispute_won' "
            "AND tenant_id = :tenant"
        ),
        {"source": _round_source(dispute_id, number), "tenant": tenant_id},
    ):
        number += 1
    return _round_source(dispute_id, number)


async def _claw_back(
    connection: AsyncConnection, tenant_id: UUID, lot_ids: list[UUID], source: UUID, withdrawn: int
) -> int:
    """Claw back the remaining credit of the purchase, up to `withdrawn`; returns the picodollars of all attempts.

    Held credit cannot be taken, so each update of the dispute makes another attempt with what became free.
    """
    before = await _attempts(connection, lot_ids, source)
    clawed = sum(before)
    if (
        not lot_ids
        or clawed >= withdrawn
        or (before and not await _has_free_credit(connection, tenant_id, lot_ids))
    ):
        return clawed
    again = _attempt_source(source, len(before))
    return clawed + await lots.debit_lots(
        connection, lot_ids=lot_ids, amount=withdrawn - clawed, kind="clawback", source=again
    )


def _attempt_source(source: UUID, number: int) -> UUID:
    """The ledger source of a dispute's clawback attempt by its number, from 0."""
    return source if number == 0 else derived_uuid(source, "again", number)


async def _attempts(connection: AsyncConnection, lot_ids: list[UUID], source: UUID) -> list[int]:
    """Picodollars that each attempt has clawed back."""
    found: list[int] = []
    while (
        taken := await lots.clawed_back(
            connection, lot_ids=lot_ids, source=_attempt_source(source, len(found))
        )
    ) is not None:
        found.append(taken)
    return found


async def _has_free_credit(connection: AsyncConnection, tenant_id: UUID, lot_ids: list[UUID]) -> bool:
    """Whether the lots have remaining credit that no request holds. Locks the account."""
    await credits.allocate(connection, tenant_id)
    found = await connection.execute(
        text(
            "SELECT least(sum(g.remaining), max(b.balance - b.held)) > 0 FROM credit_grants g "
            "JOIN billing_accounts b ON b.tenant_id = g.tenant_id "
            "WHERE g.id = ANY(CAST(:lots AS uuid[])) AND g.tenant_id = :tenant"
        ),
        {"lots": lot_ids, "tenant": tenant_id},
    )
    return bool(found.scalar_one())


async def _booked_loss(connection: AsyncConnection, tenant_id: UUID, source: UUID) -> int | None:
    """Picodollars booked as lost; None = nothing yet."""
    found = await connection.execute(
        text(
            "SELECT amount FROM ledger_transfers WHERE source_id = :source AND kind = 'dispute_lost' "
            "AND tenant_id = :tenant"
        ),
        {"source": source, "tenant": tenant_id},
    )
    amount = found.scalar_one_or_none()
    return None if amount is None else int(amount)


async def _store(
    connection: AsyncConnection, payment: Row[Any], dispute: Dispute, intent: str, clawed: int
) -> None:
    """Store the dispute for display. When its status changed, notify operators and disable automatic top-up.

    A status in our favour (CLOSED_FOR_US) leaves the rule as the customer has set it.
    """
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
            "withdrawn": sum(-move.cents for move in dispute.balance_transactions if move.cents < 0),
            "returned": sum(move.cents for move in dispute.balance_transactions if move.cents > 0),
            "fee": sum(move.fee_cents for move in dispute.balance_transactions),
            "clawed": clawed,
            "reason": dispute.reason,
            "status": dispute.status,
            "due": due,
            "opened": dispute.created_at,
        },
    )
    if known == dispute.status:
        return
    if dispute.status not in CLOSED_FOR_US:
        reason = f"The payment {intent} is disputed."
        await auto_topup_rules.disable(connection, payment.tenant_id, reason)
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
