"""Webhooks: signed as Stripe signs, retried, reordered, duplicated, delayed, lost, sent again."""

import pytest
import stripe

from tests.integration.sim.stripe.receiver import Receiver
from tests.support.stripe_sim import SECRET, FakeStripe


def make(client: stripe.StripeClient, count: int = 1) -> list[str]:
    return [client.v1.customers.create({"name": str(number)}).id for number in range(count)]


def test_events_arrive_signed_and_in_order(
    fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver
) -> None:
    made = make(client, 3)
    fake_stripe.flush()
    assert [event.data.object.id for event in receiver.events] == made
    assert receiver.types == ["customer.created"] * 3
    body, signature = receiver.raw[0]
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body + b" ", signature, SECRET)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, signature, "whsec_another")
    event = client.v1.events.retrieve(receiver.ids[0])
    assert event.pending_webhooks == 0
    assert event.request is not None
    assert event.request.idempotency_key


def test_the_signature_is_fresh_whatever_the_virtual_time(
    fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver
) -> None:
    fake_stripe.advance(90 * 86_400)
    make(client)
    fake_stripe.flush()
    assert receiver.types == ["customer.created"]  # the receiver refuses signatures older than 300 s


def test_a_refusal_is_retried_until_it_is_taken(
    fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver
) -> None:
    receiver.status = 500
    make(client)
    fake_stripe.flush()
    assert len(receiver.events) == 1
    assert client.v1.events.list({"delivery_success": False}).data[0].id == receiver.ids[0]
    fake_stripe.advance(60)
    receiver.status = 200
    fake_stripe.advance(400)
    assert len(receiver.events) >= 3
    assert len(set(receiver.ids)) == 1
    count = len(receiver.events)
    fake_stripe.advance(4 * 86_400)
    assert len(receiver.events) == count
    assert client.v1.events.list({"delivery_success": False}).data == []


def test_an_endpoint_that_is_away_gets_it_later_or_never(
    fake_stripe: FakeStripe, client: stripe.StripeClient
) -> None:
    gone = Receiver(SECRET)
    gone.close()
    fake_stripe.send_webhooks(gone.url, SECRET)
    make(client)
    fake_stripe.advance(5 * 86_400)
    for _ in range(20):
        fake_stripe.advance(43_200)
    counters = fake_stripe.control("GET", "/counts")["counters"]
    assert counters["webhooks given up"] == 1
    assert "webhooks delivered" not in counters


def test_reordered(fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver) -> None:
    fake_stripe.webhooks("reordered", window=6)
    made = make(client, 5)
    assert receiver.events == []
    made += make(client, 1)
    fake_stripe.flush()
    arrived = [event.data.object.id for event in receiver.events]
    assert sorted(arrived) == sorted(made)
    assert arrived != made


def test_duplicated(fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver) -> None:
    fake_stripe.webhooks("duplicated", copies=3, types=["customer.*"])
    make(client)
    client.v1.products.create({"name": "x"})
    fake_stripe.flush()
    assert sorted(receiver.types) == ["customer.created"] * 3 + ["product.created"]
    assert len(set(receiver.ids)) == 2


def test_delayed(fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver) -> None:
    fake_stripe.webhooks("delayed", delay_s=7200)
    make(client)
    fake_stripe.advance(7000)
    assert receiver.events == []
    fake_stripe.advance(200)
    assert receiver.types == ["customer.created"]


def test_lost_is_found_by_listing_and_can_be_sent_again(
    fake_stripe: FakeStripe, client: stripe.StripeClient, receiver: Receiver
) -> None:
    fake_stripe.webhooks("lost")
    make(client)
    fake_stripe.flush()
    assert receiver.events == []
    [event] = client.v1.events.list({"types": ["customer.created"]}).data
    fake_stripe.control("POST", f"/events/{event.id}/resend")
    fake_stripe.flush()
    assert receiver.ids == [event.id]


def test_an_endpoint_gets_what_it_asked_for(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.InvalidRequestError):
        client.v1.webhook_endpoints.create({"url": "nonsense", "enabled_events": ["*"]})
    endpoint = client.v1.webhook_endpoints.create({"url": "http://127.0.0.1:9/", "enabled_events": ["*"]})
    secret = endpoint.secret
    assert secret
    assert "secret" not in client.v1.webhook_endpoints.retrieve(endpoint.id)
    client.v1.webhook_endpoints.delete(endpoint.id)
    chosen = Receiver(secret)
    client.v1.webhook_endpoints.create({"url": chosen.url, "enabled_events": ["product.created"]})
    make(client)
    client.v1.webhook_endpoints.update(client.v1.webhook_endpoints.list().data[0].id, {"disabled": True})
    client.v1.products.create({"name": "x"})
    fake_stripe.flush()
    chosen.close()
    assert chosen.raw == []


def test_events_are_kept_for_thirty_days(fake_stripe: FakeStripe, client: stripe.StripeClient) -> None:
    make(client)
    [old] = client.v1.events.list().data
    fake_stripe.advance(29 * 86_400)
    make(client)
    assert len(client.v1.events.list().data) == 2
    assert len(client.v1.events.list({"created": {"gt": old.created}}).data) == 1
    fake_stripe.advance(2 * 86_400)
    assert len(client.v1.events.list().data) == 1
    with pytest.raises(stripe.InvalidRequestError, match="No such event"):
        client.v1.events.retrieve(old.id)
