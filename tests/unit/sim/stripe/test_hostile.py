"""Whatever comes, an operation answers or refuses: any parameters in their types, on an account full of objects."""

import random
from typing import Any

import pytest

from sim.stripe import checkout, disputes
from sim.stripe.account import ROUTES, open_account
from sim.stripe.cards import CARDS
from sim.stripe.errors import Obj, StripeError
from sim.stripe.params import check
from sim.stripe.routes import Route
from sim.stripe.sim import Sim
from sim.stripe.surface import parameters
from sim.stripe.views import show
from tests.support.clock import ManualClock

ROUNDS = 40
INTEGERS = (0, 1, -1, 2, 49, 50, 100, 1000, 10**12, -(10**17), 1_767_225_600, 1_767_312_000)


def act(sim: Sim, method: str, path: str, **given: Any) -> Obj:
    """One call that has to work."""
    for route in ROUTES:
        if route.method == method and (match := route.pattern.fullmatch(path)):
            return show(sim, route.call(sim, check(route.operation, given, route.supported), match.groups()))
    raise AssertionError(path)


def furnished() -> Sim:
    """An account with some of everything, in several states."""
    sim = open_account(ManualClock())
    customer = act(sim, "POST", "/v1/customers", name="a")["id"]
    method = act(sim, "POST", "/v1/payment_methods/pm_card_visa/attach", customer=customer)["id"]
    act(sim, "POST", f"/v1/customers/{customer}", invoice_settings={"default_payment_method": method})
    act(sim, "POST", f"/v1/customers/{customer}/tax_ids", type="eu_vat", value="DE1")
    meter = {"display_name": "t", "event_name": "tokens", "default_aggregation": {"formula": "sum"}}
    act(sim, "POST", "/v1/billing/meters", **meter)
    price = act(sim, "POST", "/v1/prices", currency="usd", unit_amount="100", product_data={"name": "p"})[
        "id"
    ]
    for number in range(4):
        line = {"price": price, "quantity": "3"}
        given: Any = {
            "mode": "payment",
            "success_url": "https://x.test",
            "line_items": [line],
            "customer": customer,
        }
        session = act(sim, "POST", "/v1/checkout/sessions", **given)["id"]
        if number % 2:
            checkout.complete(sim, session)
        draft = act(sim, "POST", "/v1/invoices", customer=customer)["id"]
        act(sim, "POST", f"/v1/invoices/{draft}/add_lines", lines=[{"amount": "500"}, {"amount": "-20"}])
        act(sim, "POST", "/v1/invoiceitems", customer=customer, amount="5")
        if number:
            act(sim, "POST", f"/v1/invoices/{draft}/finalize")
        if number == 3:
            act(sim, "POST", f"/v1/invoices/{draft}/pay")
    charge = next(iter(sim.store.kind("charge")))
    act(sim, "POST", "/v1/refunds", charge=charge, amount="10")
    disputes.open_dispute(sim, charge, amount=20)
    paid = next(each["id"] for each in sim.store.all("invoice") if each["status"] == "paid")
    act(sim, "POST", "/v1/credit_notes", invoice=paid, amount="50", credit_amount="50")
    act(sim, "POST", "/v1/setup_intents", customer=customer)
    act(sim, "POST", "/v1/payment_intents", amount="500", currency="usd", customer=customer)
    act(sim, "POST", "/v1/webhook_endpoints", url="http://x.test", enabled_events=["*"])
    return sim


class Guesser:
    """Makes values that fit a parameter's type and mean nothing."""

    def __init__(self, sim: Sim, rng: random.Random) -> None:
        self._rng = rng
        self.share = 0.4
        """How many of the optional parameters are given."""
        self._ids = [id for kind in sim.store.dump() for id in sim.store.kind(kind)] + list(CARDS)
        self._by_prefix: dict[str, list[str]] = {}
        for id in self._ids:
            self._by_prefix.setdefault(id.partition("_")[0], []).append(id)

    def id_like(self, prefix: str) -> str:
        """An id of this kind, or of any."""
        return self._rng.choice(self._by_prefix.get(prefix) or self._ids)

    def text(self) -> str:
        """A string: an id, a word, nothing."""
        return self._rng.choice(
            [self._rng.choice(self._ids), "usd", "", "tokens", "12", "\u2603", "x" * 600, "https://x.test"]
        )

    def value(self, spec: list[Any]) -> Any:
        """A value of a type."""
        kind, more = spec[0], spec[1] if len(spec) > 1 else None
        if kind == "int":
            return str(self._rng.choice(INTEGERS))
        if kind == "bool":
            return self._rng.choice(["true", "false"])
        if kind == "decimal":
            return self._rng.choice(["0.5", "12", "-3.25", "999999999999"])
        if kind == "enum":
            return self._rng.choice(more)
        if kind == "list":
            return [self.value(more) for _ in range(self._rng.randrange(3))]
        if kind == "object":
            return self.fields(more)
        if kind == "map":
            return {self._rng.choice(["a", "value", "stripe_customer_id"]): self.text()}
        return self.text()

    def fields(self, spec: dict[str, list[Any]], only: frozenset[str] | None = None) -> Obj:
        """Required parameters and some others."""
        found: Obj = {}
        for name, (required, *kind) in spec.items():
            if required or (self._rng.random() < self.share and (only is None or name in only)):
                found[name] = self.value(kind)
        for name, prefix in _LIKELY:
            if name in found and self._rng.random() < 0.9 and isinstance(found[name], str):
                found[name] = self.id_like(prefix)
        for name, value in (("currency", "usd"), ("event_name", "tokens"), ("success_url", "https://x.test")):
            if name in found and self._rng.random() < 0.9:
                found[name] = value
        return found


_LIKELY = (("customer", "cus"), ("invoice", "in"), ("charge", "ch"), ("payment_method", "pm"), ("product", "prod"),
           ("payment_intent", "pi"), ("invoice_line_item", "il"), ("invoice_item", "ii"), ("price", "price"),
           ("refund", "re"), ("stripe_customer_id", "cus"))  # fmt: skip
_PREFIX = {"customers": "cus", "invoices": "in", "charges": "ch", "payment_methods": "pm", "refunds": "re",
           "disputes": "du", "events": "evt", "meters": "mtr", "sessions": "cs", "credit_notes": "cn",
           "invoiceitems": "ii", "payment_intents": "pi", "setup_intents": "seti", "tax_ids": "txi",
           "products": "prod", "prices": "price", "webhook_endpoints": "we", "balance_transactions": "txn",
           "invoice_payments": "inpay"}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.operation}")
def test_no_parameters_break_an_operation(route: Route) -> None:
    rng = random.Random(route.operation)
    sim = furnished()
    guesser = Guesser(sim, rng)
    parts = [part for part in route.pattern.pattern.split("/") if part]
    owners = [parts[at - 1] for at, part in enumerate(parts) if part.startswith("(")]
    refusals: list[StripeError] = []
    for number in range(ROUNDS):
        guesser.share = (0.1, 0.4, 0.8)[number % 3]
        given = guesser.fields(parameters(route.operation), route.supported)
        given.pop("expand", None)
        ids = tuple(guesser.id_like(_PREFIX.get(owner, "x")) for owner in owners)
        try:
            show(sim, route.call(sim, check(route.operation, given, route.supported), ids))
        except StripeError as error:
            refusals.append(error)
        sim.run_due()
    assert {error.status for error in refusals} <= {400, 402, 404}
    assert all(error.error["message"] for error in refusals)
    sim.advance(40 * 86_400)
    for kind in ("invoice", "charge", "credit_note", "customer", "dispute", "refund"):
        for each in sim.store.all(kind):
            sim.shown(each)
    assert sum(each["net"] for each in sim.store.all("balance_transaction")) == sum(
        each["amount"] - each["fee"] for each in sim.store.all("balance_transaction")
    )
    for invoice in sim.store.all("invoice"):
        assert invoice["amount_remaining"] >= 0
        assert invoice["total"] == sum(sim.find("line_item", id)["amount"] for id in invoice["_lines"])
    for charge in sim.store.all("charge"):
        assert 0 <= charge["amount_refunded"] <= charge["amount"]
