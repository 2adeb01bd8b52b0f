"""Products and one-time prices, as far as invoices and Checkout use them: https://docs.stripe.com/api/prices."""

from typing import Any

from sim.stripe import customers
from sim.stripe.errors import Obj, invalid, not_simulated
from sim.stripe.params import merge_metadata
from sim.stripe.routes import route
from sim.stripe.sim import Sim
from sim.stripe.views import Page, changed, matching, page


def create_product(sim: Sim, params: Obj) -> Obj:
    """Create a product and return it; `id` is optional. Raises StripeError (400) for an id already in use."""
    if params.get("id") and sim.store.get("product", params["id"]):
        raise invalid(f"Product already exists: {params['id']}", param="id", code="resource_already_exists")
    made = sim.new("product", name=params["name"], description=params.get("description"), default_price=None)
    made |= {
        "id": params.get("id") or made["id"], "active": params.get("active", True), "updated": sim.now(),
        "metadata": merge_metadata(None, params.get("metadata")), "unit_label": params.get("unit_label"),
        "type": "service",
    }  # fmt: skip
    sim.save(made)
    sim.emit("product.created", made)
    return made


def update_product(sim: Sim, params: Obj, id: str) -> Obj:
    """Update a product and return it. Raises StripeError (404) for an unknown id."""
    found = sim.find("product", id)
    changes: Obj = {
        name: params[name] for name in ("name", "description", "active", "unit_label") if name in params
    }
    if "metadata" in params:
        changes["metadata"] = merge_metadata(found["metadata"], params["metadata"])
    previous = changed(found, changes | {"updated": sim.now()})
    sim.save(found)
    sim.emit("product.updated", found, previous)
    return found


def retrieve_product(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a product. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("product", id)


def list_products(sim: Sim, params: Obj) -> Page:
    """Return products, newest first. Raises StripeError as `page` does."""
    return page(matching(sim.store.newest("product"), params, "active"), params, "/v1/products", "product")


def create_price(sim: Sim, params: Obj) -> Obj:
    """Create a one-time price and return it.

    Raises StripeError: 400 for a currency other than usd, recurring prices or missing parameters, 404 for an
    unknown product.
    """
    customers.usd(params["currency"])
    if params.get("recurring"):
        not_simulated("recurring")
    if params.get("product"):
        product = sim.find("product", params["product"], "product")
    elif params.get("product_data"):
        product = create_product(sim, {"name": params["product_data"]["name"]})
    else:
        raise invalid("You must pass product or product_data.", param="product", code="parameter_missing")
    return make_price(sim, params, product["id"])


def make_price(sim: Sim, params: Obj, product: str) -> Obj:
    """Store and return a price of `unit_amount` or `unit_amount_decimal` cents. Raises StripeError (400)
    without either.
    """
    unit = params.get("unit_amount_decimal", params.get("unit_amount"))
    if unit is None:
        raise invalid(
            "You must pass unit_amount or unit_amount_decimal.", param="unit_amount", code="parameter_missing"
        )
    text = str(unit)
    made: Any = sim.new("price", product=product, type="one_time", unit_amount_decimal=text, currency="usd")
    made |= {
        "unit_amount": int(text) if text.lstrip("-").isdecimal() else None, "recurring": None,
        "nickname": params.get("nickname"), "lookup_key": params.get("lookup_key"),
        "metadata": merge_metadata(None, params.get("metadata")), "active": params.get("active", True),
    }  # fmt: skip
    sim.save(made)
    sim.emit("price.created", made)
    return dict(made)


def retrieve_price(sim: Sim, params: Obj, id: str) -> Obj:
    """Return a price. Raises StripeError (404) for an unknown id."""
    del params
    return sim.find("price", id)


def list_prices(sim: Sim, params: Obj) -> Page:
    """Return prices, newest first. Raises StripeError as `page` does."""
    found = matching(sim.store.newest("price"), params, "product", "active", "type")
    if params.get("lookup_keys"):
        found = [each for each in found if each["lookup_key"] in params["lookup_keys"]]
    return page(found, params, "/v1/prices", "price")


ROUTES = [
    route("POST", "/v1/products", "product_create", create_product,
          "id name description active metadata unit_label type"),
    route("GET", "/v1/products", "product_list", list_products, "active created"),
    route("GET", "/v1/products/{id}", "product_retrieve", retrieve_product),
    route("POST", "/v1/products/{id}", "product_update", update_product,
          "name description active metadata unit_label"),
    route("POST", "/v1/prices", "price_create", create_price,
          "currency unit_amount unit_amount_decimal product product_data nickname lookup_key metadata active"
          " recurring"),
    route("GET", "/v1/prices", "price_list", list_prices, "product active type lookup_keys created"),
    route("GET", "/v1/prices/{id}", "price_retrieve", retrieve_price),
]  # fmt: skip
