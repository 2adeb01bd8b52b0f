"""Payment methods and setup intents: https://docs.stripe.com/api/payment_methods."""

from sim.stripe import customers
from sim.stripe.cards import CARDS, Card, declined
from sim.stripe.errors import Obj, invalid, no_such, state
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import Page, matching, page


def card_of(method: Obj) -> Card:
    """Return the test card that defines how a payment method behaves."""
    return CARDS[method["_card"]]


def obtain(sim: Sim, id: str, param: str = "payment_method") -> Obj:
    """Return the payment method with this id, or a new one of the test card with this name. Raises StripeError
    (404).
    """
    card = CARDS.get(id)
    if card is None:
        found = sim.store.get("payment_method", id)
        if found is None:
            raise no_such("PaymentMethod", id, param)
        return found
    made = sim.new("payment_method", customer=None, metadata={}, _card=id)
    made["billing_details"] = {
        "address": dict.fromkeys(("city", "country", "line1", "line2", "postal_code", "state")),
        "email": None, "name": None, "phone": None, "tax_id": None,
    }  # fmt: skip
    made["card"] = made["card"] | {"brand": card.brand, "display_brand": card.brand, "last4": card.last4}
    made["card"]["networks"] = {"available": [card.brand], "preferred": None}
    made["card"]["exp_year"] = 2034
    return sim.save(made)


def attach_to(sim: Sim, method: Obj, customer: str) -> Obj:
    """Attach a payment method to a customer and return it.

    Raises StripeError: 402 for a card that is declined on attachment, 400 when it is attached to another
    customer or was detached before, 404 for an unknown customer.
    """
    customers.live(sim, customer)
    if method["customer"] == customer:
        return method
    if method["customer"] is not None:
        raise state(
            "The payment method you provided has already been attached to a customer.",
            "payment_method_unexpected_state",
        )
    if method.get("_detached"):
        raise state(
            "This PaymentMethod was previously used and detached from a Customer, and may not be used again.",
            "payment_method_unexpected_state",
        )
    code, decline_code = card_of(method).attach_decline
    if code:
        raise declined(code, decline_code)
    method["customer"] = customer
    sim.save(method)
    sim.emit("payment_method.attached", method)
    return method


def attach(sim: Sim, params: Obj, id: str) -> Obj:
    """Attach a payment method to a customer and return it.

    Raises StripeError: 402 for a declined card, 404 for an unknown customer or payment method, 400 without a
    customer.
    """
    if not params.get("customer"):
        raise invalid("Missing required param: customer.", param="customer", code="parameter_missing")
    customers.live(sim, params["customer"])
    return attach_to(sim, obtain(sim, id, "id"), params["customer"])


def detach(sim: Sim, params: Obj, id: str) -> Obj:
    """Detach a payment method for good and return it.

    Raises StripeError: 404 for an unknown id, 400 when it is not attached.
    """
    del params
    found = sim.find("payment_method", id)
    owner = found["customer"]
    if owner is None:
        raise state(
            "The payment method you provided is not attached to a customer so detachment is impossible."
        )
    customer = sim.find("customer", owner)
    if customer["invoice_settings"].get("default_payment_method") == id:
        customer["invoice_settings"] = customer["invoice_settings"] | {"default_payment_method": None}
        sim.save(customer)
    found |= {"customer": None, "_detached": True}
    sim.save(found)
    sim.emit("payment_method.detached", found, {"customer": owner})
    return found


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a payment method. Raises StripeError (404) for an unknown id."""
    del params
    found = sim.store.get("payment_method", id)
    if found is None:
        raise no_such("PaymentMethod", id)
    return found


def of_customer(sim: Sim, id: str) -> list[Obj]:
    """Return a customer's payment methods, newest first."""
    return [each for each in sim.store.newest("payment_method") if each["customer"] == id]


def list_of_customer(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of a customer's payment methods, newest first.

    Raises StripeError as `page` does, and 404 for an unknown customer.
    """
    customers.live(sim, id)
    found = matching(of_customer(sim, id), params, "type")
    return page(found, params, f"/v1/customers/{id}/payment_methods", "payment_method")


def retrieve_of_customer(sim: Sim, params: Obj, id: str, method: str) -> Obj:
    """Return a customer's payment method. Raises StripeError (404) for an unknown customer or id."""
    del params
    found = sim.find("payment_method", method)
    if found["customer"] != id:
        raise no_such("PaymentMethod", method)
    return found


def listing(sim: Sim, params: Obj) -> Page:
    """Return payment methods of one customer or of all, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("payment_method"), params, "customer", "type")
    return page(found, params, "/v1/payment_methods", "payment_method")


# Setup intents


def make_setup(sim: Sim, params: Obj) -> Obj:
    """Create a setup intent in requires_payment_method or requires_confirmation, and return it.

    Raises StripeError: 404 for an unknown customer or payment method, 400 for invalid parameters.
    """
    if params.get("customer"):
        customers.live(sim, params["customer"])
    made = sim.new(
        "setup_intent", customer=params.get("customer"), usage=params.get("usage") or "off_session"
    )
    made |= {
        "description": params.get("description"),
        "metadata": merge_metadata(None, params.get("metadata")),
        "client_secret": f"{made['id']}_secret_{sim.id('x')[2:]}",
        "payment_method_types": ["card"],
        "automatic_payment_methods": None, "payment_method": None, "status": "requires_payment_method",
    }  # fmt: skip
    if params.get("payment_method"):
        made |= {
            "payment_method": obtain(sim, params["payment_method"])["id"],
            "status": "requires_confirmation",
        }
    sim.save(made)
    sim.emit("setup_intent.created", made)
    return made


def create_setup(sim: Sim, params: Obj) -> Obj:
    """Create a setup intent, confirm it if `confirm` is set, and return it.

    Raises StripeError: 402 for a declined card, 404 for an unknown customer or payment method, 400 for invalid
    parameters.
    """
    made = make_setup(sim, params)
    return _confirm(sim, made, None) if params.get("confirm") else made


def confirm_setup(sim: Sim, params: Obj, id: str) -> Obj:
    """Confirm a setup intent, which attaches its card to the customer, and return it.

    Raises StripeError: 402 for a declined card, 404 for an unknown id, 400 when the status does not allow it.
    """
    return _confirm(sim, sim.find("setup_intent", id), params.get("payment_method"))


def _confirm(sim: Sim, intent: Obj, method: str | None) -> Obj:
    if intent["status"] in ("succeeded", "canceled"):
        raise state(
            f"You cannot confirm this SetupIntent because it has a status of {intent['status']}.",
            "setup_intent_unexpected_state",
        )
    method = method or intent["payment_method"]
    if not method:
        raise state(
            "You cannot confirm this SetupIntent because it's missing a payment method.",
            "setup_intent_unexpected_state",
        )
    kept = obtain(sim, method)
    code, decline_code = card_of(kept).attach_decline
    if code:
        error = declined(code, decline_code)
        intent |= {"status": "requires_payment_method", "payment_method": None}
        intent["last_setup_error"] = dict(error.error)
        sim.save(intent)
        sim.emit("setup_intent.setup_failed", intent)
        error.error["setup_intent"] = sim.shown(intent)
        raise error
    if intent["customer"]:
        attach_to(sim, kept, intent["customer"])
    intent |= {"status": "succeeded", "payment_method": kept["id"], "last_setup_error": None}
    sim.save(intent)
    sim.emit("setup_intent.succeeded", intent)
    return intent


def cancel_setup(sim: Sim, params: Obj, id: str) -> Obj:
    """Cancel a setup intent and return it. Raises StripeError: 404 for an unknown id, 400 when it is closed."""
    found = sim.find("setup_intent", id)
    if found["status"] in ("succeeded", "canceled"):
        raise state(
            f"You cannot cancel this SetupIntent because it has a status of {found['status']}.",
            "setup_intent_unexpected_state",
        )
    found |= {"status": "canceled", "cancellation_reason": params.get("cancellation_reason")}
    sim.save(found)
    sim.emit("setup_intent.canceled", found)
    return found


def retrieve_setup(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a setup intent. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("setup_intent", id)


def list_setups(sim: Sim, params: Obj) -> Page:
    """Return setup intents, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("setup_intent"), params, "customer", "payment_method")
    return page(found, params, "/v1/setup_intents", "setup_intent")


_SETUP = (
    "customer usage description metadata payment_method allowed_payment_method_types confirm"
    " automatic_payment_methods"
)
ROUTES = [
    route("POST", "/v1/payment_methods/{id}/attach", "payment_method_attach", attach, "customer"),
    route("POST", "/v1/payment_methods/{id}/detach", "payment_method_detach", detach),
    route("GET", "/v1/payment_methods/{id}", "payment_method_retrieve", retrieve),
    route("GET", "/v1/payment_methods", "payment_method_list", listing, "customer type"),
    route(
        "GET", "/v1/customers/{id}/payment_methods", "customer_payment_method_list", list_of_customer, "type"
    ),
    route(
        "GET",
        "/v1/customers/{id}/payment_methods/{pm}",
        "customer_payment_method_retrieve",
        retrieve_of_customer,
    ),
    route("POST", "/v1/setup_intents", "setup_intent_create", create_setup, _SETUP),
    route("GET", "/v1/setup_intents", "setup_intent_list", list_setups, "customer payment_method created"),
    route("GET", "/v1/setup_intents/{id}", "setup_intent_retrieve", retrieve_setup),
    route(
        "POST",
        "/v1/setup_intents/{id}/confirm",
        "setup_intent_confirm",
        confirm_setup,
        "payment_method return_url",
    ),
    route(
        "POST", "/v1/setup_intents/{id}/cancel", "setup_intent_cancel", cancel_setup, "cancellation_reason"
    ),
]
