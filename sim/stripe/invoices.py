"""Invoices from draft to closed: https://docs.stripe.com/api/invoices. Their payment is in collecting.py."""

from typing import Any

from sim.stripe import customers, items, payments
from sim.stripe.errors import Obj, invalid, state
from sim.stripe.methods import obtain
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EXPANDABLE, Page, changed, in_range, matching, page

_HOUR = 3600
_DAY = 86_400


def create(sim: Sim, params: Obj) -> Obj:
    """Create a draft and return it; it takes the customer's pending items if `pending_invoice_items_behavior`
    is include.

    Raises StripeError: 400 for invalid parameters, 404 for an unknown customer or payment method.
    """
    customers.usd(params.get("currency"))
    if not params.get("customer"):
        raise invalid("Missing required param: customer.", param="customer", code="parameter_missing")
    customer = customers.live(sim, params["customer"])
    method = params.get("collection_method") or "charge_automatically"
    _check_due(sim, params, method)
    waiting = (
        items.waiting(sim, customer["id"])
        if params.get("pending_invoice_items_behavior") == "include"
        else []
    )
    items.room(len(waiting))
    made = sim.new("invoice", customer=customer["id"], collection_method=method, _lines=[], _payment=None)
    made |= _who(customer) | {
        "auto_advance": params.get("auto_advance", False), "description": params.get("description") or None,
        "metadata": merge_metadata(None, params.get("metadata")), "footer": params.get("footer") or None,
        "default_payment_method": _method(sim, params, customer), "number": params.get("number") or None,
        "period_start": sim.now(), "period_end": sim.now(), "due_date": None, "next_payment_attempt": None,
        "amount_overpaid": 0, "amount_paid": 0, "effective_at": params.get("effective_at"), "status": "draft",
        "starting_balance": customer["balance"], "from_invoice": None, "parent": None, "total_taxes": [],
        "total_pretax_credit_amounts": [], "last_finalization_error": None, "automatically_finalizes_at": None,
        "_days_until_due": params.get("days_until_due"), "_due_date": params.get("due_date"),
    }  # fmt: skip
    _plan(sim, made)
    items.put_on(sim, made, waiting)
    items.forget(sim, customer["id"], {each["id"] for each in waiting})
    sim.emit("invoice.created", made)
    return made


def _check_due(sim: Sim, params: Obj, method: str) -> None:
    for name in ("days_until_due", "due_date"):
        if params.get(name) is not None and method != "send_invoice":
            raise invalid(f"You can only specify {name} if collection_method is send_invoice.", param=name)
    if params.get("due_date") is not None and params["due_date"] <= sim.now():
        raise invalid("due_date must be in the future.", param="due_date")
    if method == "send_invoice" and params.get("days_until_due") is None and params.get("due_date") is None:
        raise invalid(
            "If collection_method is send_invoice, days_until_due or due_date is required.",
            param="days_until_due", code="parameter_missing",
        )  # fmt: skip


def _who(customer: Obj) -> Obj:
    names = ("address", "email", "name", "phone", "shipping", "tax_exempt")
    return {f"customer_{name}": customer[name] for name in names} | {"customer_tax_ids": []}


def _method(sim: Sim, params: Obj, customer: Obj) -> str | None:
    if not params.get("default_payment_method"):
        return None
    method = obtain(sim, params["default_payment_method"], "default_payment_method")
    if method["customer"] != customer["id"]:
        raise invalid(
            "The payment method must belong to the invoice's customer.", param="default_payment_method"
        )
    return str(method["id"])


def _plan(sim: Sim, invoice: Obj) -> None:
    """Schedule the finalisation of a draft with auto_advance, one hour from now."""
    if invoice["auto_advance"] and invoice["status"] == "draft":
        invoice["automatically_finalizes_at"] = sim.now() + _HOUR
        sim.schedule(sim.now() + _HOUR, "invoice.finalize", invoice["id"])


def add_lines(sim: Sim, params: Obj, id: str) -> Obj:
    """Add lines to a draft, either new or from pending items, and return it.

    Raises StripeError: 404 for an unknown invoice or item, 400 when it is no draft or has too many lines.
    """
    found = sim.find("invoice", id)
    items.not_editable(found)
    items.room(len(found["_lines"]) + len(params["lines"]))
    made: list[Obj] = []
    for at, line in enumerate(params["lines"]):
        if "invoice_item" in line:
            item = sim.find("invoiceitem", line["invoice_item"], f"lines[{at}][invoice_item]")
            if item["invoice"] is not None or item["customer"] != found["customer"]:
                raise invalid(
                    "The invoice item is on an invoice, or another customer's.", param=f"lines[{at}]"
                )
            made.append(item)
        else:
            made.append(items.build(sim, line, found["customer"]))
    items.put_on(sim, found, made)
    items.forget(sim, found["customer"], {each["id"] for each in made})
    if "invoice_metadata" in params:
        found["metadata"] = merge_metadata(found["metadata"], params["invoice_metadata"])
    sim.save(found)
    sim.emit("invoice.updated", found, {})
    return found


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a draft and return it; a finalised invoice accepts metadata, auto_advance and
    default_payment_method only.

    Raises StripeError: 404 for an unknown id, 400 for a change that the status does not allow.
    """
    found = sim.find("invoice", id)
    if set(params) - {"metadata", "auto_advance", "default_payment_method"}:
        items.not_editable(found)
    changes: Obj = {
        name: params[name] or None for name in ("description", "footer", "number") if name in params
    }
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    if "auto_advance" in params:
        changes["auto_advance"] = params["auto_advance"]
    if "default_payment_method" in params:
        changes["default_payment_method"] = _method(sim, params, sim.find("customer", found["customer"]))
    if params.get("collection_method") or params.get("days_until_due") is not None or params.get("due_date"):
        method = params.get("collection_method") or found["collection_method"]
        _check_due(sim, params, method)
        changes["collection_method"] = method
        found |= {"_days_until_due": params.get("days_until_due"), "_due_date": params.get("due_date")}
    previous = changed(found, changes)
    if previous.get("auto_advance") is False:
        _plan(sim, found)
    sim.save(found)
    if previous:
        sim.emit("invoice.updated", found, previous)
    return found


def delete(sim: Sim, params: Obj, id: str) -> Obj:
    """Delete a draft; its items become pending again. Raises StripeError: 404 for an unknown id, 400 when it is
    no draft.
    """
    del params
    found = sim.find("invoice", id)
    items.not_editable(found)
    for line in found["_lines"]:
        item = sim.find(
            "invoiceitem", sim.find("line_item", line)["parent"]["invoice_item_details"]["invoice_item"]
        )
        item["invoice"] = None
        sim.save(item)
        items.remember(sim, item)
        sim.store.drop("line_item", line)
    sim.store.drop("invoice", id)
    sim.emit("invoice.deleted", found | {"_lines": []})
    return {"id": id, "object": "invoice", "deleted": True}


# Finalising


def finalize_now(sim: Sim, invoice: Obj) -> Obj:
    """Finalise a draft: number it, apply the customer's balance and open it; an invoice with nothing due
    becomes paid.

    An amount due below the minimum charge (50 cents) is moved to the customer's balance, and the next invoice
    collects it, as Stripe does: https://docs.stripe.com/billing/customer/balance
    """
    customer = sim.find("customer", invoice["customer"])
    start = customer["balance"]
    due = max(0, invoice["total"] + start)
    carried = min(0, invoice["total"] + start)
    if carried != start:
        customers.book_balance(
            sim, customer["id"], carried - start, "applied_to_invoice", invoice=invoice["id"]
        )
    if 0 < due < payments.MINIMUM:
        customers.book_balance(sim, customer["id"], due, "invoice_too_small", invoice=invoice["id"])
        carried, due = due, 0
    number = invoice["number"] or f"{customer['invoice_prefix']}-{customer['next_invoice_sequence']:04d}"
    customer["next_invoice_sequence"] += 1
    customer["currency"] = "usd"
    sim.save(customer)
    now = sim.now()
    invoice |= {
        "starting_balance": start, "ending_balance": carried, "amount_due": due, "amount_remaining": due,
        "number": number, "status": "open", "effective_at": invoice["effective_at"] or now,
        "automatically_finalizes_at": None, "due_date": _due_date(invoice, now),
        "hosted_invoice_url": f"{sim.options.base_url}/invoice/{invoice['id']}",
        "invoice_pdf": f"{sim.options.base_url}/invoice/{invoice['id']}/pdf",
    }  # fmt: skip
    invoice["status_transitions"] = invoice["status_transitions"] | {"finalized_at": now}
    sim.save(invoice)
    sim.emit("invoice.finalized", invoice)
    if due == 0:
        close_paid(sim, invoice)
        return invoice
    _ask_payment(sim, invoice)
    if invoice["collection_method"] == "charge_automatically" and invoice["auto_advance"]:
        invoice["next_payment_attempt"] = now
        sim.schedule(now, "invoice.attempt", invoice["id"])
    elif invoice["due_date"]:
        sim.schedule(invoice["due_date"], "invoice.overdue", invoice["id"])
    return sim.save(invoice)


def _due_date(invoice: Obj, now: int) -> int | None:
    if invoice["collection_method"] != "send_invoice":
        return None
    return int(invoice["_due_date"] or now + _DAY * (invoice["_days_until_due"] or 0))


def _ask_payment(sim: Sim, invoice: Obj) -> None:
    """Create the payment intent of an open invoice, and the invoice payment that links both."""
    intent = payments.make(
        sim, invoice["amount_due"], invoice["customer"],
        description=f"Invoice {invoice['number']}", metadata={},
    )  # fmt: skip
    link = sim.new(
        "invoice_payment", invoice=invoice["id"], amount_requested=invoice["amount_due"], currency="usd"
    )
    link |= {
        "amount_paid": None, "is_default": True, "status": "open",
        "payment": {"type": "payment_intent", "payment_intent": intent["id"]},
        "status_transitions": {"canceled_at": None, "paid_at": None},
    }  # fmt: skip
    sim.save(link)
    invoice["_payment"] = link["id"]
    sim.save(invoice)


def close_paid(sim: Sim, invoice: Obj, *, paid: int = 0) -> None:
    """Mark the invoice as paid by `paid` cents that were received now."""
    now = sim.now()
    before = {"status": invoice["status"], "amount_remaining": invoice["amount_remaining"]}
    invoice |= {
        "status": "paid", "amount_paid": invoice["amount_paid"] + paid, "amount_remaining": 0,
        "next_payment_attempt": None,
    }  # fmt: skip
    invoice["status_transitions"] = invoice["status_transitions"] | {"paid_at": now}
    sim.save(invoice)
    sim.emit("invoice.updated", invoice, before)
    sim.emit("invoice.paid", invoice)
    sim.emit("invoice.payment_succeeded", invoice)


def drop_payment(sim: Sim, invoice: Obj) -> None:
    """Cancel the open payment intent of an invoice that no longer needs payment."""
    link = sim.store.get("invoice_payment", invoice["_payment"] or "")
    if link is None or link["status"] != "open":
        return
    intent = sim.find("payment_intent", link["payment"]["payment_intent"])
    if intent["status"] not in ("succeeded", "canceled"):
        payments.cancel_now(sim, intent, "void_invoice")
    link |= {"status": "canceled"}
    link["status_transitions"] = link["status_transitions"] | {"canceled_at": sim.now()}
    sim.save(link)


def finalize(sim: Sim, params: Obj, id: str) -> Obj:
    """Finalise a draft and return it.

    Raises StripeError: 404 for an unknown id, 400 when it is no draft or has no lines.
    """
    found = sim.find("invoice", id)
    if found["status"] != "draft":
        raise state(
            "This invoice is already finalized, you can't re-finalize a non-draft invoice.",
            "invoice_not_editable",
        )
    if "auto_advance" in params:
        found["auto_advance"] = params["auto_advance"]
    if not found["_lines"]:
        raise state("Nothing to invoice for customer", "invoice_no_customer_line_items")
    return finalize_now(sim, found)


def void(sim: Sim, params: Obj, id: str) -> Obj:
    """Void an invoice and return it.

    Raises StripeError: 404 for an unknown id, 400 when it is closed or has payments or credit notes.
    """
    del params
    found = sim.find("invoice", id)
    if found["status"] not in ("open", "uncollectible"):
        raise state(
            f"You can only pass in open invoices. This invoice is {found['status']}.", "invoice_not_editable"
        )
    if found["amount_paid"] or found["pre_payment_credit_notes_amount"]:
        raise state("You cannot void an invoice with payments or credit notes.", "invoice_not_editable")
    return _end(sim, found, "void", "voided_at", "invoice.voided")


def mark_uncollectible(sim: Sim, params: Obj, id: str) -> Obj:
    """Mark an open invoice as uncollectible and return it. Raises StripeError: 404 for an unknown id, 400 when
    not open.
    """
    del params
    found = sim.find("invoice", id)
    if found["status"] != "open":
        raise state(
            f"You can only pass in open invoices. This invoice is {found['status']}.", "invoice_not_editable"
        )
    return give_up(sim, found)


def give_up(sim: Sim, invoice: Obj) -> Obj:
    """Mark the invoice as uncollectible and return it; it can still be paid."""
    return _end(sim, invoice, "uncollectible", "marked_uncollectible_at", "invoice.marked_uncollectible")


def _end(sim: Sim, invoice: Obj, status: str, transition: str, event: str) -> Obj:
    before = {"status": invoice["status"]}
    if status == "void":
        drop_payment(sim, invoice)
        applied = invoice["ending_balance"] - invoice["starting_balance"]
        if applied:
            customers.book_balance(
                sim, invoice["customer"], -applied, "unapplied_from_invoice", invoice=invoice["id"]
            )
    invoice |= {"status": status, "next_payment_attempt": None}
    if status == "void":
        invoice["amount_remaining"] = 0
    invoice["status_transitions"] = invoice["status_transitions"] | {transition: sim.now()}
    sim.save(invoice)
    sim.emit("invoice.updated", invoice, before)
    sim.emit(event, invoice)
    return invoice


def send(sim: Sim, params: Obj, id: str) -> Obj:
    """Send an invoice and return it; a draft is finalised first.

    Raises StripeError: 404 for an unknown id, 400 for an automatically charged or closed invoice.
    """
    del params
    found = sim.find("invoice", id)
    if found["collection_method"] != "send_invoice":
        raise state("You can only manually send an invoice if its collection method is 'send_invoice'.")
    if found["status"] not in ("draft", "open"):
        raise state(f"You can only send draft and open invoices. This invoice is {found['status']}.")
    if found["status"] == "draft":
        finalize(sim, {}, id)
    sim.emit("invoice.sent", found)
    return found


# Reading


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return an invoice. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("invoice", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return invoices, newest first. Raises StripeError as `page` does."""
    found: Any = matching(sim.store.newest("invoice"), params, "customer", "status", "collection_method")
    if "due_date" in params:
        found = [
            each for each in found if each["due_date"] and in_range(each["due_date"], params["due_date"])
        ]
    return page(found, params, "/v1/invoices", "invoice")


def list_lines(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of an invoice's lines. Raises StripeError as `page` does, and 404 for an unknown invoice."""
    found, url = items.lines_of(sim, sim.find("invoice", id))
    return page(found, params, url, "invoice line item")


def payments_of(sim: Sim, invoice: Obj) -> tuple[list[Obj], str]:
    """Return the payments of one invoice and the list's path."""
    found = [each for each in sim.store.newest("invoice_payment") if each["invoice"] == invoice["id"]]
    return found, f"/v1/invoice_payments?invoice={invoice['id']}"


def list_payments(sim: Sim, params: Obj) -> Page:
    """Return payments of invoices by invoice, status or payment intent. Raises StripeError as `page` does."""
    found: Any = matching(sim.store.newest("invoice_payment"), params, "invoice", "status")
    intent = (params.get("payment") or {}).get("payment_intent")
    if intent:
        found = [each for each in found if each["payment"].get("payment_intent") == intent]
    return page(found, params, "/v1/invoice_payments", "invoice_payment")


def retrieve_payment(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a payment of an invoice. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("invoice_payment", id)


EXPANDABLE["invoice", "payments"] = payments_of

_TAKES = (
    "customer currency collection_method auto_advance days_until_due due_date description metadata footer number"
    " default_payment_method pending_invoice_items_behavior effective_at"
)
ROUTES = [
    route("POST", "/v1/invoices", "invoice_create", create, _TAKES),
    route("GET", "/v1/invoices", "invoice_list", listing, "customer status collection_method created due_date"),
    route("GET", "/v1/invoices/{id}", "invoice_retrieve", retrieve),
    route("POST", "/v1/invoices/{id}", "invoice_update", update,
          "description metadata footer number auto_advance default_payment_method collection_method days_until_due"
          " due_date"),
    route("DELETE", "/v1/invoices/{id}", "invoice_delete", delete),
    route("POST", "/v1/invoices/{id}/add_lines", "invoice_add_lines", add_lines),
    route("POST", "/v1/invoices/{id}/finalize", "invoice_finalize_invoice", finalize, "auto_advance"),
    route("POST", "/v1/invoices/{id}/void", "invoice_void_invoice", void),
    route("POST", "/v1/invoices/{id}/mark_uncollectible", "invoice_mark_uncollectible", mark_uncollectible),
    route("POST", "/v1/invoices/{id}/send", "invoice_send_invoice", send),
    route("GET", "/v1/invoices/{id}/lines", "invoice_line_item_list", list_lines),
    route("GET", "/v1/invoice_payments", "invoice_payment_list", list_payments, "invoice status payment"),
    route("GET", "/v1/invoice_payments/{id}", "invoice_payment_retrieve", retrieve_payment),
]  # fmt: skip
