"""Charges and the balance transactions they create: https://docs.stripe.com/api/charges, balance_transactions."""

from sim.stripe.cards import declined
from sim.stripe.errors import Obj, StripeError
from sim.stripe.methods import card_of
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EXPANDABLE, Page, changed, matching, page

_FEE_PER_MILLE = 29
_FEE_FIXED = 30
_AVAILABLE_AFTER = 2 * 86_400


def fee_of(cents: int) -> int:
    """Return Stripe's standard fee in cents: 2.9 % rounded half up, plus 30 cents."""
    return (cents * _FEE_PER_MILLE + 500) // 1000 + _FEE_FIXED


def book(
    sim: Sim, type: str, amount: int, source: str, *, fee: int = 0, category: str = "", at_once: bool = False
) -> Obj:
    """Store and return a balance transaction of `amount` cents gross and `fee` cents."""
    made = sim.new("balance_transaction", amount=amount, fee=fee, net=amount - fee, type=type, source=source)
    details = {"amount": fee, "application": None, "currency": "usd", "type": "stripe_fee"}
    made |= {
        "reporting_category": category or type,
        "description": None if type == "charge" else f"{type.upper()} ({source})",
        "fee_details": [details | {"description": "Stripe processing fees"}] if fee else [],
        "status": "available" if at_once else "pending",
        "available_on": sim.now() + (0 if at_once else _AVAILABLE_AFTER),
    }
    sim.save(made)
    if not at_once:
        sim.schedule(made["available_on"], "balance.available", made["id"])
    return made


def become_available(sim: Sim, id: str) -> None:
    """Make a balance transaction available, two days after its charge."""
    found = sim.find("balance_transaction", id)
    found["status"] = "available"
    sim.save(found)


def make(sim: Sim, intent: Obj, method: Obj) -> tuple[Obj, StripeError | None]:
    """Charge `method` for a payment intent; return the charge, and the card error if it was declined."""
    card = card_of(method)
    code, decline_code = card.decline
    if card.needs_authentication and intent.get("_off_session"):
        code, decline_code = "authentication_required", "authentication_required"
    made = sim.new(
        "charge", amount=intent["amount"], customer=intent["customer"], payment_intent=intent["id"]
    )
    made |= {
        "payment_method": method["id"], "metadata": dict(intent["metadata"]), "description": intent["description"],
        "billing_details": dict(method["billing_details"]), "receipt_email": intent["receipt_email"],
        "receipt_url": f"{sim.options.base_url}/receipts/{made['id']}",
        "calculated_statement_descriptor": "PENSTOCK (SIMULATED)",
        "payment_method_details": _details(made, method),
        "amount_captured": 0 if code else intent["amount"], "captured": not code, "paid": not code,
        "status": "failed" if code else "succeeded",
        "balance_transaction": None,
        "outcome": _outcome(code, decline_code),
    }  # fmt: skip
    if code:
        error = declined(code, decline_code, charge=made["id"])
        made |= {"failure_code": code, "failure_message": error.error["message"]}
        sim.save(made)
        return made, error
    made["balance_transaction"] = book(sim, "charge", made["amount"], made["id"], fee=fee_of(made["amount"]))[
        "id"
    ]
    sim.save(made)
    if card.dispute:
        sim.schedule(sim.now(), "dispute.open", made["id"])
    return made, None


def _details(charge: Obj, method: Obj) -> Obj:
    card = charge["payment_method_details"]["card"]
    card |= {
        name: method["card"][name]
        for name in ("brand", "last4", "exp_month", "exp_year", "country", "funding")
    }
    return {
        "type": "card",
        "card": card | {"network": method["card"]["brand"], "amount_authorized": charge["amount"]},
    }


def _outcome(code: str, decline_code: str) -> Obj:
    made: Obj = dict.fromkeys(("advice_code", "network_advice_code", "network_decline_code"))
    if not code:
        return made | {
            "network_status": "approved_by_network", "reason": None, "seller_message": "Payment complete.",
            "type": "authorized",
        }  # fmt: skip
    return made | {
        "network_status": "declined_by_network", "reason": decline_code or code,
        "seller_message": "The bank did not return any further details with this decline.", "type": "issuer_declined",
    }  # fmt: skip


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a charge. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("charge", id)


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a charge's description, receipt email and metadata, and return it.

    Raises StripeError: 404 for an unknown id, 400 for invalid metadata.
    """
    found = sim.find("charge", id)
    changes: Obj = {name: params[name] or None for name in ("description", "receipt_email") if name in params}
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    previous = changed(found, changes)
    sim.save(found)
    if previous:
        sim.emit("charge.updated", found, previous)
    return found


def listing(sim: Sim, params: Obj) -> Page:
    """Return charges, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("charge"), params, "customer", "payment_intent")
    return page(found, params, "/v1/charges", "charge")


def retrieve_transaction(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a balance transaction. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("balance_transaction", id)


def list_transactions(sim: Sim, params: Obj) -> Page:
    """Return balance transactions, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("balance_transaction"), params, "type", "source")
    return page(found, params, "/v1/balance_transactions", "balance_transaction")


def total(sim: Sim) -> int:
    """Return the whole balance in cents, available and pending."""
    return sum(each["net"] for each in sim.store.all("balance_transaction"))


def balance(sim: Sim, params: Obj) -> Obj:
    """Return the balance, available and pending, in cents."""
    del params
    sums = dict.fromkeys(("available", "pending"), 0)
    for each in sim.store.all("balance_transaction"):
        sums[each["status"]] += each["net"]
    lines = {
        name: [{"amount": cents, "currency": "usd", "source_types": {"card": cents}}]
        for name, cents in sums.items()
    }
    return {"object": "balance", "livemode": False, **lines}


def refunds_of(sim: Sim, charge: Obj) -> tuple[list[Obj], str]:
    """Return a charge's refunds, newest first, and the list's path."""
    found = [each for each in sim.store.newest("refund") if each["charge"] == charge["id"]]
    return found, f"/v1/charges/{charge['id']}/refunds"


EXPANDABLE["charge", "refunds"] = refunds_of

ACTIONS = {"balance.available": become_available}
ROUTES = [
    route("GET", "/v1/charges", "charge_list", listing, "customer payment_intent created"),
    route("GET", "/v1/charges/{id}", "charge_retrieve", retrieve),
    route("POST", "/v1/charges/{id}", "charge_update", update, "description metadata receipt_email"),
    route(
        "GET",
        "/v1/balance_transactions",
        "balance_transaction_list",
        list_transactions,
        "type source created",
    ),
    route("GET", "/v1/balance_transactions/{id}", "balance_transaction_retrieve", retrieve_transaction),
    route("GET", "/v1/balance", "balance_retrieve", balance),
]
