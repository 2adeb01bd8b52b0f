"""Payments, Checkout, refunds, disputes, invoices, dunning, credit notes, meters: the rules, to the cent."""

from typing import Any

import httpx
import pytest
import stripe

from tests.support.stripe_sim import FakeStripe, running

DAY = 86_400


def session_of(client: stripe.StripeClient, customer: str, **more: Any) -> Any:
    given: Any = {
        "mode": "payment", "customer": customer, "success_url": "https://p.test/ok?s={CHECKOUT_SESSION_ID}",
        "cancel_url": "https://p.test/no",
        "line_items": [
            {"quantity": 1, "price_data": {"currency": "usd", "unit_amount": 5000, "product_data": {"name": "<b>"}}}
        ],
    }  # fmt: skip
    return client.v1.checkout.sessions.create(given | more)


def invoice_of(client: stripe.StripeClient, customer: str, cents: list[int], **given: Any) -> Any:
    draft = client.v1.invoices.create({"customer": customer, **given})
    client.v1.invoices.add_lines(
        draft.id, {"lines": [{"amount": each, "description": "tokens"} for each in cents]}
    )
    return client.v1.invoices.finalize_invoice(draft.id)


def default_card(client: stripe.StripeClient, customer: str, name: str) -> str:
    method = client.v1.payment_methods.attach(name, {"customer": customer})
    client.v1.customers.update(customer, {"invoice_settings": {"default_payment_method": method.id}})
    return method.id


# Payments


def test_a_person_pays_at_the_page(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    session = session_of(client, customer, payment_intent_data={"setup_future_usage": "off_session"})
    shown = httpx.get(str(session.url), timeout=60.0).text
    assert "SIMULATED" in shown
    assert "&lt;b&gt;" in shown
    assert "Pay $50.00" in shown
    refused = fake_stripe.pay(session.id, "pm_card_chargeDeclinedInsufficientFunds")
    assert refused.status_code == 402
    assert "insufficient funds" in refused.text
    assert client.v1.checkout.sessions.retrieve(session.id).payment_status == "unpaid"
    paid = fake_stripe.pay(session.id, "pm_card_mastercard")
    assert paid.headers["location"] == f"https://p.test/ok?s={session.id}"
    done = client.v1.checkout.sessions.retrieve(session.id, {"expand": ["payment_intent.latest_charge"]})
    assert (done.status, done.payment_status, done.amount_total) == ("complete", "paid", 5000)
    assert (
        len(client.v1.payment_intents.list({"customer": customer}).data) == 1
    )  # the declined one, tried again
    assert fake_stripe.pay(session.id).status_code == 200  # closed: it says so, and nothing is charged
    assert len([each for each in client.v1.charges.list().data if each.paid]) == 1
    assert {each.card.last4 for each in client.v1.customers.payment_methods.list(customer).data if each.card} == {
        "4242", "4444"
    }  # fmt: skip


def test_a_page_can_be_left_and_runs_out(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    session = session_of(client, customer)
    left = httpx.post(f"{fake_stripe.url}/pay/{session.id}", data={"action": "cancel"}, timeout=60.0)
    assert left.headers["location"] == "https://p.test/no"
    assert client.v1.checkout.sessions.retrieve(session.id).status == "open"
    fake_stripe.advance(DAY + 1)
    assert client.v1.checkout.sessions.retrieve(session.id).status == "expired"
    assert client.v1.events.list({"type": "checkout.session.expired"}).data[0].data.object["id"] == session.id
    assert httpx.get(f"{fake_stripe.url}/pay/cs_test_none").status_code == 404


def test_a_card_kept_by_setup_pays_off_session(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    session = client.v1.checkout.sessions.create(
        {"mode": "setup", "customer": customer, "success_url": "https://p.test"}
    )
    fake_stripe.pay(session.id, "pm_card_mastercard")
    done = client.v1.checkout.sessions.retrieve(session.id, {"expand": ["setup_intent"]})
    method = done.setup_intent.payment_method  # type: ignore[union-attr]
    intent = client.v1.payment_intents.create(
        {"amount": 1000, "currency": "usd", "customer": customer, "payment_method": str(method), "confirm": True,
         "off_session": True}
    )  # fmt: skip
    assert intent.status == "succeeded"
    with pytest.raises(stripe.CardError) as error:
        client.v1.payment_intents.create(
            {"amount": 1000, "currency": "usd", "customer": customer, "confirm": True, "off_session": True,
             "payment_method": "pm_card_authenticationRequired"}
        )  # fmt: skip
    assert error.value.code == "authentication_required"
    assert error.value.error.payment_intent.status == "requires_payment_method"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cents", "fee"), [(50, 31), (1000, 59), (2000, 88), (1050, 60), (99_999_999, 2_900_030)]
)
def test_fees(client: stripe.StripeClient, cents: int, fee: int) -> None:
    intent = client.v1.payment_intents.create(
        {"amount": cents, "currency": "usd", "payment_method": "pm_card_visa", "confirm": True,
         "expand": ["latest_charge.balance_transaction"]}
    )  # fmt: skip
    booked = intent.latest_charge.balance_transaction  # type: ignore[union-attr]
    assert (booked.amount, booked.fee, booked.net) == (cents, fee, cents - fee)  # type: ignore[union-attr]


def charge_with(client: stripe.StripeClient, card: str, cents: int = 1000) -> str:
    intent = client.v1.payment_intents.create(
        {"amount": cents, "currency": "usd", "payment_method": card, "confirm": True}
    )
    return str(intent.latest_charge)


def test_refunds_end_at_the_charge(client: stripe.StripeClient) -> None:
    charge = charge_with(client, "pm_card_visa")
    client.v1.refunds.create({"charge": charge, "amount": 400})
    with pytest.raises(stripe.InvalidRequestError, match="greater than unrefunded"):
        client.v1.refunds.create({"charge": charge, "amount": 601})
    client.v1.refunds.create({"charge": charge})
    found = client.v1.charges.retrieve(charge)
    assert (found.amount_refunded, found.refunded) == (1000, True)
    with pytest.raises(stripe.InvalidRequestError) as error:
        client.v1.refunds.create({"charge": charge})
    assert error.value.code == "charge_already_refunded"
    assert client.v1.balance.retrieve().available[0].amount == -1000  # the charge's money is still pending


def test_a_refund_can_fail_later_and_be_pending(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    failing, slow = charge_with(client, "pm_card_refundFail"), charge_with(client, "pm_card_pendingRefund")
    first = client.v1.refunds.create({"charge": failing})
    second = client.v1.refunds.create({"charge": slow})
    assert (first.status, second.status) == ("succeeded", "pending")
    fake_stripe.advance(3600)
    assert client.v1.refunds.retrieve(first.id).status == "failed"
    assert client.v1.refunds.retrieve(second.id).status == "succeeded"
    assert client.v1.charges.retrieve(failing).amount_refunded == 0
    assert (
        sum(each.net for each in client.v1.balance_transactions.list({"limit": 100}).data) == 1000 - 59 - 59
    )


@pytest.mark.parametrize(("outcome", "net"), [("won", -1500), ("lost", -2500)])
def test_disputes(fake_stripe: FakeStripe, client: stripe.StripeClient, outcome: str, net: int) -> None:
    charge = charge_with(client, "pm_card_visa")
    made = fake_stripe.control("POST", f"/charges/{charge}/dispute", reason="product_not_received")
    with pytest.raises(stripe.InvalidRequestError) as error:
        client.v1.refunds.create({"charge": charge})
    assert error.value.code == "charge_disputed"
    fake_stripe.control("POST", f"/disputes/{made['id']}/settle", outcome=outcome)
    found = client.v1.disputes.retrieve(made["id"])
    assert found.status == outcome
    assert sum(each.net for each in found.balance_transactions) == net
    assert sum(each.fee for each in found.balance_transactions) == 1500
    types = {each.type for each in client.v1.events.list({"type": "charge.dispute.*"}).data}
    assert ("charge.dispute.funds_reinstated" in types) is (outcome == "won")
    assert types >= {"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed"}


def test_an_unanswered_dispute_is_lost(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    charge_with(client, "pm_card_createDispute")
    fake_stripe.advance(15 * DAY)
    assert [each.status for each in client.v1.disputes.list().data] == ["lost"]


# Invoices


def test_an_invoice_adds_up_and_is_paid_once(client: stripe.StripeClient, customer: str) -> None:
    for number in range(3):
        client.v1.invoice_items.create({"customer": customer, "amount": number * 100, "currency": "usd"})
    draft = client.v1.invoices.create({"customer": customer, "pending_invoice_items_behavior": "include"})
    client.v1.invoices.add_lines(draft.id, {"lines": [{"amount": -50, "description": "late"}, {"amount": 1}]})
    opened = client.v1.invoices.finalize_invoice(draft.id)
    assert (opened.total, opened.amount_due, opened.status) == (251, 251, "open")
    assert opened.number
    assert opened.number.endswith("-0001")
    lines = list(client.v1.invoices.line_items.list(draft.id, {"limit": 2}).auto_paging_iter())
    assert [each.amount for each in lines] == [0, 100, 200, -50, 1]
    with pytest.raises(stripe.InvalidRequestError) as error:
        client.v1.invoices.add_lines(draft.id, {"lines": [{"amount": 1}]})
    assert error.value.code == "invoice_not_editable"
    paid = client.v1.invoices.pay(draft.id)
    assert (paid.status, paid.amount_paid, paid.amount_remaining) == ("paid", 251, 0)
    with pytest.raises(stripe.InvalidRequestError, match="already paid"):
        client.v1.invoices.pay(draft.id)
    [charge] = client.v1.charges.list({"customer": customer}).data
    [payment] = client.v1.invoice_payments.list(
        {"payment": {"type": "payment_intent", "payment_intent": str(charge.payment_intent)}}
    ).data
    assert payment.invoice == draft.id
    assert client.v1.invoice_items.list({"pending": True}).data == []


def test_no_more_than_250_items(client: stripe.StripeClient, customer: str) -> None:
    draft = client.v1.invoices.create({"customer": customer})
    for _ in range(5):
        client.v1.invoices.add_lines(draft.id, {"lines": [{"amount": 1}] * 50})
    with pytest.raises(stripe.InvalidRequestError, match="250"):
        client.v1.invoice_items.create(
            {"customer": customer, "invoice": draft.id, "amount": 1, "currency": "usd"}
        )
    found = list(client.v1.invoices.line_items.list(draft.id, {"limit": 100}).auto_paging_iter())
    assert len(found) == len({each.id for each in found}) == 250
    assert client.v1.invoices.retrieve(draft.id).lines.has_more


def test_what_is_too_small_to_charge_goes_to_the_next_invoice(
    client: stripe.StripeClient, customer: str
) -> None:
    small = invoice_of(client, customer, [30])
    assert (small.status, small.amount_due, small.ending_balance) == ("paid", 0, 30)
    assert client.v1.charges.list().data == []
    following = invoice_of(client, customer, [100])
    assert (following.starting_balance, following.amount_due, following.ending_balance) == (30, 130, 0)


def test_a_negative_invoice_is_a_credit(client: stripe.StripeClient, customer: str) -> None:
    negative = invoice_of(client, customer, [-500])
    assert (negative.status, negative.total, negative.amount_due) == ("paid", -500, 0)
    assert client.v1.customers.retrieve(customer).balance == -500
    following = invoice_of(client, customer, [800])
    assert (following.amount_due, client.v1.customers.retrieve(customer).balance) == (300, 0)
    client.v1.invoices.void_invoice(following.id)
    assert client.v1.customers.retrieve(customer).balance == -500


def test_a_draft_advances_by_itself(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    draft = client.v1.invoices.create({"customer": customer, "auto_advance": True})
    client.v1.invoices.add_lines(draft.id, {"lines": [{"amount": 700}]})
    fake_stripe.advance(3_000)
    assert client.v1.invoices.retrieve(draft.id).status == "draft"
    fake_stripe.advance(600)
    assert client.v1.invoices.retrieve(draft.id).status == "paid"


@pytest.mark.parametrize(("rule", "end"), [("uncollectible", "uncollectible"), ("past_due", "open")])
def test_dunning(rule: str, end: str) -> None:
    with running(after_dunning=rule) as fake:
        client = fake.client()
        customer = client.v1.customers.create({"name": "a"}).id
        default_card(client, customer, "pm_card_chargeCustomerFail")
        opened = invoice_of(client, customer, [1000], auto_advance=True)
        start = opened.status_transitions.finalized_at or 0
        seen = []
        for _ in range(5):
            found = client.v1.invoices.retrieve(opened.id)
            seen.append((found.attempt_count, ((found.next_payment_attempt or start) - start) // DAY))
            fake.advance(2 * DAY if found.attempt_count > 1 else DAY)
        assert seen == [(1, 1), (2, 3), (3, 5), (4, 7), (5, 0)]
        assert client.v1.invoices.retrieve(opened.id).status == end
        assert client.v1.customers.retrieve(customer).delinquent
        assert len(client.v1.events.list({"type": "invoice.payment_failed"}).data) == 5
        default_card(client, customer, "pm_card_visa")
        assert client.v1.invoices.pay(opened.id).status == "paid"
        assert client.v1.customers.retrieve(customer).delinquent is False


def test_a_retry_succeeds_with_a_new_card(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    default_card(client, customer, "pm_card_chargeCustomerFail")
    opened = invoice_of(client, customer, [1000], auto_advance=True)
    default_card(client, customer, "pm_card_visa")
    fake_stripe.advance(DAY)
    found = client.v1.invoices.retrieve(opened.id)
    assert (found.status, found.attempt_count) == ("paid", 2)


def test_an_invoice_that_was_sent_becomes_overdue(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    opened = invoice_of(client, customer, [1000], collection_method="send_invoice", days_until_due=30)
    fake_stripe.advance(30 * DAY)
    assert client.v1.events.list({"type": "invoice.overdue"}).data[0].data.object["id"] == opened.id
    paid = client.v1.invoices.pay(opened.id, {"paid_out_of_band": True})
    assert (paid.status, paid.amount_paid_off_stripe) == ("paid", 1000)
    assert client.v1.charges.list().data == []


# Credit notes


def test_a_credit_note_lowers_an_open_invoice_until_nothing_remains(
    client: stripe.StripeClient, customer: str
) -> None:
    opened = invoice_of(client, customer, [1000, 500])
    first = client.v1.credit_notes.create({"invoice": opened.id, "amount": 600})
    assert client.v1.invoices.retrieve(opened.id).amount_remaining == 900
    client.v1.credit_notes.void_credit_note(first.id)
    assert client.v1.invoices.retrieve(opened.id).amount_remaining == 1500
    line: Any = {"type": "invoice_line_item", "invoice_line_item": opened.lines.data[0].id, "amount": 1001}
    with pytest.raises(stripe.InvalidRequestError, match="exceeds what is left of the line"):
        client.v1.credit_notes.create({"invoice": opened.id, "lines": [line]})
    client.v1.credit_notes.create({"invoice": opened.id, "amount": 1000})
    with pytest.raises(stripe.InvalidRequestError, match="can not exceed"):
        client.v1.credit_notes.create({"invoice": opened.id, "amount": 501})
    client.v1.credit_notes.create({"invoice": opened.id, "amount": 500})
    closed = client.v1.invoices.retrieve(opened.id)
    assert (closed.status, closed.amount_remaining, closed.pre_payment_credit_notes_amount) == (
        "paid",
        0,
        1500,
    )


def test_a_credit_note_of_a_paid_invoice_says_where_the_money_goes(
    client: stripe.StripeClient, customer: str
) -> None:
    paid = client.v1.invoices.pay(invoice_of(client, customer, [1000]).id)
    line: Any = {"type": "invoice_line_item", "invoice_line_item": paid.lines.data[0].id, "amount": 600}
    with pytest.raises(stripe.InvalidRequestError, match="must equal"):
        client.v1.credit_notes.create({"invoice": paid.id, "lines": [line], "refund_amount": 100})
    note = client.v1.credit_notes.create(
        {
            "invoice": paid.id,
            "lines": [line],
            "refund_amount": 300,
            "credit_amount": 200,
            "out_of_band_amount": 100,
        }
    )
    assert (note.total, note.post_payment_amount, note.refunds[0].amount_refunded) == (600, 600, 300)
    assert client.v1.customers.retrieve(customer).balance == -200
    assert client.v1.charges.list({"customer": customer}).data[0].amount_refunded == 300
    with pytest.raises(stripe.InvalidRequestError):
        client.v1.credit_notes.void_credit_note(note.id)


def test_a_preview_changes_nothing(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    paid = client.v1.invoices.pay(invoice_of(client, customer, [1000]).id)
    before = fake_stripe.control("GET", "/counts")["objects"]
    shown = client.v1.credit_notes.preview({"invoice": paid.id, "amount": 250, "refund_amount": 250})
    assert (shown.total, shown.lines.data[0].amount) == (250, 250)
    assert fake_stripe.control("GET", "/counts")["objects"] == before


# Meters


def meter_of(client: stripe.StripeClient) -> Any:
    return client.v1.billing.meters.create(
        {"display_name": "Tokens", "event_name": "tokens", "default_aggregation": {"formula": "sum"}}
    )


def send(client: stripe.StripeClient, customer: str, value: str, identifier: str, at: int) -> Any:
    payload = {"stripe_customer_id": customer, "value": value}
    return client.v1.billing.meter_events.create(
        {"event_name": "tokens", "payload": payload, "identifier": identifier, "timestamp": at}
    )


def test_a_meter_counts_each_identifier_once(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    meter = meter_of(client)
    day = fake_stripe.sim.now() // DAY * DAY - DAY
    for hour in range(3):
        send(client, customer, str(10**hour), f"h{hour}", day + 3600 * hour)
    with pytest.raises(stripe.InvalidRequestError) as error:
        send(client, customer, "1", "h1", day)
    assert error.value.code == "duplicate_meter_event"
    fake_stripe.advance(DAY - 60)
    with pytest.raises(stripe.InvalidRequestError):
        send(client, customer, "1", "h1", day)

    def sums(window: str) -> list[tuple[int, float]]:
        found = client.v1.billing.meters.event_summaries.list(
            meter.id,
            {"customer": customer, "start_time": day, "end_time": day + DAY, "value_grouping_window": window},  # type: ignore[typeddict-item]
        )
        return [((each.start_time - day) // 3600, each.aggregated_value) for each in found.data]

    assert sums("hour") == [(2, 100), (1, 10), (0, 1)]
    assert sums("day") == [(0, 111)]
    client.v1.billing.meter_event_adjustments.create(
        {"event_name": "tokens", "type": "cancel", "cancel": {"identifier": "h1"}}
    )
    assert sums("day") == [(0, 101)]
    fake_stripe.advance(120)
    with pytest.raises(stripe.InvalidRequestError):  # too old to be cancelled
        client.v1.billing.meter_event_adjustments.create(
            {"event_name": "tokens", "type": "cancel", "cancel": {"identifier": "h2"}}
        )


@pytest.mark.parametrize(
    ("value", "offset", "code"),
    [
        ("1", -35 * DAY - 60, "timestamp_too_far_in_past"),
        ("1", 360, "timestamp_in_future"),
        ("1" * 16, 0, "meter_event_invalid_value"),
        ("1.5", 0, "meter_event_invalid_value"),
        ("-1", 0, "meter_event_invalid_value"),
    ],
)
def test_meter_events_that_are_refused(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str, value: str, offset: int, code: str
) -> None:
    meter_of(client)
    with pytest.raises(stripe.InvalidRequestError) as error:
        send(client, customer, value, "x", fake_stripe.sim.now() + offset)
    assert error.value.code == code
    send(client, customer, "9" * 15, "x", fake_stripe.sim.now() - 34 * DAY)


def test_the_stream_takes_a_hundred_and_its_session_ends(
    fake_stripe: FakeStripe, client: stripe.StripeClient, customer: str
) -> None:
    meter = meter_of(client)
    token = client.v2.billing.meter_event_session.create().authentication_token
    addresses: Any = {"api": fake_stripe.url, "meter_events": fake_stripe.url}
    stream = stripe.StripeClient(token, base_addresses=addresses).v2.billing.meter_event_stream
    payload = {"stripe_customer_id": customer, "value": "2"}
    given: Any = [
        {"event_name": "tokens", "payload": payload, "identifier": f"e{number}"} for number in range(100)
    ]
    for _ in range(2):
        stream.create({"events": given})
    now = fake_stripe.sim.now() // 60 * 60
    [found] = client.v1.billing.meters.event_summaries.list(
        meter.id, {"customer": customer, "start_time": now - 3600, "end_time": now + 3600}
    ).data
    assert found.aggregated_value == 200
    with pytest.raises(stripe.StripeError):
        stream.create({"events": [*given, given[0] | {"identifier": "one more"}]})
    fake_stripe.advance(901)
    with pytest.raises(stripe.StripeError) as error:
        stream.create({"events": given})
    assert error.value.http_status == 401
