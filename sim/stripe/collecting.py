"""Invoice collection: immediate charges, retries (dunning), payment out of band, and the timers that drive them."""

from sim.stripe import charges, invoices, payments
from sim.stripe.errors import Obj, StripeError, invalid, state
from sim.stripe.methods import obtain
from sim.stripe.routes import route
from sim.stripe.sim import DUNNING_DAYS, Sim

_DAY = 86_400


def finalize_draft(sim: Sim, id: str) -> None:
    """Finalise a draft with auto_advance one hour after its creation; an empty draft is left unchanged."""
    found = sim.store.get("invoice", id)
    if not found or found["status"] != "draft" or not found["auto_advance"] or not found["_lines"]:
        return
    if found["automatically_finalizes_at"] and found["automatically_finalizes_at"] <= sim.now():
        invoices.finalize_now(sim, found)


def overdue(sim: Sim, id: str) -> None:
    """Emit invoice.overdue when the due date of a sent invoice passes without payment."""
    found = sim.store.get("invoice", id)
    if found and found["status"] == "open":
        sim.emit("invoice.overdue", found)


def attempt(sim: Sim, id: str) -> None:
    """Attempt one automatic charge; a failure schedules the next attempt, the last failure applies the
    account's rule.
    """
    found = sim.store.get("invoice", id)
    if not found or found["status"] != "open" or not found["auto_advance"]:
        return
    if found["next_payment_attempt"] is None or found["next_payment_attempt"] > sim.now():
        return
    tried = found["attempt_count"] + 1
    try:
        _charge(sim, found, None, off_session=True)
    except StripeError:
        found |= {"attempted": True, "attempt_count": tried}  # without a payment method, too
        _plan_retry(sim, found)


def _plan_retry(sim: Sim, invoice: Obj) -> None:
    """Schedule the next retry: 1, 3, 5 and 7 days after the first attempt."""
    tried = invoice["attempt_count"]
    first = invoice.setdefault("_first_attempt", sim.now())
    if tried <= len(DUNNING_DAYS):
        invoice["next_payment_attempt"] = max(sim.now() + 1, first + DUNNING_DAYS[tried - 1] * _DAY)
        sim.schedule(invoice["next_payment_attempt"], "invoice.attempt", invoice["id"])
    else:
        invoice["next_payment_attempt"] = None
    sim.save(invoice)
    _notify_failed(sim, invoice)
    if invoice["next_payment_attempt"] is None and sim.options.after_dunning == "uncollectible":
        invoices.give_up(sim, invoice)


def _notify_failed(sim: Sim, invoice: Obj) -> None:
    customer = sim.find("customer", invoice["customer"])
    if invoice["collection_method"] == "charge_automatically" and not customer["delinquent"]:
        customer["delinquent"] = True
        sim.save(customer)
        sim.emit("customer.updated", customer, {"delinquent": False})
    sim.emit("invoice.payment_failed", invoice)
    sim.emit("invoice.updated", invoice, {"attempt_count": invoice["attempt_count"] - 1})


def _charge(sim: Sim, invoice: Obj, method: str | None, *, off_session: bool) -> None:
    """Charge an open invoice. Raises StripeError (402 declined, 400 no payment method); a decline counts as an
    attempt.
    """
    customer = sim.find("customer", invoice["customer"])
    settings = customer["invoice_settings"]
    method = method or invoice["default_payment_method"] or settings.get("default_payment_method")
    if method is None:
        raise state(
            "This customer has no attached payment source or default payment method. Please consider adding a default"
            " payment method."
        )
    invoice |= {"attempted": True, "attempt_count": invoice["attempt_count"] + 1}
    sim.save(invoice)
    payments.check_amount(invoice["amount_remaining"])
    link = sim.find("invoice_payment", invoice["_payment"])
    intent = sim.find("payment_intent", link["payment"]["payment_intent"])
    intent |= {"amount": invoice["amount_remaining"], "payment_method": method}
    sim.save(intent)
    payments.confirm_now(sim, intent, off_session=off_session)
    link |= {"status": "paid", "amount_paid": intent["amount"]}
    link["status_transitions"] = link["status_transitions"] | {"paid_at": sim.now()}
    sim.save(link)
    _settled(sim, invoice, intent["amount"])
    sim.emit("invoice_payment.paid", link)


def _settled(sim: Sim, invoice: Obj, cents: int) -> None:
    invoices.close_paid(sim, invoice, paid=cents)
    customer = sim.find("customer", invoice["customer"])
    if customer["delinquent"] and not _failing(sim, customer["id"]):
        customer["delinquent"] = False
        sim.save(customer)
        sim.emit("customer.updated", customer, {"delinquent": True})


def _failing(sim: Sim, customer: str) -> bool:
    return any(
        each["customer"] == customer and each["status"] == "open" and each["attempted"]
        for each in sim.store.newest("invoice")
    )


def pay(sim: Sim, params: Obj, id: str) -> Obj:
    """Pay an invoice by card, or mark it as paid (`paid_out_of_band`), and return it. A draft is finalised
    first.

    Raises StripeError: 402 when the card is declined (the invoice stays open), 400 when it is closed, 404 for
    an unknown id.
    """
    found = sim.find("invoice", id)
    if found["status"] == "paid":
        raise state("Invoice is already paid")
    if found["status"] == "void":
        raise state("You cannot pay a voided invoice.", "invoice_not_editable")
    if found["status"] == "draft":
        invoices.finalize(sim, {}, id)
        if found["status"] == "paid":
            return found
    if params.get("paid_out_of_band"):
        if params.get("payment_method"):
            raise invalid("paid_out_of_band and payment_method exclude each other", param="payment_method")
        invoices.drop_payment(sim, found)
        found["amount_paid_off_stripe"] = found["amount_remaining"]
        _settled(sim, found, found["amount_remaining"])
        return found
    method = _payable(sim, found, params)
    try:
        _charge(sim, found, method, off_session=params.get("off_session", True))
    except StripeError as error:
        if error.status == 402:
            _notify_failed(sim, found)
        raise
    return found


def attach_payment(sim: Sim, params: Obj, id: str) -> Obj:
    """Credit a succeeded payment intent to an open invoice, as a payment of a part or of all of it, and return the
    invoice: https://docs.stripe.com/invoicing/partial-payments. Overpayment is not simulated.

    Raises StripeError: 404 for an unknown invoice or intent, 400 when the invoice is closed, the intent has not
    succeeded, is another customer's or attached already, or exceeds what remains.
    """
    found = sim.find("invoice", id)
    if found["status"] not in ("open", "uncollectible"):
        raise state(f"You can only attach payments to open invoices. This invoice is {found['status']}.")
    if not params.get("payment_intent"):
        raise invalid("Missing required param: payment_intent.", "payment_intent", "parameter_missing")
    intent = sim.find("payment_intent", params["payment_intent"], "payment_intent")
    if intent["customer"] != found["customer"]:
        raise invalid("The PaymentIntent must belong to the invoice's customer.", param="payment_intent")
    if intent["status"] != "succeeded" or intent["amount"] > found["amount_remaining"]:
        raise invalid("not simulated: pending payments and overpayment", "payment_intent", "not_simulated")
    if any(each["payment"]["payment_intent"] == intent["id"] for each in sim.store.all("invoice_payment")):
        raise invalid("The PaymentIntent is attached to an invoice already.", param="payment_intent")
    link = sim.new("invoice_payment", invoice=found["id"], amount_requested=intent["amount"], currency="usd")
    link |= {
        "amount_paid": intent["amount"], "is_default": False, "status": "paid",
        "payment": {"type": "payment_intent", "payment_intent": intent["id"]},
        "status_transitions": {"canceled_at": None, "paid_at": sim.now()},
    }  # fmt: skip
    sim.save(link)
    before = {name: found[name] for name in ("amount_paid", "amount_remaining")}
    if intent["amount"] == found["amount_remaining"]:
        invoices.drop_payment(sim, found)
        _settled(sim, found, intent["amount"])
    else:
        found["amount_paid"] += intent["amount"]
        found["amount_remaining"] -= intent["amount"]
        sim.save(found)
        sim.emit("invoice.updated", found, before)
    sim.emit("invoice_payment.paid", link)
    return found


def _payable(sim: Sim, invoice: Obj, params: Obj) -> str | None:
    if not params.get("payment_method"):
        return None
    method = obtain(sim, params["payment_method"])
    if method["customer"] not in (None, invoice["customer"]):
        raise invalid("The payment method must belong to the invoice's customer.", param="payment_method")
    return str(method["id"])


def charge_of(sim: Sim, invoice: Obj) -> Obj | None:
    """Return the newest charge that paid the invoice or a part of it; None when there is none."""
    for link in invoices.payments_of(sim, invoice)[0]:
        intent = sim.find("payment_intent", link["payment"]["payment_intent"])
        if intent["status"] == "succeeded":
            return charges.retrieve(sim, {}, intent["latest_charge"])
    return None


ACTIONS = {"invoice.finalize": finalize_draft, "invoice.attempt": attempt, "invoice.overdue": overdue}
ROUTES = [
    route(
        "POST", "/v1/invoices/{id}/attach_payment", "invoice_attach_payment", attach_payment, "payment_intent"
    ),
    route("POST", "/v1/invoices/{id}/pay", "invoice_pay", pay, "payment_method off_session paid_out_of_band"),
]
