"""The local Stripe, in this process on a free port, with time that moves only when a test moves it.

    from tests.support.stripe_sim import FakeStripe, fake_stripe  # noqa: F401  (the fixture)

    async def test_x(fake_stripe: FakeStripe) -> None:
        client = fake_stripe.client()            # the official stripe.StripeClient, synchronous
        fake_stripe.send_webhooks("http://127.0.0.1:1234/webhooks/stripe", "whsec_test")
        fake_stripe.advance(86_400)              # virtual time; retries, due dates, expirations happen
        fake_stripe.fail("timeout", path="/v1/payment_intents")

The server runs in its own thread and loop, so a synchronous client in the test's loop does not block it.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import stripe
import uvicorn

from billing.payments.stripe_gateway import StripeGateway
from core.clock import Clock, SystemClock
from sim.stripe.serve import WebhookClient, build, config, ensure_endpoint
from sim.stripe.sim import Options
from tests.support.ports import listening

API_KEY = "sk_test_simulated"
SECRET = "whsec_simulated"


class FakeStripe:
    """A running stand-in and what a test does to it. `sim` is its state, for looking."""

    def __init__(self, clock: Clock, path: Path | None = None, **options: Any) -> None:
        self._socket = listening()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.api_key = API_KEY
        self.webhook_secret = SECRET
        self._webhook_client = WebhookClient()
        chosen = Options(**({"base_url": self.url, "api_key": API_KEY} | options))
        self._app = build(clock, chosen, path, self._webhook_client)
        self.sim = self._app.sim
        self._server = uvicorn.Server(config(self._app, "127.0.0.1", 0))
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> "FakeStripe":
        """Serve from now on."""
        self._thread.start()
        assert self._started.wait(20), "the local Stripe did not start"
        return self

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        try:
            while not (self._server.started or serving.done()):
                await asyncio.wait({serving}, timeout=0.005)
            self._started.set()
            await serving
        finally:
            await self._webhook_client.close()

    def stop(self) -> None:
        """Stop serving; the state file, if any, is complete afterwards."""
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the local Stripe did not stop"

    def client(self, **options: Any) -> stripe.StripeClient:
        """The official client, pointed here; no retries unless `max_network_retries` is given."""
        addresses: Any = {"api": self.url, "meter_events": self.url, "files": self.url, "connect": self.url}
        return stripe.StripeClient(API_KEY, base_addresses=addresses, **options)

    def control(self, method: str, act: str, /, **body: Any) -> dict[str, Any]:
        """A call under /_sim."""
        answer = httpx.request(method, f"{self.url}/_sim{act}", json=body or None, timeout=60)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def send_webhooks(self, url: str, secret: str = SECRET) -> None:
        """Deliver all events to `url` from now on, signed with `secret`."""
        ensure_endpoint(self._app, url, secret)

    def advance(self, seconds: int) -> int:
        """Move virtual time; what falls due happens, webhooks that are due have been tried when this returns."""
        return int(self.control("POST", "/time/advance", seconds=seconds)["now"])

    def flush(self) -> int:
        """Try every webhook that is due (held ones of mode `reordered` too). Returns how many attempts were made."""
        return int(self.control("POST", "/webhooks/flush")["deliveries"])

    def webhooks(self, mode: str, **options: Any) -> None:
        """normal, reordered (window=), duplicated (copies=), delayed (delay_s=), lost; types=[...] limits it."""
        self.control("POST", "/webhooks/mode", mode=mode, **options)

    def fail(self, kind: str, path: str = ".*", **options: Any) -> None:
        """The next calls go wrong: 429, 500, 500_after, timeout, reset, reset_after, hold; times=, skip=, method=."""
        self.control("POST", "/faults", kind=kind, path=path, **options)

    def pay(self, session_id: str, card: str = "pm_card_visa") -> httpx.Response:
        """What a person does at the payment page: choose a card, click."""
        return httpx.post(f"{self.url}/pay/{session_id}", data={"action": "pay", "card": card}, timeout=60.0)


@contextmanager
def running(clock: Clock | None = None, path: Path | None = None, **options: Any) -> Iterator[FakeStripe]:
    """A stand-in for the time of a with block."""
    fake = FakeStripe(clock or SystemClock(), path, **options).start()
    try:
        yield fake
    finally:
        fake.stop()


@pytest.fixture
def fake_stripe() -> Iterator[FakeStripe]:
    """A stand-in with an empty account, on the machine's clock (virtual time starts there)."""
    with running() as fake:
        yield fake


def at(*date: int) -> int:
    """Unix seconds of a UTC date."""
    return int(datetime(*date, tzinfo=UTC).timestamp())  # type: ignore[arg-type, misc]


async def stripe_balance_cents(gateway: StripeGateway) -> int:
    """Available and pending dollars of the account, in cents: all that has ever moved it."""
    return sum(one.cents - one.fee_cents for one in await gateway.balance_transactions(0, 2**34))
