"""What the tests of payments begin with: invoices, credit notes, refunds and disputes, here and in Stripe."""

from datetime import date
from typing import Any
from uuid import UUID

from sqlalchemy import text

from billing.ledger import transfers
from billing.payments import refund_requests, stripe_reconciliation
from billing.payments.customers import ensure_customer, refresh_cards
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.ids import uuid7
from core.money import PICO_PER_CENT
from core.outbox import enqueue
from tests.integration.billing.payments.support import books, drain, equals_stripe, one, postpaid, send
from tests.support.stripe_sim import FakeStripe

MONTH = date(2026, 10, 1)
"""The month of invoices."""


async def invoiced(
    database: Database,
    tenant_id: UUID,
    cents: list[int],
    *,
    due_days: int = 14,
    automatic: bool = False,
    month: date = MONTH,
) -> UUID:
    """An open invoice with these lines, booked as the invoice run books it."""
    invoice_id, total = uuid7(), sum(cents)
    async with database.system() as connection:
        await transfers.book(
            connection, "commit", tenant_id, "receivable", "revenue", total * PICO_PER_CENT, uuid7()
        )
        await connection.execute(
            text(
                "INSERT INTO invoices (id, tenant_id, month, kind, status, exact, total_cents, number, due_at, "
                "finalized_at, automatic_payment) VALUES (:id, :tenant, :month, 'postpaid', 'open', :exact, :cents, "
                ":number, now() + make_interval(days => :days), now(), :automatic)"
            ),
            {
                "id": invoice_id,
                "tenant": tenant_id,
                "month": month,
                "exact": total * PICO_PER_CENT,
                "cents": total,
                "number": f"T-{str(invoice_id)[-8:]}",
                "days": due_days,
                "automatic": automatic,
            },
        )
        for position, amount in enumerate(cents):
            await connection.execute(
                text(
                    "INSERT INTO invoice_lines (id, invoice_id, tenant_id, position, kind, model, class, tier, "
                    "tokens, exact, cents, description) VALUES (:id, :invoice, :tenant, :at, 'adjustment', 'm', "
                    "'', 'standard', 0, :exact, :cents, 'Line')"
                ),
                {
                    "id": uuid7(),
                    "invoice": invoice_id,
                    "tenant": tenant_id,
                    "at": position,
                    "exact": amount * PICO_PER_CENT,
                    "cents": amount,
                },
            )
        await transfers.book(
            connection, "invoice", tenant_id, "invoiced", "receivable", total * PICO_PER_CENT, invoice_id
        )
        await enqueue(connection, "stripe.push_invoice", {"invoice_id": str(invoice_id)})
    return invoice_id


async def credit_note(
    database: Database,
    invoice_id: UUID,
    tenant_id: UUID,
    cents: int,
    pays: str,
    lines: dict[int, int] | None = None,
) -> UUID:
    """A credit note over `cents`; `lines` maps positions of invoice lines to their credited cents."""
    note_id = uuid7()
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO credit_notes (id, invoice_id, tenant_id, reason, exact, cents, pays, adjustment_id) "
                "VALUES (:id, :invoice, :tenant, 'test', :exact, :cents, :pays, :id)"
            ),
            {
                "id": note_id,
                "invoice": invoice_id,
                "tenant": tenant_id,
                "exact": cents * PICO_PER_CENT,
                "cents": cents,
                "pays": pays,
            },
        )
        for position, part in (lines or {}).items():
            await connection.execute(
                text(
                    "INSERT INTO credit_note_lines (id, credit_note_id, tenant_id, invoice_line_id, exact, cents, "
                    "description) SELECT :id, :note, tenant_id, id, :exact, :cents, 'Credit' FROM invoice_lines "
                    "WHERE invoice_id = :invoice AND position = :at"
                ),
                {
                    "id": uuid7(),
                    "note": note_id,
                    "exact": part * PICO_PER_CENT,
                    "cents": part,
                    "invoice": invoice_id,
                    "at": position,
                },
            )
        amount = cents * PICO_PER_CENT
        await transfers.book(connection, "adjustment", tenant_id, "revenue", "receivable", amount, note_id)
        await transfers.book(connection, "credit_note", tenant_id, "receivable", "invoiced", amount, note_id)
        await enqueue(connection, "stripe.push_credit_note", {"credit_note_id": str(note_id)})
    return note_id


async def state(database: Database) -> Any:
    """Status and Stripe id of the only invoice."""
    return await one(database, "SELECT status, stripe_invoice_id FROM invoices")


async def save_card(
    database: Database, gateway: StripeGateway, fake: FakeStripe, tenant_id: UUID, card: str
) -> None:
    """The customer saves a card."""
    customer = await ensure_customer(database, gateway, tenant_id)
    fake.client().v1.payment_methods.attach(card, {"customer": customer})
    await refresh_cards(database, gateway, customer)


def pay_part(fake: FakeStripe, stripe_id: str, cents: int) -> None:
    """The customer pays a part of an invoice by card."""
    stripe = fake.client().v1
    customer = str(stripe.invoices.retrieve(stripe_id).customer)
    intent = stripe.payment_intents.create(
        {
            "amount": cents,
            "currency": "usd",
            "customer": customer,
            "payment_method": "pm_card_visa",
            "confirm": True,
        }
    )
    stripe.invoices.attach_payment(stripe_id, {"payment_intent": intent.id})


async def exchange(database: Database, gateway: StripeGateway) -> None:
    """Send everything and apply Stripe's events, twice: the second time finds nothing more to do."""
    for _ in range(2):
        await send(database, gateway)
        await drain(database, gateway)


async def opened(database: Database, gateway: StripeGateway, cents: int) -> tuple[UUID, UUID, str]:
    """An organisation with an invoice that is open in Stripe."""
    tenant_id = await postpaid(database)
    invoice_id = await invoiced(database, tenant_id, [cents])
    await send(database, gateway)
    return tenant_id, invoice_id, (await state(database)).stripe_invoice_id


async def settled(database: Database, gateway: StripeGateway) -> None:
    """Send and apply everything; assert that nothing is blocked and the month equals Stripe."""
    await exchange(database, gateway)
    assert (await one(database, "SELECT count(*) AS n FROM stripe_pushes WHERE status = 'blocked'")).n == 0
    assert (await one(database, "SELECT count(*) AS n FROM outbox WHERE done_at IS NULL")).n == 0
    await equals_stripe(database, gateway)
    assert (await stripe_reconciliation.compare_month(database, gateway, MONTH)).problems == []


async def ask(
    database: Database, tenant_id: UUID, intent: str, cents: int | None, refund_id: UUID | None = None
) -> refund_requests.RequestedRefund:
    """Request a refund; `cents` None = what is left."""
    async with database.system() as connection:
        return await refund_requests.request_refund(
            connection,
            refund_id=refund_id or uuid7(),
            tenant_id=tenant_id,
            payment_intent=intent,
            cents=cents,
            reason="test",
            by="test",
        )


async def credit(database: Database, tenant_id: UUID) -> int:
    """Cents of credit that an organisation has."""
    return -(await books(database, tenant_id)).get("credit", 0)


def dispute(fake: FakeStripe, intent: str) -> str:
    """The bank disputes a payment; returns the dispute's id."""
    charge = fake.client().v1.payment_intents.retrieve(intent).latest_charge
    return str(fake.control("POST", f"/charges/{charge}/dispute")["id"])


def decide(fake: FakeStripe, dispute_id: str, ending: str) -> None:
    """The bank decides: `ending` is "winning" or "losing"."""
    fake.client().v1.disputes.update(
        dispute_id, {"evidence": {"uncategorized_text": f"{ending}_evidence"}, "submit": True}
    )
    fake.advance(86_400)
