"""Delivers events to webhook endpoints: queued with each event, signed as Stripe does, retried, with optional
faults.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256

import msgspec

from sim.stripe.errors import Obj, invalid
from sim.stripe.events import matches
from sim.stripe.sim import Sim

log = logging.getLogger(__name__)

Post = Callable[[str, bytes, dict[str, str]], Awaitable[int]]
"""Sends a body to a URL and returns the HTTP status; raises OSError or TimeoutError."""

MODES = ("normal", "reordered", "duplicated", "delayed", "lost")
"""Delivery modes, which set_mode selects."""
RETRIES_S = (5, 60, 300, 1800, 7200, 18_000, 36_000, *(43_200,) * 5)
"""Seconds of virtual time between attempts: increasing delays, for about three days in total."""
_TICK_S = 0.5


def signature(secret: str, body: bytes, at: int) -> str:
    """Return the Stripe-Signature header: https://docs.stripe.com/webhooks#verify-manually."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, sha256).hexdigest()
    return f"t={at},v1={digest}"


def set_mode(sim: Sim, mode: str, *, types: list[str], window: int, copies: int, delay: int) -> Obj:
    """Set how events of `types` are delivered from now on; `delay` is in seconds.

    Raises StripeError (400) for an unknown mode or a value out of range.
    """
    if mode not in MODES:
        raise invalid(f"Invalid mode: must be one of {', '.join(MODES)}", param="mode")
    if not (2 <= window <= 10_000 and 2 <= copies <= 100 and 0 <= delay <= 30 * 86_400):
        raise invalid("window is 2 to 10000, copies 2 to 100, delay_s 0 to 2592000")
    row = {"mode": mode, "types": types or ["*"], "window": window, "copies": copies, "delay_s": delay}
    return sim.store.put("control", "webhooks", row)


class WebhookSender:
    """Delivers queued events. Deliveries to one endpoint are sequential; endpoints are served concurrently."""

    def __init__(self, sim: Sim, post: Post) -> None:
        self._sim = sim
        self._post = post
        self._wake = asyncio.Event()
        self._pumping = asyncio.Lock()
        sim.on_event = self.enqueue

    # Queueing, at once when an event is made

    def enqueue(self, event: Obj) -> None:
        """Queue an event for every endpoint that subscribes to it, as the mode specifies."""
        mode = self._mode(event["type"])
        for endpoint in self._sim.store.all("webhook_endpoint"):
            if endpoint["status"] != "enabled" or not matches(event["type"], endpoint["enabled_events"]):
                continue
            if mode["mode"] == "lost":
                self._sim.store.count("webhooks lost")
                continue
            event["pending_webhooks"] += 1
            self._sim.save(event)
            for _ in range(mode["copies"] if mode["mode"] == "duplicated" else 1):
                self._queue(endpoint, event, mode)
        self._wake.set()

    def _mode(self, type: str) -> Obj:
        row = self._sim.store.get("control", "webhooks")
        return row if row and matches(type, row["types"]) else {"mode": "normal"}

    def _queue(self, endpoint: Obj, event: Obj, mode: Obj) -> None:
        number = self._sim.store.count("delivery")
        held = mode["mode"] == "reordered"
        due = self._sim.now() + (mode["delay_s"] if mode["mode"] == "delayed" else 0)
        row = {"endpoint": endpoint["id"], "event": event["id"], "due": due, "order": number, "attempt": 0}
        self._sim.store.put("delivery", str(number), row | {"id": str(number), "held": held})
        if held and len(self._held()) >= mode["window"]:
            self.release()

    def _held(self) -> list[Obj]:
        return [row for row in self._sim.store.all("delivery") if row["held"]]

    def release(self) -> int:
        """Release held deliveries in a different order from their arrival, and return their number."""
        held = self._held()
        order = list(held)
        while len(held) > 1 and order == held:
            self._sim.rng.shuffle(order)
        for row in order:
            row |= {"held": False, "order": self._sim.store.count("delivery")}
            self._sim.store.put("delivery", row["id"], row)
        self._wake.set()
        return len(held)

    def resend(self, event: Obj) -> int:
        """Deliver an event again now, regardless of the mode, and return the number of endpoints."""
        wanted = [
            each
            for each in self._sim.store.all("webhook_endpoint")
            if each["status"] == "enabled" and matches(event["type"], each["enabled_events"])
        ]
        for endpoint in wanted:
            self._queue(endpoint, event, {"mode": "normal"})
        self._wake.set()
        return len(wanted)

    # Delivering

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            self._wake.clear()
            self._sim.run_due()
            await self.deliver_due()
            self._sim.store.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()

    async def deliver_due(self) -> int:
        """Deliver everything due, including retries that become due meanwhile, and return the number of attempts."""
        attempts = 0
        async with self._pumping:
            while due := self._due():
                rows_by_endpoint: dict[str, list[Obj]] = {}
                for row in due:
                    rows_by_endpoint.setdefault(row["endpoint"], []).append(row)
                await asyncio.gather(*(self._deliver_all(rows) for rows in rows_by_endpoint.values()))
                attempts += len(due)
        return attempts

    def _due(self) -> list[Obj]:
        now = self._sim.now()
        rows = [row for row in self._sim.store.all("delivery") if not row["held"] and row["due"] <= now]
        return sorted(rows, key=lambda row: (row["due"], row["order"]))

    async def _deliver_all(self, rows: list[Obj]) -> None:
        for row in rows:
            await self._deliver(row)

    async def _deliver(self, row: Obj) -> None:
        endpoint = self._sim.store.get("webhook_endpoint", row["endpoint"])
        event = self._sim.store.get("event", row["event"])
        if endpoint is None or endpoint["status"] != "enabled" or event is None:
            self._sim.store.drop("delivery", row["id"])
            return
        body = msgspec.json.format(msgspec.json.encode(self._sim.shown(event)))
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks; penstock stripe-sim)",
            "Stripe-Signature": signature(endpoint["_secret"], body, self._sim.real_now()),
        }
        try:
            status = await self._post(endpoint["url"], body, headers)
        except (OSError, TimeoutError) as error:
            log.info("webhook %s to %s: %s", event["type"], endpoint["url"], error or type(error).__name__)
            status = 0
        self._done(row, event, 200 <= status < 300)

    def _done(self, row: Obj, event: Obj, delivered: bool) -> None:
        if self._sim.store.get("delivery", row["id"]) is not row:
            return  # forgotten by a reset meanwhile
        if not delivered and row["attempt"] < len(RETRIES_S):
            row |= {"due": self._sim.now() + RETRIES_S[row["attempt"]], "attempt": row["attempt"] + 1}
            self._sim.store.put("delivery", row["id"], row)
            self._sim.store.count("webhooks retried")
            return
        self._sim.store.drop("delivery", row["id"])
        self._sim.store.count("webhooks delivered" if delivered else "webhooks given up")
        if delivered:
            event["pending_webhooks"] = max(0, event["pending_webhooks"] - 1)
            self._sim.save(event)
