"""Holds answers to the official package's field lists: no field too many, types right, required ones there."""

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.support.stripe_surface import RESOURCES, Tree, resource

_PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "Decimal": str}
_DELETED = {"customer", "tax_id", "invoice", "invoiceitem", "webhook_endpoint"}


def problems(value: Any) -> list[str]:
    """What is wrong with an answered object (or list of objects), one line each."""
    return list(_object(value, value.get("object", "?") if isinstance(value, dict) else "?"))


def _object(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict) or "object" not in value:
        yield f"{at}: no object but {value!r:.80}"
        return
    kind = value["object"]
    if kind == "list":
        yield from _list(value, at)
    elif value.get("deleted") is True and kind in _DELETED:
        if set(value) != {"id", "object", "deleted"}:
            yield f"{at}: a deleted {kind} with {sorted(value)}"
    elif kind not in RESOURCES:
        yield f"{at}: unknown object {kind}"
    else:
        yield from _fields(value, resource(kind), (), at)


def _list(value: Any, at: str) -> Iterator[str]:
    if set(value) != {"object", "data", "has_more", "url"}:
        yield f"{at}: a list with {sorted(value)}"
        return
    if not isinstance(value["has_more"], bool) or not isinstance(value["url"], str):
        yield f"{at}: has_more or url"
    for item in value["data"]:
        yield from _object(item, f"{at}.data")


def _fields(value: Any, tree: Tree, outer: tuple[Tree, ...], at: str) -> Iterator[str]:
    """An object, or a part of one, against its class; names are looked up inside of it and then outwards."""
    if not isinstance(value, dict):
        yield f"{at}: no object but {value!r:.80}"
        return
    scopes = (tree, *outer)
    for name, inner in value.items():
        if name not in tree["fields"]:
            yield f"{at}.{name}: no such field"
        else:
            yield from _value(inner, _parse(tree["fields"][name]), scopes, f"{at}.{name}")
    for name, hint in tree["fields"].items():
        if name not in value and not hint.startswith("Optional["):
            yield f"{at}.{name}: missing"


@cache
def _parse(hint: str) -> ast.expr:
    return ast.parse(hint, mode="eval").body


def _value(value: Any, node: ast.expr, scopes: tuple[Tree, ...], at: str) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = _parse(node.value)
    if isinstance(node, ast.Subscript):
        yield from _generic(value, ast.unparse(node.value).split(".")[-1], node.slice, scopes, at)
        return
    name = ast.unparse(node).split(".")[-1]
    if name in _PLAIN:
        wrong = isinstance(value, bool) and name != "bool"
        if wrong or not isinstance(value, _PLAIN[name]):
            yield f"{at}: {value!r:.60} is no {name}"
    elif name in ("Any", "object"):
        return
    elif isinstance(value, dict) and isinstance(value.get("object"), str):
        yield from _object(value, at)
    elif name == "UntypedStripeObject" or (tree := _find(name, scopes)) is None:
        if not isinstance(value, dict):
            yield f"{at}: {value!r:.60} is no {name}"
    else:
        yield from _fields(value, tree, scopes, at)


def _generic(value: Any, name: str, inner: ast.expr, scopes: tuple[Tree, ...], at: str) -> Iterator[str]:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Optional":
        if value is not None:
            yield from _value(value, inner, scopes, at)
    elif name == "Literal":
        if value not in [ast.literal_eval(part) for part in parts]:
            yield f"{at}: {value!r:.60} is not allowed"
    elif name == "List":
        if not isinstance(value, list):
            yield f"{at}: {value!r:.60} is no list"
            return
        for item in value:
            yield from _value(item, inner, scopes, f"{at}[]")
    elif name == "ListObject":
        yield from _object(value, at)
    elif name == "ExpandableField":
        if not isinstance(value, str):
            yield from _object(value, at)
    elif name == "Union":
        found = [list(_value(value, part, scopes, at)) for part in parts]
        if all(found):
            yield from min(found, key=len)
    elif not isinstance(value, dict):
        yield f"{at}: {value!r:.60} is no {name}"


def _find(name: str, scopes: tuple[Tree, ...]) -> Tree | None:
    for scope in scopes:
        if name in scope["nested"]:
            found: Tree = scope["nested"][name]
            return found
    return None
