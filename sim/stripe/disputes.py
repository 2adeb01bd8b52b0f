"""Disputes, opened by test cards or by request, until won or lost: https://docs.stripe.com/api/disputes."""

from sim.stripe import charges
from sim.stripe.errors import Obj, invalid, state
from sim.stripe.methods import card_of
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import Page, changed, matching, page

FEE = 1500
"""Dispute fee in cents; it is not returned when the dispute is won."""
_ANSWER_DAYS = 14
_REASONS = (
    "fraudulent",
    "product_not_received",
    "duplicate",
    "general",
    "unrecognized",
    "credit_not_processed",
)
_CLOSED = ("won", "lost", "warning_closed")


def open_for_card(sim: Sim, charge: str) -> None:
    """Open the dispute that the charge's test card specifies."""
    found = sim.find("charge", charge)
    card = card_of(sim.find("payment_method", found["payment_method"]))
    open_dispute(sim, charge, reason=card.dispute, inquiry=card.inquiry)


def open_dispute(
    sim: Sim, charge_id: str, *, amount: int | None = None, reason: str = "fraudulent", inquiry: bool = False
) -> Obj:
    """Open a dispute on a charge and withdraw its amount and the fee, unless it is only an inquiry.

    A charge can be disputed again when no dispute of it is open, up to the amount that is not withdrawn.

    Raises StripeError: 400 for a charge that did not succeed or has an open dispute, or for an amount above what is
    left of it, 404 for an unknown charge.
    """
    charge = sim.find("charge", charge_id, "charge")
    earlier = [each for each in sim.store.all("dispute") if each["charge"] == charge_id]
    if charge["status"] != "succeeded" or any(each["status"] not in _CLOSED for each in earlier):
        raise state(f"Charge {charge_id} did not succeed or has an open dispute.", "charge_not_disputable")
    left = charge["amount"] - sum(each["amount"] for each in earlier if each["status"] == "lost")
    amount = left if amount is None else amount
    if not 0 < amount <= left:
        raise invalid("amount must be at most what is left of the charge", param="amount")
    if reason not in _REASONS:
        raise invalid(f"Invalid reason: must be one of {', '.join(_REASONS)}", param="reason")
    due = sim.now() + _ANSWER_DAYS * 86_400
    made = sim.new(
        "dispute", amount=amount, charge=charge_id, payment_intent=charge["payment_intent"], reason=reason
    )
    made |= {
        "status": "warning_needs_response" if inquiry else "needs_response", "is_charge_refundable": inquiry,
        "balance_transactions": [], "metadata": {}, "currency": "usd", "enhanced_eligibility_types": [],
    }  # fmt: skip
    made["evidence_details"] = made["evidence_details"] | {
        "due_by": due,
        "has_evidence": False,
        "past_due": False,
        "submission_method": "not_submitted",
    }
    sim.save(made)
    charge["disputed"] = True
    sim.save(charge)
    sim.emit("charge.dispute.created", made)
    if not inquiry:
        _move(sim, made, -amount, FEE)
        sim.emit("charge.dispute.funds_withdrawn", made)
    sim.schedule(due, "dispute.due", made["id"])
    return made


def _move(sim: Sim, dispute: Obj, amount: int, fee: int) -> None:
    category = "dispute" if amount < 0 else "dispute_reversal"
    booked = charges.book(sim, "adjustment", amount, dispute["id"], fee=fee, category=category, at_once=True)
    booked["description"] = f"Chargeback {'withdrawal' if amount < 0 else 'reversal'} for {dispute['charge']}"
    if fee:
        booked["fee_details"][0]["description"] = "Dispute fee"
    sim.save(booked)
    dispute["balance_transactions"] = [*dispute["balance_transactions"], sim.shown(booked)]
    sim.save(dispute)


def settle(sim: Sim, id: str, *, won: bool) -> Obj:
    """Close a dispute and return it; when `won`, the amount is returned, but not the fee. A lost one can be won on
    appeal, and a won one lost later, which withdraws the amount again.

    Raises StripeError: 400 when it is closed already, 404 for an unknown id.
    """
    found = sim.find("dispute", id)
    if found["status"] in _CLOSED and found["status"] != ("lost" if won else "won"):
        raise state("This dispute is already closed.", "dispute_already_closed")
    before = {"status": found["status"]}
    inquiry = found["status"].startswith("warning")
    found["status"] = "warning_closed" if inquiry else "won" if won else "lost"
    sim.save(found)
    if won and not inquiry:
        _move(sim, found, found["amount"], 0)
        sim.emit("charge.dispute.funds_reinstated", found)
    elif before["status"] == "won":
        _move(sim, found, -found["amount"], 0)
        sim.emit("charge.dispute.funds_withdrawn", found)
    sim.emit("charge.dispute.closed", found, before)
    return found


def overdue(sim: Sim, id: str) -> None:
    """Lose a dispute whose evidence deadline has passed."""
    found = sim.store.get("dispute", id)
    if found and found["status"] in ("needs_response", "warning_needs_response"):
        found["evidence_details"] = found["evidence_details"] | {"past_due": True}
        settle(sim, id, won=False)


def decide(sim: Sim, id: str) -> None:
    """Close a dispute under review as its test evidence says: https://docs.stripe.com/testing#evidence."""
    found = sim.store.get("dispute", id)
    text = ((found or {}).get("evidence") or {}).get("uncategorized_text")
    reviewed = found is not None and found["status"] in ("under_review", "warning_under_review")
    if reviewed and text in ("winning_evidence", "losing_evidence"):
        settle(sim, id, won=text == "winning_evidence")


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Add evidence to a dispute, submit it unless `submit` is false, and return the dispute.

    Raises StripeError: 404 for an unknown id, 400 when it is closed.
    """
    found = sim.find("dispute", id)
    if found["status"] in _CLOSED:
        raise state("This dispute is already closed.", "dispute_already_closed")
    changes: Obj = {}
    if params.get("evidence"):
        changes["evidence"] = found["evidence"] | params["evidence"]
        changes["evidence_details"] = found["evidence_details"] | {"has_evidence": True}
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    if params.get("submit", True) and params.get("evidence"):
        details = changes["evidence_details"]
        changes["evidence_details"] = details | {
            "submission_count": details["submission_count"] + 1, "submission_method": "manual",
        }  # fmt: skip
        changes["status"] = (
            "warning_under_review" if found["status"].startswith("warning") else "under_review"
        )
        sim.schedule(sim.now(), "dispute.decide", id)
    previous = changed(found, changes)
    sim.save(found)
    sim.emit("charge.dispute.updated", found, previous)
    return found


def close(sim: Sim, params: Obj, id: str) -> Obj:
    """Accept a dispute, which is then lost, and return it. Raises StripeError: 404 for an unknown id, 400 when
    closed.
    """
    del params
    return settle(sim, id, won=False)


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a dispute. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("dispute", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return disputes, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("dispute"), params, "charge", "payment_intent")
    return page(found, params, "/v1/disputes", "dispute")


ACTIONS = {"dispute.open": open_for_card, "dispute.due": overdue, "dispute.decide": decide}
ROUTES = [
    route("GET", "/v1/disputes", "dispute_list", listing, "charge payment_intent created"),
    route("GET", "/v1/disputes/{id}", "dispute_retrieve", retrieve),
    route("POST", "/v1/disputes/{id}", "dispute_update", update),
    route("POST", "/v1/disputes/{id}/close", "dispute_close", close),
]
