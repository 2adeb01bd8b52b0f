"""Stripe's own example objects and parameter lists, from fixtures.json.gz (README.md states their source)."""

import gzip
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sim.stripe.errors import Obj

_ALWAYS = frozenset({
    "customer.invoice_settings", "payment_method.card", "payment_method.card.checks", "payment_method.card.networks",
    "charge.outcome", "charge.payment_method_details", "charge.payment_method_details.card",
    "charge.payment_method_details.card.checks", "refund.destination_details", "dispute.payment_method_details",
    "dispute.payment_method_details.card", "tax_id.owner", "invoice.status_transitions",
    "checkout.session.automatic_tax",
})  # fmt: skip
"""Optional objects that every response contains."""

_FILE = Path(__file__).with_name("fixtures.json.gz")


@cache
def _carried() -> tuple[dict[str, Obj], dict[str, Obj]]:
    """Return templates by object name and parameters by operation."""
    with gzip.open(_FILE) as file:
        found = msgspec.json.decode(file.read())
    fixtures, resources = found["fixtures"], found["resources"]
    templates = {name: _clean(fixtures.get(name, {}), tree, name) for name, tree in resources.items()}
    return templates, found["params"]


def _clean(value: Obj, tree: Obj, at: str) -> Obj:
    """Return the fixture without fields that its type hints lack, and with optional objects emptied of example
    state.
    """
    made: Obj = {}
    for name, hint in tree["fields"].items():
        if name not in value:
            continue
        inner = value[name]
        if isinstance(inner, dict):
            sub = next((sub for cls, sub in tree.get("nested", {}).items() if _names(cls, hint)), None)
            if hint.startswith("Optional[") and f"{at}.{name}" not in _ALWAYS:
                inner = None
            elif sub is not None:
                inner = _clean(inner, sub, f"{at}.{name}")
        made[name] = inner
    return made


def _names(cls: str, hint: str) -> bool:
    return hint.removeprefix("Optional[").removesuffix("]").strip("'\"") == cls


def template(name: str) -> Obj:
    """Return a fresh copy of Stripe's example of object `name`, to which state is applied."""
    return deepcopy(_carried()[0][name])


def parameters(operation: str) -> dict[str, list[Any]]:
    """Return an operation's parameters: name -> [required, type, and for enum, list and object its values or
    fields].
    """
    return _carried()[1][operation]


@cache
def fields(name: str) -> frozenset[str]:
    """Return the fields that object `name` has in the official package."""
    return frozenset(msgspec.json.decode(gzip.decompress(_FILE.read_bytes()))["resources"][name]["fields"])
