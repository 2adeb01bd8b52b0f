"""The stand-in and a receiver of its webhooks."""

from collections.abc import Iterator

import pytest
import stripe

from tests.integration.sim.stripe.receiver import Receiver
from tests.support.stripe_sim import SECRET, FakeStripe, fake_stripe

__all__ = ["fake_stripe"]


@pytest.fixture
def client(fake_stripe: FakeStripe) -> stripe.StripeClient:
    """The official client, without retries."""
    return fake_stripe.client(max_network_retries=0)


@pytest.fixture
def customer(client: stripe.StripeClient) -> str:
    """A customer with a card that works."""
    made = client.v1.customers.create({"email": "a@acme.test"})
    method = client.v1.payment_methods.attach("pm_card_visa", {"customer": made.id})
    client.v1.customers.update(made.id, {"invoice_settings": {"default_payment_method": method.id}})
    return made.id


@pytest.fixture
def receiver(fake_stripe: FakeStripe) -> Iterator[Receiver]:
    """A registered endpoint."""
    found = Receiver(SECRET)
    fake_stripe.send_webhooks(found.url, SECRET)
    yield found
    found.close()
