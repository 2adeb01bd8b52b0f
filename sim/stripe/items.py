"""Invoice items and the lines created from them: https://docs.stripe.com/api/invoiceitems."""

from decimal import Decimal
from typing import Any

from sim.stripe import customers
from sim.stripe.errors import Obj, invalid, state
from sim.stripe.params import cents, merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EMBEDDED, Page, changed, matching, page

MAX_ITEMS = 250
"""Maximum number of a customer's pending items, and of items on one invoice."""


def not_editable(invoice: Obj) -> None:
    """Raise StripeError (400, invoice_not_editable) unless the invoice is a draft."""
    if invoice["status"] != "draft":
        raise state(
            f"Invoice {invoice['id']} is no longer editable. Only draft invoices can be changed.",
            "invoice_not_editable",
            "invoice",
        )


def cents_of(sim: Sim, params: Obj) -> tuple[int, str, str | None]:
    """Return amount in cents, unit price and price id of an item: `amount`, or a price (`pricing`,
    `price_data`, unit) x quantity.

    Raises StripeError: 400 for conflicting or missing parameters, 404 for an unknown price.
    """
    quantity = Decimal(params.get("quantity", 1))
    data = params.get("price_data") or {}
    price_id = (params.get("pricing") or {}).get("price")
    if quantity < 0:
        raise invalid("This value must be greater than or equal to 0.", param="quantity")
    if "amount" in params:
        if data or price_id or "unit_amount_decimal" in params:
            raise invalid(
                "You may only specify one of these parameters: amount, price_data, pricing.", param="amount"
            )
        return params["amount"], str(params["amount"]), None
    if data:
        customers.usd(data["currency"])
        unit = data.get("unit_amount_decimal", data.get("unit_amount"))
    elif price_id:
        found = sim.find("price", price_id, "pricing[price]")
        unit = found["unit_amount_decimal"]
    else:
        unit = params.get("unit_amount_decimal")
    if unit is None:
        raise invalid(
            "You must pass one of amount, pricing[price], price_data or unit_amount_decimal.",
            param="amount", code="parameter_missing",
        )  # fmt: skip
    return cents(str(unit), quantity), str(unit), price_id


def _period(sim: Sim, params: Obj) -> Obj:
    period = params.get("period") or {"start": sim.now(), "end": sim.now()}
    if period["end"] < period["start"]:
        raise invalid("period[end] must not be before period[start]", param="period[end]")
    return {"start": period["start"], "end": period["end"]}


def create(sim: Sim, params: Obj) -> Obj:
    """Create an item that is pending until the customer's next invoice, or is added to the draft `invoice`;
    return it.

    Raises StripeError: 400 for invalid parameters or too many items, 404 for an unknown customer, invoice or
    price.
    """
    customers.usd(params.get("currency"))
    if not params.get("customer"):
        raise invalid("Missing required param: customer.", param="customer", code="parameter_missing")
    customer = customers.live(sim, params["customer"])
    invoice = sim.find("invoice", params["invoice"], "invoice") if params.get("invoice") else None
    if invoice is not None and invoice["customer"] != customer["id"]:
        raise invalid("The invoice belongs to another customer.", param="invoice")
    if invoice is not None:
        not_editable(invoice)
        room(len(invoice["_lines"]) + 1)
    else:
        room(len(waiting(sim, customer["id"])) + 1)
    made = build(sim, params, customer["id"])
    if invoice is not None:
        put_on(sim, invoice, [made])
    else:
        remember(sim, made)
    sim.emit("invoiceitem.created", made)
    return made


def room(count: int) -> None:
    """Raise StripeError (400) when an invoice would have more than MAX_ITEMS items."""
    if count > MAX_ITEMS:
        raise state(
            f"An invoice can have at most {MAX_ITEMS} invoice items.", "invoice_items_limit", "invoice"
        )


def build(sim: Sim, params: Obj, customer: str) -> Obj:
    """Store and return a pending item. Raises StripeError: 400 for an invalid amount, 404 for an unknown price."""
    amount, unit, price = cents_of(sim, params)
    if abs(amount) > 99_999_999:
        raise invalid("Amount must be no more than $999,999.99", param="amount", code="amount_too_large")
    quantity = params.get("quantity", 1)
    made = sim.new(
        "invoiceitem", customer=customer, amount=amount, invoice=None, currency="usd", date=sim.now()
    )
    made |= {
        "description": params.get("description") or None, "period": _period(sim, params), "quantity": quantity,
        "quantity_decimal": str(quantity), "discountable": params.get("discountable", amount >= 0),
        "metadata": merge_metadata(None, params.get("metadata")), "net_amount": amount, "parent": None,
        "pricing": _pricing(sim, price, unit),
    }  # fmt: skip
    return sim.save(made)


def _pricing(sim: Sim, price: str | None, unit: str) -> Obj:
    details = {"price": price, "product": sim.find("price", price)["product"]} if price else None
    return {"type": "price_details", "price_details": details, "unit_amount_decimal": unit}


def waiting(sim: Sim, customer: str) -> list[Obj]:
    """Return a customer's pending items, oldest first."""
    kept = (sim.store.get("pending_items", customer) or {"ids": []})["ids"]
    return [found for id in kept if (found := sim.store.get("invoiceitem", id)) and found["invoice"] is None]


def remember(sim: Sim, item: Obj) -> None:
    """Record that an item is pending for its customer's next invoice."""
    row = sim.store.get("pending_items", item["customer"]) or {"ids": []}
    sim.store.put("pending_items", item["customer"], {"ids": [*row["ids"], item["id"]]})


def forget(sim: Sim, customer: str, gone: set[str]) -> None:
    """Record that the items with the ids `gone` are no longer pending."""
    row = sim.store.get("pending_items", customer) or {"ids": []}
    sim.store.put("pending_items", customer, {"ids": [id for id in row["ids"] if id not in gone]})


def put_on(sim: Sim, invoice: Obj, found: list[Obj]) -> None:
    """Create a line for each item and update the invoice's totals."""
    for item in found:
        line = sim.new("line_item", invoice=invoice["id"], amount=item["amount"], currency="usd")
        line |= {
            name: item[name]
            for name in ("description", "discountable", "period", "quantity", "quantity_decimal")
        }
        line |= {
            "metadata": dict(item["metadata"]), "pricing": item["pricing"], "subtotal": item["amount"],
            "parent": {
                "type": "invoice_item_details", "subscription_item_details": None,
                "invoice_item_details": {
                    "invoice_item": item["id"], "proration": False, "proration_details": None, "subscription": None,
                },
            },
            "pretax_credit_amounts": [], "taxes": [],
        }  # fmt: skip
        sim.save(line)
        item |= {"invoice": invoice["id"], "_line": line["id"]}
        sim.save(item)
        invoice["_lines"].append(line["id"])
    add_up(sim, invoice)


def add_up(sim: Sim, invoice: Obj) -> None:
    """Compute a draft's totals in cents from its lines and the customer's balance."""
    total = sum(sim.find("line_item", id)["amount"] for id in invoice["_lines"])
    invoice |= dict.fromkeys(("subtotal", "subtotal_excluding_tax", "total", "total_excluding_tax"), total)
    due = max(0, total + sim.find("customer", invoice["customer"])["balance"]) if total > 0 else 0
    invoice |= {"amount_due": due, "amount_remaining": due}
    sim.save(invoice)


def lines_of(sim: Sim, invoice: Obj) -> tuple[list[Obj], str]:
    """Return an invoice's lines in order of creation, and the list's path."""
    found = [sim.find("line_item", id) for id in invoice["_lines"]]
    return found, f"/v1/invoices/{invoice['id']}/lines"


def delete(sim: Sim, params: Obj, id: str) -> Obj:
    """Delete an item. Raises StripeError: 404 for an unknown id, 400 when its invoice is finalised."""
    del params
    found = sim.find("invoiceitem", id)
    if found["invoice"]:
        invoice = sim.find("invoice", found["invoice"])
        not_editable(invoice)
        invoice["_lines"].remove(found["_line"])
        sim.store.drop("line_item", found["_line"])
        add_up(sim, invoice)
    else:
        forget(sim, found["customer"], {id})
    sim.store.drop("invoiceitem", id)
    sim.emit("invoiceitem.deleted", found)
    return {"id": id, "object": "invoiceitem", "deleted": True}


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update an item and its draft line, and return the item.

    Raises StripeError: 404 for an unknown id, 400 when its invoice is finalised.
    """
    found = sim.find("invoiceitem", id)
    invoice = sim.find("invoice", found["invoice"]) if found["invoice"] else None
    if invoice is not None:
        not_editable(invoice)
    changes: Obj = {}
    if "amount" in params:
        changes |= {"amount": params["amount"], "net_amount": params["amount"]}
        changes["pricing"] = found["pricing"] | {"unit_amount_decimal": str(params["amount"])}
    if "description" in params:
        changes["description"] = params["description"] or None
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    changed(found, changes)
    sim.save(found)
    if invoice is not None:
        line = sim.find("line_item", found["_line"])
        line |= {name: found[name] for name in ("amount", "description", "pricing")}
        line |= {"subtotal": found["amount"], "metadata": dict(found["metadata"])}
        sim.save(line)
        add_up(sim, invoice)
    return found


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return an item. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("invoiceitem", id)


def listing(sim: Sim, params: Obj) -> Page:
    """Return items, newest first; with `pending`, those without an invoice. Raises StripeError as `page` does."""
    found: Any = matching(sim.store.newest("invoiceitem"), params, "customer", "invoice")
    if "pending" in params:
        found = [each for each in found if (each["invoice"] is None) == params["pending"]]
    found = [each | {"created": each["date"]} for each in found]
    shown = page(found, params, "/v1/invoiceitems", "invoiceitem")
    return shown._replace(items=[sim.find("invoiceitem", each["id"]) for each in shown.items])


EMBEDDED["invoice", "lines"] = lines_of

_TAKES = (
    "customer amount currency description invoice metadata period quantity unit_amount_decimal price_data pricing"
    " discountable"
)
ROUTES = [
    route("POST", "/v1/invoiceitems", "invoice_item_create", create, _TAKES),
    route("GET", "/v1/invoiceitems", "invoice_item_list", listing, "customer invoice pending created"),
    route("GET", "/v1/invoiceitems/{id}", "invoice_item_retrieve", retrieve),
    route("POST", "/v1/invoiceitems/{id}", "invoice_item_update", update, "amount description metadata"),
    route("DELETE", "/v1/invoiceitems/{id}", "invoice_item_delete", delete),
]
