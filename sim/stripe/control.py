"""The control API under /_sim, which Stripe does not have (listed in docs/finance/stripe-sim.md)."""

import asyncio
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from sim.stripe import charges, checkout, disputes, faults, forms, refunds, webhooks
from sim.stripe.errors import Obj, StripeError, invalid
from sim.stripe.sim import Sim
from sim.stripe.webhooks import WebhookSender

_MAX_ADVANCE = 400 * 86_400


class Control:
    """Serves /_sim/...: JSON requests and responses."""

    def __init__(self, sim: Sim, sender: WebhookSender, released: asyncio.Event) -> None:
        self._sim = sim
        self._sender = sender
        self._released = released
        self._acts: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", "/_sim/time", self._time),
            ("POST", "/_sim/time/advance", self._advance),
            ("POST", "/_sim/faults", self._fault),
            ("DELETE", "/_sim/faults", self._no_faults),
            ("POST", "/_sim/faults/release", self._release),
            ("POST", "/_sim/webhooks/mode", self._mode),
            ("POST", "/_sim/webhooks/flush", self._flush),
            ("POST", "/_sim/events/([^/]+)/resend", self._resend),
            ("POST", "/_sim/checkout/([^/]+)/complete", self._complete),
            ("POST", "/_sim/charges/([^/]+)/dispute", self._dispute),
            ("POST", "/_sim/disputes/([^/]+)/settle", self._settle),
            ("POST", "/_sim/refunds/([^/]+)/fail", self._fail_refund),
            ("POST", "/_sim/balance", self._set_balance),
            ("POST", "/_sim/reset", self._reset),
            ("GET", "/_sim/counts", self._counts),
        ]

    async def handle(self, method: str, path: str, query: bytes, body: bytes) -> tuple[int, Obj]:
        """Handle a request and return its HTTP status and JSON body; errors are returned, not raised."""
        for wanted, pattern, act in self._acts:
            if wanted == method and (match := re.fullmatch(pattern, path)):
                try:
                    given = forms.decode_json(body) or {
                        name: values[0] for name, values in parse_qs(query.decode("latin-1")).items()
                    }
                    found = act(given, *match.groups())
                    answer = await found if asyncio.iscoroutine(found) else found
                except StripeError as error:
                    return error.status, error.body
                return 200, answer
        return 404, {
            "error": {"message": f"There is no {method} {path}; docs/finance/stripe-sim.md lists what is"}
        }

    def session_is_valid(self, token: str) -> bool:
        """Return whether a token of the meter event stream is known and not expired."""
        row = self._sim.store.get("meter_session", token)
        return row is not None and row["expires_at"] > self._sim.now()

    def _time(self, given: Obj) -> Obj:
        del given
        return {"now": self._sim.now(), "offset": self._sim.offset}

    async def _advance(self, given: Obj) -> Obj:
        seconds = number(given, "seconds", 0)
        if not 0 <= seconds <= _MAX_ADVANCE:
            raise invalid(f"seconds is 0 to {_MAX_ADVANCE}: virtual time does not go back", param="seconds")
        self._sim.advance(seconds)
        return self._time({}) | {"deliveries": await self._sender.deliver_due()}

    def _fault(self, given: Obj) -> Obj:
        return faults.add(self._sim.store, given)

    def _no_faults(self, given: Obj) -> Obj:
        del given
        rules = self._sim.store.all("fault")
        for rule in rules:
            self._sim.store.drop("fault", rule["id"])
        return {"removed": len(rules)}

    def _release(self, given: Obj) -> Obj:
        del given
        self._released.set()
        self._released.clear()
        return {"released": True}

    def _mode(self, given: Obj) -> Obj:
        return webhooks.set_mode(
            self._sim, str(given.get("mode")), types=list(given.get("types") or []),
            window=number(given, "window", 1000), copies=number(given, "copies", 2),
            delay=number(given, "delay_s", 3600),
        )  # fmt: skip

    async def _flush(self, given: Obj) -> Obj:
        del given
        released = self._sender.release()
        return {"released": released, "deliveries": await self._sender.deliver_due()}

    def _resend(self, given: Obj, id: str) -> Obj:
        del given
        return {"deliveries": self._sender.resend(self._sim.find("event", id))}

    def _complete(self, given: Obj, id: str) -> Obj:
        checkout.complete(self._sim, id, str(given.get("card") or "pm_card_visa"))
        self._sim.run_due()
        return self._sim.shown(self._sim.find("checkout.session", id))

    def _dispute(self, given: Obj, id: str) -> Obj:
        amount = number(given, "amount", 0) or None
        made = disputes.open_dispute(
            self._sim, id, amount=amount, reason=str(given.get("reason") or "fraudulent"),
            inquiry=bool(given.get("inquiry")),
        )  # fmt: skip
        return self._sim.shown(made)

    def _settle(self, given: Obj, id: str) -> Obj:
        if given.get("outcome") not in ("won", "lost"):
            raise invalid("Invalid outcome: must be one of won, lost", param="outcome")
        return self._sim.shown(disputes.settle(self._sim, id, won=given["outcome"] == "won"))

    def _fail_refund(self, given: Obj, id: str) -> Obj:
        del given
        return self._sim.shown(refunds.fail(self._sim, id))

    def _set_balance(self, given: Obj) -> Obj:
        difference = number(given, "cents", 0) - charges.total(self._sim)
        if difference:
            charges.book(self._sim, "adjustment", difference, "penstock_sim", at_once=True)
        return {"cents": charges.total(self._sim)}

    def _reset(self, given: Obj) -> Obj:
        del given
        self._sim.reset()
        return {"reset": True}

    def _counts(self, given: Obj) -> Obj:
        del given
        kinds = self._sim.store.counts()
        counters = {row: value["value"] for row, value in self._sim.store.kind("counter").items()}
        return {"objects": kinds, "counters": counters}


def number(given: Obj, name: str, default: int) -> int:
    """Return an integer parameter. Raises StripeError (400) for any other value."""
    try:
        return int(given.get(name, default))
    except (TypeError, ValueError):
        raise invalid(f"Invalid integer: {name}", param=name) from None
