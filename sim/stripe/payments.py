"""Payment intents: https://docs.stripe.com/api/payment_intents."""

from typing import Any

from sim.stripe import charges, customers
from sim.stripe.errors import Obj, StripeError, invalid, state
from sim.stripe.methods import attach_to, obtain
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import Page, changed, matching, page

MINIMUM = 50
"""Smallest amount in cents that can be charged in USD."""
MAXIMUM = 99_999_999
"""Largest amount in cents that can be charged in USD."""
_OPEN = ("requires_payment_method", "requires_confirmation", "requires_action")


def make(sim: Sim, amount: int, customer: str | None, **fields: Any) -> Obj:
    """Store and return a payment intent of `amount` cents without a payment method."""
    made = sim.new("payment_intent", amount=amount, customer=customer)
    made |= {
        "client_secret": f"{made['id']}_secret_{sim.id('x')[2:]}", "status": "requires_payment_method",
        "payment_method": None, "payment_method_types": ["card"], "automatic_payment_methods": None,
        "canceled_at": None, "amount_received": 0, "metadata": {}, "capture_method": "automatic_async",
    } | fields  # fmt: skip
    sim.save(made)
    sim.emit("payment_intent.created", made)
    return made


def check_amount(amount: int) -> None:
    """Raise StripeError (400) for an amount in cents that a card cannot be charged."""
    if amount < MINIMUM:
        raise invalid(
            "Amount must be at least $0.50 usd" if amount > 0 else "This value must be greater than or equal to 1.",
            param="amount", code="amount_too_small" if amount > 0 else "parameter_invalid_integer",
        )  # fmt: skip
    if amount > MAXIMUM:
        raise invalid("Amount must be no more than $999,999.99", param="amount", code="amount_too_large")


def create(sim: Sim, params: Obj) -> Obj:
    """Create a payment intent, charge it if `confirm` is set, and return it.

    Raises StripeError: 402 when the card is declined, 404 for an unknown customer or payment method, 400 for
    invalid parameters.
    """
    customers.usd(params["currency"])
    check_amount(params["amount"])
    if params.get("customer"):
        customers.live(sim, params["customer"])
    if params.get("off_session") and not params.get("confirm"):
        raise invalid("off_session is allowed only with confirm=true", param="off_session")
    method = obtain(sim, params["payment_method"]) if params.get("payment_method") else None
    _check_owner(method, params.get("customer"))
    automatic = params.get("automatic_payment_methods")
    made = make(
        sim, params["amount"], params.get("customer") or None,
        description=params.get("description") or None,
        receipt_email=params.get("receipt_email") or None,
        metadata=merge_metadata(None, params.get("metadata")),
        setup_future_usage=params.get("setup_future_usage") or None,
        statement_descriptor_suffix=params.get("statement_descriptor_suffix") or None,
        automatic_payment_methods={"enabled": automatic["enabled"]} if automatic else None,
    )  # fmt: skip
    if method is not None:
        made |= {"payment_method": method["id"], "status": "requires_confirmation"}
        sim.save(made)
    return (
        confirm_now(sim, made, off_session=bool(params.get("off_session"))) if params.get("confirm") else made
    )


def _check_owner(method: Obj | None, customer: str | None) -> None:
    if method is not None and method["customer"] is not None and method["customer"] != customer:
        raise invalid(
            f"The PaymentMethod {method['id']} belongs to the Customer {method['customer']}. Please include the"
            " Customer in the `customer` parameter.",
            param="payment_method",
        )
    if method is not None and method.get("_detached"):
        raise invalid(
            "This PaymentMethod was detached from its Customer and may not be used again.",
            param="payment_method",
        )


def confirm_now(sim: Sim, intent: Obj, *, off_session: bool = False) -> Obj:
    """Charge the intent's payment method and return the intent.

    Raises StripeError (402), whose body contains the intent, when the card is declined.
    """
    method = sim.find("payment_method", intent["payment_method"], "payment_method")
    intent["_off_session"] = off_session
    charge, error = charges.make(sim, intent, method)
    intent["latest_charge"] = charge["id"]
    if error is not None:
        _fail(sim, intent, method, charge, error)
        raise error
    if intent["customer"] and intent["setup_future_usage"]:
        attach_to(sim, method, intent["customer"])
    intent |= {"status": "succeeded", "amount_received": intent["amount"], "last_payment_error": None}
    sim.save(intent)
    sim.emit("charge.succeeded", charge)
    sim.emit("payment_intent.succeeded", intent)
    return intent


def _fail(sim: Sim, intent: Obj, method: Obj, charge: Obj, error: StripeError) -> None:
    intent |= {
        "status": "requires_payment_method",
        "last_payment_error": dict(error.error) | {"payment_method": sim.shown(method)},
        "payment_method": None,
    }
    sim.save(intent)
    error.error["payment_intent"] = sim.shown(intent)
    error.error["payment_method"] = sim.shown(method)
    sim.emit("charge.failed", charge)
    sim.emit("payment_intent.payment_failed", intent)


def confirm(sim: Sim, params: Obj, id: str) -> Obj:
    """Confirm a payment intent and return it.

    Raises StripeError: 402 when the card is declined, 404 for an unknown id, 400 when the status does not allow
    it or no payment method is set.
    """
    found = sim.find("payment_intent", id)
    if found["status"] not in _OPEN:
        raise _unexpected(found, "confirm")
    if params.get("payment_method"):
        method = obtain(sim, params["payment_method"])
        _check_owner(method, found["customer"])
        found["payment_method"] = method["id"]
    if found["payment_method"] is None:
        raise state(
            "You cannot confirm this PaymentIntent because it's missing a payment method.",
            "payment_intent_unexpected_state",
        )
    return confirm_now(sim, found, off_session=bool(params.get("off_session")))


def _unexpected(intent: Obj, act: str) -> StripeError:
    return StripeError(
        f"You cannot {act} this PaymentIntent because it has a status of {intent['status']}.",
        code="payment_intent_unexpected_state", payment_intent=dict(intent),
    )  # fmt: skip


def cancel_now(sim: Sim, intent: Obj, reason: str | None) -> Obj:
    """Cancel an open intent and return it."""
    intent |= {"status": "canceled", "canceled_at": sim.now(), "cancellation_reason": reason}
    sim.save(intent)
    sim.emit("payment_intent.canceled", intent)
    return intent


def cancel(sim: Sim, params: Obj, id: str) -> Obj:
    """Cancel a payment intent and return it. Raises StripeError: 404 for an unknown id, 400 when it is not open."""
    found = sim.find("payment_intent", id)
    if found["status"] not in _OPEN:
        raise _unexpected(found, "cancel")
    return cancel_now(sim, found, params.get("cancellation_reason") or None)


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update an intent and return it; amount and payment method can only change while it is open.

    Raises StripeError: 404 for an unknown id, 400 for a change that the status does not allow.
    """
    found = sim.find("payment_intent", id)
    if found["status"] not in _OPEN and set(params) & {"amount", "payment_method", "customer"}:
        raise _unexpected(found, "update")
    changes: Obj = {name: params[name] or None for name in ("description", "receipt_email") if name in params}
    if "amount" in params:
        check_amount(params["amount"])
        changes["amount"] = params["amount"]
    if params.get("payment_method"):
        method = obtain(sim, params["payment_method"])
        _check_owner(method, found["customer"])
        changes |= {"payment_method": method["id"], "status": "requires_confirmation"}
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    changed(found, changes)
    return sim.save(found)


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a payment intent. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("payment_intent", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return payment intents, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("payment_intent"), params, "customer")
    return page(found, params, "/v1/payment_intents", "payment_intent")


_TAKES = (
    "amount currency customer description metadata payment_method allowed_payment_method_types confirm off_session"
    " setup_future_usage receipt_email automatic_payment_methods statement_descriptor_suffix error_on_requires_action"
    " return_url"
)
ROUTES = [
    route("POST", "/v1/payment_intents", "payment_intent_create", create, _TAKES),
    route("GET", "/v1/payment_intents", "payment_intent_list", listing, "customer created"),
    route("GET", "/v1/payment_intents/{id}", "payment_intent_retrieve", retrieve),
    route("POST", "/v1/payment_intents/{id}", "payment_intent_update", update,
          "amount description metadata payment_method receipt_email"),
    route("POST", "/v1/payment_intents/{id}/confirm", "payment_intent_confirm", confirm,
          "payment_method off_session return_url error_on_requires_action"),
    route("POST", "/v1/payment_intents/{id}/cancel", "payment_intent_cancel", cancel, "cancellation_reason"),
]  # fmt: skip
