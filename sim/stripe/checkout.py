"""Checkout sessions: https://docs.stripe.com/api/checkout/sessions. The payment page is in pages.py."""

from sim.stripe import catalog, customers, methods, payments
from sim.stripe.errors import Obj, invalid, not_simulated, state
from sim.stripe.params import cents, merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EXPANDABLE, Page, matching, page

_MINUTE = 60
_DAY = 86_400


def create(sim: Sim, params: Obj) -> Obj:
    """Create a session in mode payment or setup and return it with the URL of its page.

    Raises StripeError: 400 for invalid parameters, 404 for an unknown customer or price.
    """
    mode = params.get("mode") or "payment"
    if mode not in ("payment", "setup"):
        not_simulated(f"mode={mode}")
    if not params.get("success_url"):
        raise invalid("Missing required param: success_url.", param="success_url", code="parameter_missing")
    if params.get("customer"):
        customers.live(sim, params["customer"])
    expires = params.get("expires_at", sim.now() + _DAY)
    if not sim.now() + 30 * _MINUTE <= expires <= sim.now() + _DAY:
        raise invalid(
            "The `expires_at` timestamp must be between 30 minutes and 24 hours from Checkout Session creation.",
            param="expires_at",
        )
    made = sim.new("checkout.session", mode=mode, customer=params.get("customer") or None, _items=[])
    made |= {
        "metadata": merge_metadata(None, params.get("metadata")), "expires_at": expires, "status": "open",
        "client_reference_id": params.get("client_reference_id") or None, "payment_intent": None,
        "customer_email": params.get("customer_email") or None, "success_url": params["success_url"],
        "cancel_url": params.get("cancel_url") or None, "url": f"{sim.options.base_url}/pay/{made['id']}",
        "payment_status": "unpaid" if mode == "payment" else "no_payment_required", "ui_mode": "hosted_page",
        "payment_method_types": ["card"], "locale": params.get("locale") or None,
        "customer_creation": params.get("customer_creation") or ("if_required" if mode == "payment" else None),
        "_intent": (params.get("payment_intent_data" if mode == "payment" else "setup_intent_data") or {}),
        "customer_details": None, "phone_number_collection": None, "currency": "usd", "custom_text":
        dict.fromkeys(("after_submit", "shipping_address", "submit", "terms_of_service_acceptance")),
    }  # fmt: skip
    if mode == "payment":
        _price(sim, made, params)
    elif params.get("line_items"):
        raise invalid("You can not pass `line_items` in `setup` mode.", param="line_items")
    sim.schedule(expires, "checkout.expire", made["id"])
    return sim.save(made)


def _price(sim: Sim, session: Obj, params: Obj) -> None:
    if not params.get("line_items"):
        raise invalid("Missing required param: line_items.", param="line_items", code="parameter_missing")
    total = 0
    for at, line in enumerate(params["line_items"]):
        price = _price_of(sim, line, f"line_items[{at}]")
        quantity = line.get("quantity", 1)
        amount = cents(price["unit_amount_decimal"], quantity, f"line_items[{at}]")
        item = sim.new("item", price=sim.shown(price), quantity=quantity, currency="usd", _of=session["id"])
        product = sim.find("product", price["product"])
        item |= {
            "amount_subtotal": amount, "amount_total": amount, "amount_discount": 0, "amount_tax": 0,
            "description": product["name"],
        }  # fmt: skip
        item.pop("discounts", None)
        item.pop("taxes", None)
        sim.save(item)
        session["_items"].append(item["id"])
        total += amount
    if total < payments.MINIMUM:
        raise invalid(
            "The Checkout Session's total amount due must add up to at least $0.50 usd",
            code="amount_too_small",
        )
    session |= {"amount_subtotal": total, "amount_total": total}
    session["total_details"] = {"amount_discount": 0, "amount_shipping": 0, "amount_tax": 0}


def _price_of(sim: Sim, line: Obj, at: str) -> Obj:
    if line.get("price"):
        return sim.find("price", line["price"], f"{at}[price]")
    data = line.get("price_data")
    if not data:
        raise invalid("You must pass price or price_data.", param=at, code="parameter_missing")
    customers.usd(data["currency"])
    if data.get("recurring"):
        not_simulated(f"{at}[price_data][recurring]")
    product = data.get("product")
    if product is None:
        if not data.get("product_data"):
            raise invalid(
                "You must pass product or product_data.", param=f"{at}[price_data]", code="parameter_missing"
            )
        product = catalog.create_product(sim, {"name": data["product_data"]["name"]})["id"]
    return catalog.make_price(sim, data, sim.find("product", product, f"{at}[price_data][product]")["id"])


# Actions on the payment page


def complete(sim: Sim, id: str, card: str = "pm_card_visa") -> Obj:
    """Pay with a test card, or store the card in mode setup; return the session.

    Raises StripeError: 402 when the card is declined (the session stays open), 400 when the session is not
    open, 404 for an unknown id.
    """
    session = _open(sim, id)
    details = session["_intent"]
    customer = session["customer"]
    if customer is None and session["customer_creation"] == "always":
        customer = customers.create(sim, {"email": session["customer_email"]})["id"]
        session["customer"] = customer
    if session["mode"] == "setup":
        intent = methods.make_setup(sim, details | {"customer": customer})
        methods.confirm_setup(sim, {"payment_method": card}, intent["id"])
        session["setup_intent"] = intent["id"]
    else:
        _pay(sim, session, details, card)
        session["payment_status"] = "paid"
    session |= {"status": "complete", "url": None, "customer_details": _details(sim, session)}
    sim.save(session)
    sim.emit("checkout.session.completed", session)
    return session


def _pay(sim: Sim, session: Obj, details: Obj, card: str) -> None:
    intent_id = session["payment_intent"]
    if intent_id is None:
        intent = payments.make(
            sim, session["amount_total"], session["customer"],
            metadata=merge_metadata(None, details.get("metadata")), description=details.get("description") or None,
            setup_future_usage=details.get("setup_future_usage") or None,
            receipt_email=details.get("receipt_email") or session["customer_email"],
        )  # fmt: skip
        session["payment_intent"] = intent["id"]
        sim.save(session)
        intent_id = intent["id"]
    intent = sim.find("payment_intent", intent_id)
    intent["payment_method"] = methods.obtain(sim, card)["id"]
    sim.save(intent)
    payments.confirm_now(sim, intent)


def _details(sim: Sim, session: Obj) -> Obj:
    customer = sim.find("customer", session["customer"]) if session["customer"] else {}
    return {
        "address": None, "business_name": None, "email": customer.get("email") or session["customer_email"],
        "individual_name": None, "name": customer.get("name"), "phone": None, "tax_exempt": "none", "tax_ids": None,
    }  # fmt: skip


def move(sim: Sim) -> None:
    """Update the page URLs of open sessions after a restart under another base URL."""
    for session in sim.store.all("checkout.session"):
        url = f"{sim.options.base_url}/pay/{session['id']}"
        if session["status"] == "open" and session["url"] != url:
            session["url"] = url
            sim.save(session)


def _open(sim: Sim, id: str) -> Obj:
    found = sim.find("checkout.session", id)
    if found["status"] != "open":
        raise state(
            f"This Checkout Session is {found['status']} and takes no payment.", "checkout_session_not_open"
        )
    return found


def expire_now(sim: Sim, session: Obj) -> Obj:
    """Expire a session, so that it can no longer be completed, and return it."""
    session |= {"status": "expired", "url": None}
    sim.save(session)
    sim.emit("checkout.session.expired", session)
    return session


def expire_due(sim: Sim, id: str) -> None:
    """Expire a session whose expiry time has passed; a completed one is left unchanged."""
    found = sim.store.get("checkout.session", id)
    if found and found["status"] == "open":
        expire_now(sim, found)


def expire(sim: Sim, params: Obj, id: str) -> Obj:
    """Expire an open session and return it. Raises StripeError: 404 for an unknown id, 400 when it is not open."""
    del params
    found = sim.find("checkout.session", id)
    if found["status"] != "open":
        raise state(
            f'Only Checkout Sessions with a status in ["open"] can be expired. This Checkout Session has a status of'
            f" {found['status']}."
        )
    return expire_now(sim, found)


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a session. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("checkout.session", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return sessions, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("checkout.session"), params, "customer", "payment_intent", "status")
    return page(found, params, "/v1/checkout/sessions", "checkout session")


def items_of(sim: Sim, session: Obj) -> tuple[list[Obj], str]:
    """Return a session's line items and the list's path."""
    found = [sim.find("item", id) for id in session["_items"]]
    return found, f"/v1/checkout/sessions/{session['id']}/line_items"


def list_items(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of a session's line items. Raises StripeError as `page` does, and 404 for an unknown session."""
    found, url = items_of(sim, sim.find("checkout.session", id))
    return page(found, params, url, "line item")


EXPANDABLE["checkout.session", "line_items"] = items_of

_TAKES = (
    "mode line_items customer customer_email customer_creation success_url cancel_url client_reference_id metadata"
    " payment_intent_data setup_intent_data expires_at allowed_payment_method_types currency locale ui_mode"
    " customer_update payment_method_options saved_payment_method_options submit_type"
)
ACTIONS = {"checkout.expire": expire_due}
ROUTES = [
    route("POST", "/v1/checkout/sessions", "checkout/session_create", create, _TAKES),
    route(
        "GET",
        "/v1/checkout/sessions",
        "checkout/session_list",
        listing,
        "customer payment_intent status created",
    ),
    route("GET", "/v1/checkout/sessions/{id}", "checkout/session_retrieve", retrieve),
    route("POST", "/v1/checkout/sessions/{id}/expire", "checkout/session_expire", expire),
    route("GET", "/v1/checkout/sessions/{id}/line_items", "checkout/session_line_item_list", list_items),
]
