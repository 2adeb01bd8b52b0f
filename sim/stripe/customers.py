"""Customers, their tax ids and their balance: https://docs.stripe.com/api/customers."""

from typing import Any

from sim.stripe.errors import Obj, invalid, no_such, state
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import EXPANDABLE, Page, changed, matching, page

_FIELDS = ("address", "business_name", "description", "email", "individual_name", "name", "phone", "preferred_locales",
           "shipping", "tax_exempt")  # fmt: skip
_MAX_TAX_IDS = 5


def usd(value: str | None) -> str:
    """Return the currency. Raises StripeError (400) for any but usd, the account's only currency."""
    if (value or "usd").lower() != "usd":
        raise invalid(f"Invalid currency: {value}. This account takes usd only", param="currency")
    return "usd"


def live(sim: Sim, id: str, param: str = "customer") -> Obj:
    """Return a customer that is not deleted. Raises StripeError (404) for an unknown or deleted one."""
    found = sim.store.get("customer", id)
    if found is None or found.get("deleted"):
        raise no_such("customer", id, param)
    return found


def create(sim: Sim, params: Obj) -> Obj:
    """Create a customer and return it.

    Raises StripeError: 400 for invalid parameters, 404 for an unknown payment method.
    """
    made = sim.new(
        "customer", currency=None, balance=0, metadata=merge_metadata(None, params.get("metadata"))
    )
    made["invoice_prefix"] = sim.id("x", 8)[2:].upper()
    made |= _wanted(params)
    _settings(sim, made, params)
    sim.save(made)
    sim.emit("customer.created", made)
    for tax_id in params.get("tax_id_data") or []:
        create_tax_id(sim, tax_id, made["id"])
    return made


def _wanted(params: Obj) -> Obj:
    found: Obj = {name: params[name] or None for name in _FIELDS if name in params}
    if isinstance(found.get("address"), dict):
        found["address"] = {
            name: found["address"].get(name) or None
            for name in ("city", "country", "line1", "line2", "postal_code", "state")
        }
    return found


def _settings(sim: Sim, customer: Obj, params: Obj) -> None:
    given = params.get("invoice_settings") or {}
    if "default_payment_method" in given:
        method = given["default_payment_method"] or None
        if method is not None:
            owned = sim.find("payment_method", method, "invoice_settings[default_payment_method]")
            if owned["customer"] != customer["id"]:
                raise invalid(
                    f"The customer does not have a payment method with the ID {method}. The payment method must be"
                    " attached to the customer.",
                    param="invoice_settings[default_payment_method]",
                )
        customer["invoice_settings"] = customer["invoice_settings"] | {"default_payment_method": method}
    if "footer" in given:
        customer["invoice_settings"] = customer["invoice_settings"] | {"footer": given["footer"] or None}


def retrieve(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a customer, or only its id and `deleted` when it is deleted. Raises StripeError (404) for an
    unknown id.
    """
    del params
    found = sim.find("customer", id)
    return {"id": id, "object": "customer", "deleted": True} if found.get("deleted") else found


def update(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a customer and return it.

    Raises StripeError: 404 for an unknown or deleted customer, 400 for invalid parameters.
    """
    found = live(sim, id, "id")
    changes: Obj = _wanted(params)
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    before = found["invoice_settings"]
    _settings(sim, found, params)
    previous = changed(found, changes)
    if before != found["invoice_settings"]:
        previous["invoice_settings"] = before
    sim.save(found)
    if previous:
        sim.emit("customer.updated", found, previous)
    return found


def delete(sim: Sim, params: Obj, id: str) -> Obj:
    """Delete a customer and detach its payment methods; payments stay.

    Raises StripeError (404) for an unknown or deleted customer.
    """
    del params
    found = live(sim, id, "id")
    for method in sim.store.all("payment_method"):
        if method["customer"] == id:
            method["customer"] = None
            sim.save(method)
    sim.emit("customer.deleted", found)
    sim.save(found | {"deleted": True})
    return {"id": id, "object": "customer", "deleted": True}


def listing(sim: Sim, params: Obj) -> Page:
    """Return customers, newest first. Raises StripeError as `page` does."""
    found = [each for each in sim.store.newest("customer") if not each.get("deleted")]
    return page(matching(found, params, "email"), params, "/v1/customers", "customer")


# Tax ids


def create_tax_id(sim: Sim, params: Obj, id: str) -> Obj:
    """Add a tax id to a customer and return it; its verification stays pending, because no authority is
    queried.

    Raises StripeError: 404 for an unknown customer, 400 for an empty tax id or more than 5 of them.
    """
    live(sim, id)
    if len(_tax_ids(sim, id)) >= _MAX_TAX_IDS:
        raise state("You cannot have more than 5 tax ids on a customer.", "customer_max_tax_ids")
    if not params["value"].strip():
        raise invalid("Invalid value for tax id", param="value", code="tax_id_invalid")
    value = params["value"].strip()
    made = sim.new("tax_id", customer=id, type=params["type"], value=value)
    made["country"] = value[:2].upper() if params["type"] == "eu_vat" else params["type"][:2].upper()
    made["owner"] = {"type": "customer", "customer": id}
    sim.save(made)
    sim.emit("customer.tax_id.created", made)
    return made


def _tax_ids(sim: Sim, id: str) -> list[Obj]:
    return [each for each in sim.store.newest("tax_id") if each["customer"] == id]


def list_tax_ids(sim: Sim, params: Obj, id: str) -> Page:
    """Return a page of a customer's tax ids. Raises StripeError as `page` does, and 404 for an unknown customer."""
    live(sim, id)
    return page(_tax_ids(sim, id), params, f"/v1/customers/{id}/tax_ids", "tax_id")


def _tax_id(sim: Sim, id: str, tax_id: str) -> Obj:
    found = sim.find("tax_id", tax_id)
    if found["customer"] != id:
        raise no_such("tax_id", tax_id)
    return found


def retrieve_tax_id(sim: Sim, params: Obj, id: str, tax_id: str) -> Obj:
    """Return a tax id. Raises StripeError (404) for an unknown customer or id."""
    del params
    return _tax_id(sim, id, tax_id)


def delete_tax_id(sim: Sim, params: Obj, id: str, tax_id: str) -> Obj:
    """Delete a tax id. Raises StripeError (404) for an unknown customer or id."""
    del params
    found = _tax_id(sim, id, tax_id)
    sim.store.drop("tax_id", tax_id)
    sim.emit("customer.tax_id.deleted", found)
    return {"id": tax_id, "object": "tax_id", "deleted": True}


# Balance: the customer's debt (positive) or credit (negative), applied to the next invoice


def book_balance(sim: Sim, id: str, amount: int, type: str, **links: Any) -> Obj:
    """Change a customer's balance by `amount` cents (negative = credit) and return the balance transaction."""
    customer = sim.find("customer", id)
    customer["balance"] += amount
    customer["currency"] = "usd"
    sim.save(customer)
    made = sim.new("customer_balance_transaction", customer=id, amount=amount, type=type, currency="usd")
    made |= {"ending_balance": customer["balance"], "metadata": {}} | links
    sim.save(made)
    return made


def create_balance(sim: Sim, params: Obj, id: str) -> Obj:
    """Create a manual balance adjustment and return it.

    Raises StripeError: 404 for an unknown customer, 400 for invalid parameters.
    """
    usd(params["currency"])
    customer = live(sim, id)
    before = customer["balance"]
    metadata = merge_metadata(None, params.get("metadata"))
    made = book_balance(
        sim, id, params["amount"], "adjustment", description=params.get("description"), metadata=metadata
    )
    sim.emit("customer.updated", customer, {"balance": before})
    return made


def list_balance(sim: Sim, params: Obj, id: str) -> Page:
    """Return a customer's balance transactions, newest first.

    Raises StripeError as `page` does, and 404 for an unknown customer.
    """
    live(sim, id)
    found = [each for each in sim.store.newest("customer_balance_transaction") if each["customer"] == id]
    return page(matching(found, params, "invoice"), params, f"/v1/customers/{id}/balance_transactions")


def retrieve_balance(sim: Sim, params: Obj, id: str, transaction: str) -> Obj:
    """Return a customer's balance transaction. Raises StripeError (404) for an unknown customer or id."""
    del params
    found = sim.find("customer_balance_transaction", transaction)
    if found["customer"] != id:
        raise no_such("customer_balance_transaction", transaction)
    return found


EXPANDABLE["customer", "tax_ids"] = lambda sim, customer: (
    _tax_ids(sim, customer["id"]),
    f"/v1/customers/{customer['id']}/tax_ids",
)

_TAKES = " ".join((*_FIELDS, "metadata", "invoice_settings"))
ROUTES = [
    route("POST", "/v1/customers", "customer_create", create, _TAKES + " tax_id_data"),
    route("GET", "/v1/customers", "customer_list", listing, "email created"),
    route("GET", "/v1/customers/{id}", "customer_retrieve", retrieve),
    route("POST", "/v1/customers/{id}", "customer_update", update, _TAKES),
    route("DELETE", "/v1/customers/{id}", "customer_delete", delete),
    route("POST", "/v1/customers/{id}/tax_ids", "customer_tax_id_create", create_tax_id),
    route("GET", "/v1/customers/{id}/tax_ids", "customer_tax_id_list", list_tax_ids),
    route("GET", "/v1/customers/{id}/tax_ids/{tax}", "customer_tax_id_retrieve", retrieve_tax_id),
    route("DELETE", "/v1/customers/{id}/tax_ids/{tax}", "customer_tax_id_delete", delete_tax_id),
    route("POST", "/v1/customers/{id}/balance_transactions", "customer_balance_transaction_create", create_balance),
    route("GET", "/v1/customers/{id}/balance_transactions", "customer_balance_transaction_list", list_balance),
    route("GET", "/v1/customers/{id}/balance_transactions/{txn}", "customer_balance_transaction_retrieve",
          retrieve_balance),
]  # fmt: skip
