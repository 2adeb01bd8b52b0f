"""The simulated account: clock, objects, timers and events. The other modules (customers, ...) operate on it."""

import heapq
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from core.clock import Clock
from sim.stripe.errors import Obj, no_such
from sim.stripe.store import Store
from sim.stripe.surface import template

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

KINDS = {
    "cus": "customer", "pm": "payment_method", "pi": "payment_intent", "seti": "setup_intent", "ch": "charge",
    "txn": "balance_transaction", "re": "refund", "du": "dispute", "in": "invoice", "ii": "invoiceitem",
    "il": "line_item", "cn": "credit_note", "cnli": "credit_note_line_item", "evt": "event",
    "we": "webhook_endpoint", "prod": "product", "price": "price", "mtr": "billing.meter", "cs": "checkout.session",
    "txi": "tax_id", "cbtxn": "customer_balance_transaction", "inpay": "invoice_payment", "li": "item",
}  # fmt: skip
"""Kind of object by the prefix of its id."""

PREFIXES = {kind: prefix for prefix, kind in KINDS.items()}
_NAMES = {
    "checkout.session": "checkout session",
    "billing.meter": "billing meter",
    "item": "line item",
}
_SHORT = frozenset({"customer", "product"})

DUNNING_DAYS = (1, 3, 5, 7)
"""Days after the first failed attempt on which an invoice is tried again."""


class Options(NamedTuple):
    """Settings of the account."""

    base_url: str = "http://127.0.0.1:8020"
    """Base URL at which browsers and webhook receivers reach this server."""
    api_key: str = ""
    """The only secret key that is accepted; empty = any sk_test_... key."""
    after_dunning: str = "uncollectible"
    """Status of an invoice after the last failed attempt: uncollectible, or past_due (it stays open)."""
    seed: int = 1


class Request(NamedTuple):
    """The API call in progress, for the events that it creates."""

    id: str | None = None
    idempotency_key: str | None = None


class Sim:
    """One account. Operations never wait: each happens at one instant of virtual time."""

    def __init__(self, clock: Clock, options: Options | None = None, path: Path | None = None) -> None:
        self.options = options or Options()
        self.store = Store(path)
        self.rng = random.Random(self.options.seed)  # noqa: S311 - a simulation, repeatable by its seed
        self.request = Request()
        self.on_event: Callable[[Obj], None] = lambda event: None
        self.shown: Callable[[Obj], Obj] = dict
        """Returns an object's public form (views.render)."""
        self.actions: dict[str, Callable[[Sim, str], None]] = {}
        """Timer actions by name; each module registers its own."""
        self._clock = clock
        self._frozen: int | None = None
        self._heap = [(row["at"], row["seq"]) for row in self.store.all("timer")]
        heapq.heapify(self._heap)

    # Time

    @property
    def offset(self) -> int:
        """Seconds by which virtual time is ahead of the clock."""
        return int((self.store.get("account", "time") or {}).get("offset", 0))

    def now(self) -> int:
        """Return virtual time in Unix seconds."""
        if self._frozen is not None:
            return self._frozen
        return self.real_now() + self.offset

    def real_now(self) -> int:
        """Return the clock's time in Unix seconds, with which webhook receivers compare signatures."""
        return int(self._clock.now().timestamp())

    def advance(self, seconds: int) -> int:
        """Advance virtual time by `seconds`, run each due timer at its own time, and return the new time in
        Unix seconds.
        """
        start = self.now()
        target = start + seconds
        self._run_until(target)
        self.store.put("account", "time", {"offset": self.offset + seconds})
        return target

    def run_due(self) -> None:
        """Run the timers that are due now."""
        self._run_until(self.now())

    def _run_until(self, target: int) -> None:
        try:
            while self._heap and self._heap[0][0] <= target:
                at, seq = heapq.heappop(self._heap)
                row = self.store.get("timer", str(seq))
                if row is None:
                    continue
                self.store.drop("timer", str(seq))
                self._frozen = max(at, row["set_at"])
                self.actions[row["action"]](self, row["id"])
        finally:
            self._frozen = None

    def schedule(self, at: int, action: str, id: str) -> None:
        """Schedule `action` on object `id` at virtual time `at` in Unix seconds; the action checks that it
        still applies.
        """
        seq = self.store.count("timer")
        row = {"at": at, "seq": seq, "set_at": self.now(), "action": action, "id": id}
        self.store.put("timer", str(seq), row)
        heapq.heappush(self._heap, (at, seq))

    # Objects

    def id(self, prefix: str, length: int = 24) -> str:
        """Return a new id in Stripe's format; the same seed gives the same ids in the same order."""
        digest = sha256(f"{self.options.seed}|{self.store.count('id')}".encode()).digest()
        number, text = int.from_bytes(digest, "big"), ""
        for _ in range(length):
            number, digit = divmod(number, len(_ALPHABET))
            text += _ALPHABET[digit]
        return f"{prefix}_{text}"

    def new(self, kind: str, **fields: object) -> Obj:
        """Return a new object from Stripe's example with an id, its time and `fields`; it is not stored until
        `save`.
        """
        made = template(kind)
        prefix = "cs_test" if kind == "checkout.session" else PREFIXES[kind]
        made["id"] = self.id(prefix, 14 if kind in _SHORT else 24)
        if "created" in made:
            made["created"] = self.now()
        if "livemode" in made:
            made["livemode"] = False
        return made | fields

    def save(self, value: Obj) -> Obj:
        """Store a new or changed object and return it."""
        return self.store.put(value["object"], value["id"], value)

    def find(self, kind: str, id: str, param: str = "id") -> Obj:
        """Return the object. Raises StripeError (404, resource_missing) for an unknown id."""
        found = self.store.get(kind, id)
        if found is None:
            raise no_such(_NAMES.get(kind, kind), id, param)
        return found

    def lookup(self, id: str) -> Obj | None:
        """Return the object with this id, whose prefix determines the kind; None when there is none."""
        kind = KINDS.get(id.partition("_")[0])
        return self.store.get(kind, id) if kind else None

    def reset(self) -> None:
        """Delete everything except the webhook endpoints, the time and the id counter."""
        kept = [("webhook_endpoint", row) for row in self.store.all("webhook_endpoint")]
        time, ids = self.store.get("account", "time"), self.store.get("counter", "id")
        self.store.clear()
        self._heap.clear()
        for kind, row in kept:
            self.store.put(kind, row["id"], row)
        if time:
            self.store.put("account", "time", time)
        if ids:
            self.store.put("counter", "id", ids)

    # Events

    def emit(self, type: str, value: Obj, previous: Obj | None = None) -> Obj:
        """Create an event with the object's current state; `previous` holds the old values of changed fields."""
        data: Obj = {"object": self.shown(value)}
        if previous is not None:
            data["previous_attributes"] = previous
        event = self.new("event", api_version=API_VERSION, data=data, type=type, pending_webhooks=0)
        event["request"] = {"id": self.request.id, "idempotency_key": self.request.idempotency_key}
        self.save(event)
        self.on_event(event)
        return event


API_VERSION = "2026-10-28.endive"
"""Version of Stripe's API that objects and events follow."""
