"""The same scenarios against the local Stripe and, with STRIPE_TEST_API_KEY, against Stripe's own test mode.

`STRIPE_TEST_API_KEY=sk_test_... pytest -m stripe_live` runs the latter; a live key is refused.
"""

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import stripe

from billing.payments import auto_topup, auto_topup_rules, refund_requests, stripe_books, stripe_differences
from billing.payments.book_updates import apply_update
from billing.payments.customers import ensure_customer, refresh_cards, set_tax_id
from billing.payments.invoices import prepare_invoice
from billing.payments.payments import prepare_payment
from billing.payments.stripe_compared import CallBudget
from billing.payments.stripe_gateway import StripeGateway
from core.db import Database
from core.ids import uuid7
from tests.integration.billing.payments.scenes import MONTH, invoiced
from tests.integration.billing.payments.support import books, one, postpaid, prepaid, send, sound
from tests.support.stripe_sim import FakeStripe

KEY = "STRIPE_TEST_API_KEY"


class Either(NamedTuple):
    """One of both: our gateway, and the official client that acts as the customer."""

    gateway: StripeGateway
    client: stripe.StripeClient


def live_key() -> str:
    """The test mode's key. A key that could move money is refused."""
    key = os.environ.get(KEY, "")
    if not key:
        pytest.skip(f"{KEY} is not set")
    if not key.startswith("sk_test_"):
        pytest.fail(f"{KEY} is no key of the test mode (sk_test_...): nothing was called")
    return key


@pytest.fixture(
    params=["sim", pytest.param("live", marks=[pytest.mark.stripe_live, pytest.mark.enable_socket])]
)
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Either]:
    """The local Stripe or Stripe's test mode."""
    if request.param == "live":
        key = live_key()
        gateway, client = StripeGateway(key), stripe.StripeClient(key)
    else:
        fake: FakeStripe = request.getfixturevalue("fake_stripe")
        gateway, client = StripeGateway(fake.api_key, fake.url), fake.client()
    try:
        yield Either(gateway, client)
    finally:
        await gateway.close()


async def with_card(database: Database, either: Either, tenant_id: Any) -> str:
    customer = await ensure_customer(database, either.gateway, tenant_id)
    either.client.v1.payment_methods.attach("pm_card_visa", {"customer": customer})
    assert await refresh_cards(database, either.gateway, customer) == 1
    return customer


def test_a_live_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk_live_x")
    with pytest.raises(pytest.fail.Exception):
        live_key()


async def test_a_customer_is_made_once_with_its_tax_id(database: Database, either: Either) -> None:
    tenant_id = await prepaid(database)
    first = await ensure_customer(database, either.gateway, tenant_id)
    assert await ensure_customer(database, either.gateway, tenant_id) == first
    await set_tax_id(database, either.gateway, tenant_id, "eu_vat", "DE123456789")
    assert [each[1:] for each in await either.gateway.tax_ids(first)] == [("eu_vat", "DE123456789")]


async def test_a_saved_card_buys_credit_and_gets_it_back(database: Database, either: Either) -> None:
    tenant_id = await prepaid(database)
    await with_card(database, either, tenant_id)
    async with database.system() as connection:
        await auto_topup_rules.set_rule(
            connection,
            tenant_id=tenant_id,
            enabled=True,
            threshold=10**12,
            cents=2500,
            monthly_cap_cents=2500,
            by="t",
        )
    assert await auto_topup.run(database, either.gateway) == 1
    intent = (await one(database, "SELECT payment_intent FROM stripe_topups")).payment_intent
    await apply_update(database, await prepare_payment(either.gateway, intent))
    assert (await books(database))["credit"] == -2500
    async with database.system() as connection:
        await refund_requests.request_refund(
            connection,
            refund_id=uuid7(),
            tenant_id=tenant_id,
            payment_intent=intent,
            cents=None,
            reason="test",
            by="t",
        )
    await send(database, either.gateway)
    assert (await one(database, "SELECT status FROM stripe_refunds")).status in ("succeeded", "pending")
    assert [each.cents for each in await either.gateway.refunds_of(intent)] == [2500]
    found = await books(database)
    assert (found.get("credit", 0), found["cash"]) == (0, -found["fees"])
    await sound(database)


async def test_an_invoice_is_sent_line_by_line_and_paid(database: Database, either: Either) -> None:
    tenant_id = await postpaid(database)
    await with_card(database, either, tenant_id)
    await invoiced(database, tenant_id, [1234, 0, 5678, -12])
    await send(database, either.gateway)
    stripe_id = (await one(database, "SELECT stripe_invoice_id FROM invoices")).stripe_invoice_id
    assert stripe_id is not None
    with suppress(stripe.InvalidRequestError):  # Stripe may have charged the card already
        either.client.v1.invoices.pay(stripe_id)
    await apply_update(database, await prepare_invoice(either.gateway, stripe_id))
    assert (await one(database, "SELECT status FROM invoices")).status == "paid"
    found = await books(database)
    assert (found.get("invoiced", 0), found["cash"]) == (0, 6900 - found["fees"])
    async with database.read() as connection:
        ours = await stripe_books.read_books(connection, MONTH, CallBudget(), only_changed=False)
    problems: list[str] = []
    assert await stripe_differences.compare_invoices(either.gateway, ours, problems) == (6900, 6900)
    assert problems == []
