"""Credit notes whose invoice is paid, wholly or in part, between their issue and their push."""

from datetime import date
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from billing.payments import push_credit_notes
from billing.payments.push_credit_notes import Split, split
from billing.payments.stripe_types import CreditNote, Invoice
from core.db import Database
from core.ids import uuid7
from tests.integration.billing.payments.scenes import (
    MONTH,
    credit_note,
    invoiced,
    opened,
    pay_part,
    save_card,
    settled,
    state,
)
from tests.integration.billing.payments.support import (
    books,
    drain,
    gateway_to,
    one,
    postpaid,
    send,
)
from tests.support.stripe_sim import FakeStripe


async def wishes_refund(database: Database, note_id: UUID) -> None:
    """The note's correction says that what was paid is paid back."""
    correction = uuid7()
    async with database.engine.begin() as connection:  # as the owner: no role may change a note's correction
        await connection.execute(
            text(
                "INSERT INTO corrections (id, month, until, spec, reason, approval_id, delta, requested_by) "
                "VALUES (:id, :month, now(), '{\"rates\": [], \"refund\": true}', 'r', :id, 0, 'ann')"
            ),
            {"id": correction, "month": MONTH},
        )
        await connection.execute(
            text("UPDATE credit_notes SET correction_id = :correction WHERE id = :id"),
            {"correction": correction, "id": note_id},
        )


async def note_parts(database: Database) -> tuple[str, int, int]:
    row = await one(database, "SELECT pays, balance_cents, refund_cents FROM credit_notes")
    return row.pays, row.balance_cents, row.refund_cents


@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("paid", "refund", "parts", "left"),
    [
        (3000, False, ("balance", 1000, 0), -1000),
        (3000, True, ("refund", 0, 1000), 0),
        (2500, False, ("balance", 500, 0), -500),
        (2500, True, ("refund", 0, 500), 0),
        (500, True, ("invoice", 0, 0), 1500),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["booked", "unbooked"])
async def test_a_note_that_races_a_payment_pays_by_what_stripe_has(
    database: Database,
    fake_stripe: FakeStripe,
    paid: int,
    refund: bool,
    parts: tuple[str, int, int],
    left: int,
    known: bool,
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id, invoice_id, stripe_id = await opened(database, gateway, 3000)
        note_id = await credit_note(database, invoice_id, tenant_id, 1000, "invoice")
        if refund:
            await wishes_refund(database, note_id)
        pay_part(fake_stripe, stripe_id, paid)
        if known:
            await drain(database, gateway)
        await settled(database, gateway)
        assert await note_parts(database) == parts
        assert (await books(database)).get("invoiced", 0) == left
        assert (await gateway.invoice(stripe_id)).status == ("open" if left > 0 else "paid")
        assert (await state(database)).status == ("open" if left > 0 else "paid")


async def test_a_payment_between_the_look_and_the_note_is_seen_by_the_next_try(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id, invoice_id, stripe_id = await opened(database, gateway, 3000)
        await credit_note(database, invoice_id, tenant_id, 1000, "invoice")
        create = gateway.create_credit_note
        paid: list[str] = []

        async def late(params: dict[str, Any], key: str) -> CreditNote:
            if not paid:
                paid.append(key)
                pay_part(fake_stripe, stripe_id, 3000)
            return await create(params, key)

        monkeypatch.setattr(gateway, "create_credit_note", late)
        await settled(database, gateway)
        assert await note_parts(database) == ("balance", 1000, 0)
        assert len(await gateway.credit_notes(stripe_id)) == 1


async def test_a_refund_is_at_most_what_the_card_was_charged(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        first = await invoiced(database, tenant_id, [5000], automatic=True, month=date(2026, 9, 1))
        await send(database, gateway)
        fake_stripe.advance(2 * 3600)
        await drain(database, gateway)
        await credit_note(database, first, tenant_id, 4000, "balance")
        await send(database, gateway)
        second = await invoiced(database, tenant_id, [5000], automatic=True)
        await send(database, gateway)
        fake_stripe.advance(2 * 3600)
        await drain(database, gateway)
        note_id = await credit_note(database, second, tenant_id, 3000, "refund")
        await settled(database, gateway)
        parts = await one(
            database, f"SELECT pays, balance_cents, refund_cents FROM credit_notes WHERE id = '{note_id}'"
        )
        assert tuple(parts) == ("refund", 2000, 1000)
        assert (await books(database))["invoiced"] == -2000
        (customer,) = fake_stripe.client().v1.customers.list().data
        assert customer.balance == -2000


async def test_a_note_pays_back_no_more_than_is_left_of_the_payment(
    database: Database, fake_stripe: FakeStripe
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id, invoice_id, stripe_id = await opened(database, gateway, 3000)
        pay_part(fake_stripe, stripe_id, 3000)
        await drain(database, gateway)
        payments = await gateway.invoice_payments(invoice_id=stripe_id)
        [intent] = [str(made.payment_intent) for _, made in payments if made.status == "paid"]
        fake_stripe.client().v1.refunds.create({"payment_intent": intent, "amount": 2600})
        await credit_note(database, invoice_id, tenant_id, 1000, "refund")
        await send(database, gateway)
        assert await note_parts(database) == ("refund", 600, 400)


async def test_a_refund_whose_event_comes_before_the_push_is_stored_is_booked_once(
    database: Database, fake_stripe: FakeStripe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_to(fake_stripe) as gateway:
        tenant_id, invoice_id, stripe_id = await opened(database, gateway, 3000)
        pay_part(fake_stripe, stripe_id, 3000)
        await drain(database, gateway)
        note_id = await credit_note(database, invoice_id, tenant_id, 1000, "refund")

        async def crash(*_: Any) -> None:
            raise RuntimeError("the process died here")

        with monkeypatch.context() as patched:
            patched.setattr(push_credit_notes, "_store", crash)
            with pytest.raises(RuntimeError):
                await push_credit_notes.push_credit_note(database, gateway, note_id)
        await drain(database, gateway)
        await settled(database, gateway)
        assert await note_parts(database) == ("refund", 0, 1000)
        assert (await books(database)).get("invoiced", 0) == 0
        refund = await one(database, "SELECT credit_note_id FROM stripe_refunds")
        assert refund.credit_note_id == note_id


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("balance", [0, -700, -5000])
async def test_the_note_of_an_invoice_paid_in_full_by_credit_before_its_push_does_not_wait(
    database: Database, fake_stripe: FakeStripe, card: bool, balance: int
) -> None:
    tenant_id = await postpaid(database)
    async with gateway_to(fake_stripe) as gateway:
        await save_card(database, gateway, fake_stripe, tenant_id, "pm_card_visa")
        if balance:
            (customer,) = fake_stripe.client().v1.customers.list().data
            fake_stripe.client().v1.customers.balance_transactions.create(
                customer.id, {"amount": balance, "currency": "usd"}
            )
        invoice_id = await invoiced(database, tenant_id, [3000], automatic=card)
        await credit_note(database, invoice_id, tenant_id, 3000, "invoice")
        async with database.system() as connection:
            await connection.execute(text("UPDATE invoices SET status = 'paid', paid_at = now()"))
        await send(database, gateway)
        fake_stripe.advance(86_400)
        await settled(database, gateway)
        theirs = fake_stripe.client().v1.invoices.retrieve((await state(database)).stripe_invoice_id)
        assert (theirs.status, theirs.amount_paid, theirs.auto_advance) == ("paid", 0, False)
        assert theirs.collection_method == "send_invoice", "no card is charged"
        kinds = {event.type for event in fake_stripe.client().v1.events.list().data}
        assert "invoice.sent" not in kinds
        assert fake_stripe.client().v1.charges.list().data == []
        (customer,) = fake_stripe.client().v1.customers.list().data
        assert customer.balance == balance
        assert (await books(database)).get("invoiced", 0) == 0


async def test_a_note_whose_invoice_was_written_off_before_both_were_sent_is_done(
    database: Database, fake_stripe: FakeStripe
) -> None:
    tenant_id = await postpaid(database)
    invoice_id = await invoiced(database, tenant_id, [3000])
    await credit_note(database, invoice_id, tenant_id, 1000, "invoice")
    async with database.system() as connection:
        await connection.execute(text("UPDATE invoices SET status = 'uncollectible'"))
    async with gateway_to(fake_stripe) as gateway:
        await settled(database, gateway)


@pytest.mark.parametrize(
    ("status", "remaining", "refundable", "expected"),
    [
        ("open", 900, 0, Split(900, 0, 100)),
        ("open", 900, 40, Split(900, 40, 60)),
        ("open", 2000, 500, Split(1000, 0, 0)),
        ("uncollectible", 300, 0, Split(300, 0, 700)),
        ("paid", 0, 5000, Split(0, 1000, 0)),
        ("paid", 0, 0, Split(0, 0, 1000)),
    ],
)
def test_a_note_is_divided_as_stripe_divides_it(
    status: str, remaining: int, refundable: int, expected: Split
) -> None:
    invoice = Invoice(
        id="in_1", status=status, customer="cus_1", currency="usd", number=None, total_cents=3000, paid_cents=0,
        remaining_cents=remaining, credited_cents=0, applied_cents=0, mailed=True, metadata={}, paid_at=None,
        attempts=0, url=None,
    )  # fmt: skip
    found = split(1000, invoice, refundable)
    assert found == expected
    assert found.lowers + found.refund + found.balance == 1000
