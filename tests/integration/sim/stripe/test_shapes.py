"""Every operation through the official client; every answer and every webhook held to the official field lists."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import stripe

from sim.stripe.account import ROUTES
from tests.support.stripe_shapes import problems
from tests.support.stripe_sim import API_KEY, FakeStripe, running

EVENT_NAME = "tokens"


class Recorder(stripe.RequestsClient):  # type: ignore[misc]  # the package does not export it typed
    """The package's own HTTP client, which remembers what went over the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, Any]] = []

    def request(self, method: str, url: str, headers: Any, post_data: Any = None) -> Any:
        body, status, answered = super().request(method, url, headers, post_data)
        assert status == 200, body
        assert answered["Request-Id"].startswith("req_")
        self.seen.append((method.upper(), url.partition("?")[0], json.loads(body)))
        return body, status, answered


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[FakeStripe, Recorder]]:
    """A platform's whole life with Stripe, once, recorded."""
    recorder = Recorder()
    with running() as fake:
        addresses: Any = {"api": fake.url, "meter_events": fake.url}
        client = stripe.StripeClient(API_KEY, base_addresses=addresses, http_client=recorder)
        customer = people(client)
        pay(fake, client, customer)
        give_back(fake, client, customer)
        bill(client, customer)
        credit(client, customer)
        meter(fake, client, recorder, customer)
        events(client)
        client.v1.customers.delete(customer)
        yield fake, recorder


def people(client: stripe.StripeClient) -> str:
    address = {"line1": "1 Main St", "country": "DE"}
    found = client.v1.customers.create(
        {"name": "Acme", "email": "a@acme.test", "address": address, "metadata": {"tenant": "t1"}}
    )
    client.v1.customers.update(found.id, {"description": "x", "metadata": {"tenant": ""}})
    tax = client.v1.customers.tax_ids.create(found.id, {"type": "eu_vat", "value": "DE123456789"})
    client.v1.customers.tax_ids.list(found.id)
    client.v1.customers.tax_ids.retrieve(found.id, tax.id)
    client.v1.customers.tax_ids.delete(found.id, tax.id)
    moved = client.v1.customers.balance_transactions.create(found.id, {"amount": -5, "currency": "usd"})
    client.v1.customers.balance_transactions.list(found.id)
    client.v1.customers.balance_transactions.retrieve(found.id, moved.id)
    client.v1.customers.list({"email": "a@acme.test"})
    client.v1.customers.retrieve(found.id, {"expand": ["tax_ids"]})
    return found.id


def pay(fake: FakeStripe, client: stripe.StripeClient, customer: str) -> None:
    product = client.v1.products.create({"name": "Credit"})
    client.v1.products.update(product.id, {"description": "prepaid"})
    client.v1.products.retrieve(product.id)
    client.v1.products.list()
    price = client.v1.prices.create({"currency": "usd", "unit_amount": 2500, "product": product.id})
    client.v1.prices.retrieve(price.id)
    client.v1.prices.list({"product": product.id})
    session = client.v1.checkout.sessions.create(
        {
            "mode": "payment", "customer": customer, "success_url": "https://penstock.test/ok",
            "line_items": [{"price": price.id, "quantity": 2}],
            "payment_intent_data": {"setup_future_usage": "off_session", "metadata": {"lot": "1"}},
        }
    )  # fmt: skip
    client.v1.checkout.sessions.line_items.list(session.id)
    assert fake.pay(session.id).status_code == 303
    paid = client.v1.checkout.sessions.retrieve(
        session.id, {"expand": ["payment_intent.latest_charge.balance_transaction", "line_items"]}
    )
    assert paid.payment_status == "paid"
    client.v1.checkout.sessions.list({"customer": customer})
    other = client.v1.checkout.sessions.create(
        {"mode": "setup", "customer": customer, "success_url": "https://x.test"}
    )
    client.v1.checkout.sessions.expire(other.id)
    [method] = client.v1.customers.payment_methods.list(customer).data
    client.v1.customers.payment_methods.retrieve(customer, method.id)
    client.v1.payment_methods.retrieve(method.id)
    client.v1.payment_methods.list({"customer": customer})
    kept = client.v1.payment_methods.attach("pm_card_mastercard", {"customer": customer})
    client.v1.payment_methods.detach(kept.id)
    client.v1.customers.update(customer, {"invoice_settings": {"default_payment_method": method.id}})
    setup = client.v1.setup_intents.create({"customer": customer})
    client.v1.setup_intents.confirm(setup.id, {"payment_method": "pm_card_visa"})
    client.v1.setup_intents.retrieve(setup.id, {"expand": ["payment_method"]})
    client.v1.setup_intents.list({"customer": customer})
    client.v1.setup_intents.cancel(client.v1.setup_intents.create({"customer": customer}).id)
    intent = client.v1.payment_intents.create({"amount": 500, "currency": "usd", "customer": customer})
    client.v1.payment_intents.update(intent.id, {"amount": 600, "metadata": {"a": "b"}})
    client.v1.payment_intents.confirm(intent.id, {"payment_method": method.id, "off_session": True})
    unpaid = client.v1.payment_intents.create({"amount": 500, "currency": "usd"})
    client.v1.payment_intents.cancel(unpaid.id, {"cancellation_reason": "abandoned"})
    client.v1.payment_intents.retrieve(intent.id)
    client.v1.payment_intents.list({"customer": customer})


def give_back(fake: FakeStripe, client: stripe.StripeClient, customer: str) -> None:
    charge = client.v1.charges.list({"customer": customer}).data[0]
    client.v1.charges.update(charge.id, {"description": "top-up"})
    refund = client.v1.refunds.create({"charge": charge.id, "amount": 100, "reason": "requested_by_customer"})
    client.v1.refunds.update(refund.id, {"metadata": {"why": "asked"}})
    client.v1.refunds.retrieve(refund.id, {"expand": ["balance_transaction", "charge"]})
    client.v1.refunds.list({"charge": charge.id})
    fake.control("POST", f"/refunds/{refund.id}/fail")
    client.v1.charges.retrieve(charge.id, {"expand": ["refunds"]})
    client.raw_request("get", f"/v1/charges/{charge.id}/refunds")
    client.v1.balance_transactions.list()
    client.v1.balance_transactions.retrieve(str(charge.balance_transaction), {"expand": ["source"]})
    client.v1.balance.retrieve()
    for closing in (False, True):
        intent = client.v1.payment_intents.create(
            {"amount": 900, "currency": "usd", "payment_method": "pm_card_createDispute", "confirm": True}
        )
        [dispute] = client.v1.disputes.list({"payment_intent": intent.id}).data
        if closing:
            client.v1.disputes.close(dispute.id)
        else:
            client.v1.disputes.update(dispute.id, {"evidence": {"uncategorized_text": "winning_evidence"}})
        client.v1.disputes.retrieve(dispute.id)


def bill(client: stripe.StripeClient, customer: str) -> None:
    item = client.v1.invoice_items.create({"customer": customer, "amount": 700, "currency": "usd"})
    client.v1.invoice_items.update(item.id, {"amount": 800, "description": "tokens"})
    client.v1.invoice_items.retrieve(item.id)
    client.v1.invoice_items.list({"pending": True})
    gone = client.v1.invoice_items.create({"customer": customer, "amount": 1, "currency": "usd"})
    client.v1.invoice_items.delete(gone.id)
    drafts = [
        client.v1.invoices.create(
            {
                "customer": customer, "pending_invoice_items_behavior": "include" if number == 0 else "exclude",
                "collection_method": "send_invoice", "days_until_due": 30, "metadata": {"number": str(number)},
            }
        ).id
        for number in range(5)
    ]  # fmt: skip
    client.v1.invoices.delete(drafts.pop())
    for draft in drafts:
        lines: Any = [{"amount": 1000 + n, "description": f"line {n}"} for n in range(12)]
        client.v1.invoices.add_lines(draft, {"lines": lines})
        client.v1.invoices.update(draft, {"description": "usage"})
    sent, paid, void, lost = drafts
    client.v1.invoices.send_invoice(sent)
    client.v1.invoices.line_items.list(sent, {"limit": 100})
    for draft in (paid, void, lost):
        client.v1.invoices.finalize_invoice(draft)
    client.v1.invoices.pay(paid)
    client.v1.invoices.void_invoice(void)
    part = client.v1.payment_intents.create(
        {
            "amount": 900,
            "currency": "usd",
            "customer": customer,
            "payment_method": "pm_card_visa",
            "confirm": True,
        }
    )
    client.v1.invoices.attach_payment(lost, {"payment_intent": part.id})
    client.v1.invoices.mark_uncollectible(lost)
    client.v1.invoices.retrieve(paid, {"expand": ["payments.data.payment.payment_intent", "customer"]})
    client.v1.invoices.list({"status": "paid"})
    [payment] = client.v1.invoice_payments.list({"invoice": paid}).data
    client.v1.invoice_payments.retrieve(payment.id)


def credit(client: stripe.StripeClient, customer: str) -> None:
    [paid] = client.v1.invoices.list({"customer": customer, "status": "paid"}).data
    [opened] = client.v1.invoices.list({"customer": customer, "status": "open"}).data
    line = paid.lines.data[0]
    given: Any = {"type": "invoice_line_item", "invoice_line_item": line.id, "amount": 300}
    client.v1.credit_notes.preview({"invoice": paid.id, "lines": [given], "refund_amount": 300})
    client.v1.credit_notes.preview_lines.list({"invoice": paid.id, "lines": [given], "refund_amount": 300})
    note = client.v1.credit_notes.create(
        {"invoice": paid.id, "lines": [given], "refund_amount": 200, "credit_amount": 100}
    )
    client.v1.credit_notes.update(note.id, {"memo": "sorry"})
    client.v1.credit_notes.retrieve(note.id, {"expand": ["refunds.refund", "customer_balance_transaction"]})
    client.v1.credit_notes.line_items.list(note.id)
    client.v1.credit_notes.list({"invoice": paid.id})
    custom: Any = {
        "type": "custom_line_item",
        "description": "late",
        "quantity": 2,
        "unit_amount_decimal": "10.5",
    }
    before = client.v1.credit_notes.create({"invoice": opened.id, "lines": [custom]})
    client.v1.credit_notes.void_credit_note(before.id)


def meter(fake: FakeStripe, client: stripe.StripeClient, recorder: Recorder, customer: str) -> None:
    found = client.v1.billing.meters.create(
        {
            "display_name": "Tokens", "event_name": EVENT_NAME, "default_aggregation": {"formula": "sum"},
            "customer_mapping": {"type": "by_id", "event_payload_key": "stripe_customer_id"},
            "value_settings": {"event_payload_key": "value"},
        }
    )  # fmt: skip
    client.v1.billing.meters.update(found.id, {"display_name": "Model tokens"})
    client.v1.billing.meters.retrieve(found.id)
    client.v1.billing.meters.list({"status": "active"})
    hour = fake.sim.now() // 3600 * 3600
    payload = {"stripe_customer_id": customer, "value": "12"}
    client.v1.billing.meter_events.create(
        {"event_name": EVENT_NAME, "payload": payload, "identifier": "one", "timestamp": hour}
    )
    client.v2.billing.meter_events.create({"event_name": EVENT_NAME, "payload": payload, "identifier": "two"})
    session = client.v2.billing.meter_event_session.create()
    addresses: Any = {"api": fake.url, "meter_events": fake.url}
    stream = stripe.StripeClient(session.authentication_token, base_addresses=addresses, http_client=recorder)
    stream.v2.billing.meter_event_stream.create({"events": [{"event_name": EVENT_NAME, "payload": payload}]})
    client.v1.billing.meter_event_adjustments.create(
        {"event_name": EVENT_NAME, "type": "cancel", "cancel": {"identifier": "one"}}
    )
    client.v2.billing.meter_event_adjustments.create(
        {"event_name": EVENT_NAME, "type": "cancel", "cancel": {"identifier": "two"}}
    )
    client.v1.billing.meters.event_summaries.list(
        found.id,
        {"customer": customer, "start_time": hour, "end_time": hour + 7200, "value_grouping_window": "hour"},
    )
    client.v1.billing.meters.deactivate(found.id)
    client.v1.billing.meters.reactivate(found.id)


def events(client: stripe.StripeClient) -> None:
    endpoint = client.v1.webhook_endpoints.create(
        {"url": "http://127.0.0.1:9/none", "enabled_events": ["payout.paid"]}
    )
    client.v1.webhook_endpoints.update(endpoint.id, {"disabled": True})
    client.v1.webhook_endpoints.retrieve(endpoint.id)
    client.v1.webhook_endpoints.list()
    client.v1.webhook_endpoints.delete(endpoint.id)
    newest = client.v1.events.list({"limit": 100}).data[0]
    client.v1.events.retrieve(newest.id)


def test_every_answer_has_the_official_shape(played: tuple[FakeStripe, Recorder]) -> None:
    _, recorder = played
    wrong = {
        f"{method} {url.partition('/v')[2]}: {problem}"
        for method, url, body in recorder.seen
        if body != {}  # the stream answers nothing
        for problem in problems(body)
    }
    assert sorted(wrong) == []
    assert len(recorder.seen) > 100


def test_every_operation_was_called(played: tuple[FakeStripe, Recorder]) -> None:
    fake, recorder = played
    called = {(method, url.removeprefix(fake.url)) for method, url, _ in recorder.seen}
    silent = [
        f"{route.method} {route.pattern.pattern}"
        for route in ROUTES
        if not any(method == route.method and route.pattern.fullmatch(path) for method, path in called)
    ]
    assert silent == []


def test_every_event_has_the_official_shape_and_type(played: tuple[FakeStripe, Recorder]) -> None:
    fake, _ = played
    seen = [fake.sim.shown(event) for event in fake.sim.store.all("event")]
    assert len({event["type"] for event in seen}) > 40
    assert sorted({f"{event['type']} {problem}" for event in seen for problem in problems(event)}) == []
    wrong = {f"{event['type']} {problem}" for event in seen for problem in problems(event["data"]["object"])}
    assert sorted(wrong) == []


def test_the_check_finds_what_is_wrong() -> None:
    good = {"object": "tax_id", "id": "txi_1", "country": "DE", "created": 1, "customer": None, "livemode": False,
            "type": "eu_vat", "value": "DE1", "verification": None, "owner": {"type": "customer"}}  # fmt: skip
    assert problems(good) == []
    assert problems(good | {"colour": "red"}) == ["tax_id.colour: no such field"]
    assert problems(good | {"created": "1"}) == ["tax_id.created: '1' is no int"]
    assert problems({name: value for name, value in good.items() if name != "value"}) == [
        "tax_id.value: missing"
    ]
    assert problems(good | {"owner": {"type": 7}}) != []
