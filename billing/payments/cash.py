"""Stripe's balance transactions in our books: each is recorded once in stripe_cash, and its fee is booked."""

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import transfers
from billing.payments.stripe_types import BalanceTransaction
from core.ids import derived_uuid
from core.money import PICO_PER_CENT


def source_id(object_id: str, *more: str) -> UUID:
    """The ledger source id of a Stripe object, or of a part of it that `more` names."""
    return derived_uuid("stripe", object_id, *more)


async def record_transaction(
    connection: AsyncConnection,
    tenant_id: UUID,
    kind: str,
    object_id: str,
    transaction: BalanceTransaction | None,
) -> None:
    """Record a balance transaction of a Stripe object and book its fee; once per transaction id.

    `kind` is payment, refund, refund_failure or dispute. `transaction` None does nothing: Stripe adds it to the object
    later and sends another event.
    """
    if transaction is None:
        return
    new = await connection.execute(
        text(
            "INSERT INTO stripe_cash (txn_id, tenant_id, kind, object_id, cents, fee_cents, at) "
            "VALUES (:id, :tenant, :kind, :object, :cents, :fee, to_timestamp(:at)) ON CONFLICT DO NOTHING "
            "RETURNING txn_id"
        ),
        {
            "id": transaction.id,
            "tenant": tenant_id,
            "kind": kind,
            "object": object_id,
            "cents": transaction.cents,
            "fee": transaction.fee_cents,
            "at": transaction.created_at,
        },
    )
    if new.one_or_none() is None or not transaction.fee_cents:
        return
    name = "dispute_fee" if kind == "dispute" else "fee"
    debit, credit = ("fees", "cash") if transaction.fee_cents > 0 else ("cash", "fees")
    await transfers.book(
        connection,
        name,
        tenant_id,
        debit,
        credit,
        abs(transaction.fee_cents) * PICO_PER_CENT,
        source_id(transaction.id),
    )
