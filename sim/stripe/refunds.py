"""Refunds: full, partial, delayed and failed: https://docs.stripe.com/api/refunds."""

from sim.stripe import charges
from sim.stripe.errors import Obj, StripeError, invalid, state
from sim.stripe.methods import card_of
from sim.stripe.pages import dollars
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import Page, changed, matching, page

_LATER_S = 3600
"""Seconds after which the refunds of special test cards change their status."""


def create(sim: Sim, params: Obj) -> Obj:
    """Refund a charge in whole or in part and return the refund.

    Raises StripeError: 400 for an amount above the rest or a charge that cannot be refunded, 404 for an unknown
    id.
    """
    charge = _charge(sim, params)
    if charge["status"] != "succeeded":
        raise state(
            f"Charge {charge['id']} has not succeeded and can not be refunded.", "charge_not_refundable"
        )
    if charge["disputed"] and not _refundable(sim, charge):
        raise state(f"Charge {charge['id']} has been charged back; cannot issue a refund.", "charge_disputed")
    left = charge["amount"] - charge["amount_refunded"]
    if left == 0:
        raise state(f"Charge {charge['id']} has already been refunded.", "charge_already_refunded")
    amount = params.get("amount", left)
    if amount <= 0:
        raise invalid("Invalid positive integer", param="amount", code="parameter_invalid_integer")
    if amount > left:
        raise state(
            f"Refund amount ({dollars(amount)}) is greater than unrefunded amount on charge ({dollars(left)})",
            param="amount",
        )
    return make(sim, charge, amount, params.get("reason"), merge_metadata(None, params.get("metadata")))


def _charge(sim: Sim, params: Obj) -> Obj:
    if params.get("charge"):
        found = sim.find("charge", params["charge"], "charge")
        if params.get("payment_intent") not in (None, "", found["payment_intent"]):
            raise invalid("The charge does not belong to the payment_intent.", param="payment_intent")
        return found
    if not params.get("payment_intent"):
        raise StripeError(
            "One of the following params should be provided for this request: payment_intent or charge."
        )
    intent = sim.find("payment_intent", params["payment_intent"], "payment_intent")
    if intent["status"] != "succeeded":
        raise state(
            f"This PaymentIntent ({intent['id']}) does not have a successful charge to refund.",
            "payment_intent_unexpected_state",
        )
    return sim.find("charge", intent["latest_charge"])


def _refundable(sim: Sim, charge: Obj) -> bool:
    return all(
        each["is_charge_refundable"] for each in sim.store.all("dispute") if each["charge"] == charge["id"]
    )


def make(sim: Sim, charge: Obj, amount: int, reason: str | None, metadata: dict[str, str]) -> Obj:
    """Store and return a refund of `amount` cents; the test card determines its outcome."""
    card = card_of(sim.find("payment_method", charge["payment_method"]))
    made = sim.new("refund", amount=amount, charge=charge["id"], payment_intent=charge["payment_intent"])
    made |= {
        "reason": reason, "metadata": metadata, "currency": "usd", "customer": charge["customer"],
        "payment_method": charge["payment_method"], "status": "pending" if card.refund == "pending" else "succeeded",
        "destination_details": {"card": {"type": "refund"}, "type": "card"},
    }  # fmt: skip
    made["balance_transaction"] = charges.book(sim, "refund", -amount, made["id"], at_once=True)["id"]
    sim.save(made)
    _count(sim, charge, amount)
    sim.emit("refund.created", made)
    if card.refund != "succeeded":
        sim.schedule(sim.now() + _LATER_S, "refund.end", made["id"])
    return made


def _count(sim: Sim, charge: Obj, amount: int) -> None:
    """Change the charge's refunded amount by `amount` cents."""
    before = charge["amount_refunded"]
    charge["amount_refunded"] += amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount"]
    sim.save(charge)
    sim.emit("charge.refunded" if amount > 0 else "charge.updated", charge, {"amount_refunded": before})


def end(sim: Sim, id: str) -> None:
    """Apply the delayed outcome of special test cards: a pending refund succeeds, another one fails."""
    found = sim.find("refund", id)
    card = card_of(sim.find("payment_method", found["payment_method"]))
    if found["status"] == "pending":
        found["status"] = "succeeded"
        sim.save(found)
        sim.emit("refund.updated", found, {"status": "pending"})
        sim.emit("charge.refund.updated", found, {"status": "pending"})
    elif card.refund == "fails_later" and found["status"] == "succeeded":
        fail(sim, id)


def fail(sim: Sim, id: str) -> Obj:
    """Fail a refund: its amount returns to the balance, and the charge can be refunded again.

    Raises StripeError: 404 for an unknown id, 400 when its status does not allow it.
    """
    found = sim.find("refund", id)
    if found["status"] not in ("pending", "succeeded"):
        raise state(f"Refund {id} has a status of {found['status']}.")
    before = {"status": found["status"]}
    back = charges.book(sim, "refund_failure", found["amount"], id, at_once=True)
    found |= {"status": "failed", "failure_reason": "unknown", "failure_balance_transaction": back["id"]}
    sim.save(found)
    _count(sim, sim.find("charge", found["charge"]), -found["amount"])
    for type in ("refund.updated", "refund.failed", "charge.refund.updated"):
        sim.emit(type, found, before)
    return found


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a refund. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("refund", id)


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a refund's metadata and return it. Raises StripeError: 404 for an unknown id, 400 for invalid
    metadata.
    """
    found = sim.find("refund", id)
    previous = changed(found, {"metadata": merge_metadata(found["metadata"], params.get("metadata"))})
    sim.save(found)
    sim.emit("refund.updated", found, previous)
    return found


def listing(sim: Sim, params: Obj) -> Page:
    """Return refunds, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("refund"), params, "charge", "payment_intent")
    return page(found, params, "/v1/refunds", "refund")


def list_of_charge(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of a charge's refunds. Raises StripeError as `page` does, and 404 for an unknown charge."""
    found, url = charges.refunds_of(sim, sim.find("charge", id))
    return page(found, params, url, "refund")


ACTIONS = {"refund.end": end}
ROUTES = [
    route("POST", "/v1/refunds", "refund_create", create, "amount charge payment_intent reason metadata"),
    route("GET", "/v1/refunds", "refund_list", listing, "charge payment_intent created"),
    route("GET", "/v1/refunds/{id}", "refund_retrieve", retrieve),
    route("POST", "/v1/refunds/{id}", "refund_update", update),
    route("GET", "/v1/charges/{id}/refunds", "refund_list", list_of_charge, ""),
]
