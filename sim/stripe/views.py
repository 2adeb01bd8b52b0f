"""Renders objects for responses: without internal fields, with their lists, expanded on request, in pages."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from sim.stripe.errors import Obj, invalid, no_such
from sim.stripe.sim import Sim

_EMBEDDED = 10
_MAX_LIMIT = 100
_MAX_EXPAND = 20


class Page(NamedTuple):
    """A list response before rendering."""

    items: list[Obj]
    has_more: bool
    url: str


Lister = Callable[[Sim, Obj], tuple[list[Obj], str]]
EMBEDDED: dict[tuple[str, str], Lister] = {}
"""Lists that are always part of an object: (object, field) -> its items and path. Each module registers its own."""
EXPANDABLE: dict[tuple[str, str], Lister] = {}
"""Lists that are included only when expanded: (object, field) -> its items and path."""


def render(sim: Sim, value: Obj, expand: Iterable[str] = ()) -> Obj:
    """Return the object's public form, without keys that begin with an underscore.

    Raises StripeError (400) for a path that cannot be expanded.
    """
    shown = {key: deepcopy(each) for key, each in value.items() if key[0] != "_"}
    for (kind, field), lister in EMBEDDED.items():
        if kind == shown.get("object") and not shown.get("deleted"):
            shown[field] = _embed(sim, value, lister)
    paths = list(expand)
    if len(paths) > _MAX_EXPAND:
        raise invalid(f"You cannot expand more than {_MAX_EXPAND} properties", param="expand")
    for path in paths:
        _expand(sim, shown, value, path.split("."), path)
    return shown


def _embed(sim: Sim, value: Obj, lister: Lister) -> Obj:
    items, url = lister(sim, value)
    data = [render(sim, item) for item in items[:_EMBEDDED]]
    return {"object": "list", "data": data, "has_more": len(items) > _EMBEDDED, "url": url}


def _expand(sim: Sim, shown: Any, stored: Obj | None, parts: list[str], path: str) -> None:
    if not parts or shown is None:
        return
    if isinstance(shown, list):
        for item in shown:
            _expand(
                sim, item, sim.lookup(item.get("id", "")) if isinstance(item, dict) else None, parts, path
            )
        return
    field, rest = parts[0], parts[1:]
    if not isinstance(shown, dict):
        raise invalid(f"This property cannot be expanded ({path}).", param="expand")
    lister = EXPANDABLE.get((shown.get("object", ""), field))
    if lister is not None and stored is not None:
        shown[field] = _embed(sim, stored, lister)
    elif field not in shown:
        raise invalid(
            f"This property cannot be expanded ({path}). You may want to try expanding its parent.",
            param="expand",
        )
    inner = shown[field]
    target = sim.lookup(inner) if isinstance(inner, str) else None
    if target is not None:
        shown[field] = render(sim, target)
    elif inner is not None and not isinstance(inner, dict | list):
        raise invalid(f"This property cannot be expanded ({path}).", param="expand")
    _expand(sim, shown[field], target or (sim.lookup(inner["id"]) if _is_object(inner) else None), rest, path)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("id"), str)


def show(sim: Sim, answer: Obj | Page, expand: Iterable[str] = ()) -> Obj:
    """Return a handler's answer as a JSON object. In lists, paths to expand start with `data.`.

    Raises StripeError (400) for a path that cannot be expanded.
    """
    if not isinstance(answer, Page):
        return render(sim, answer, expand)
    paths = list(expand)
    for path in paths:
        if not path.startswith("data."):
            raise invalid(f"This property cannot be expanded ({path}).", param="expand")
    inner = [path.removeprefix("data.") for path in paths]
    data = [render(sim, item, inner) for item in answer.items]
    return {"object": "list", "data": data, "has_more": answer.has_more, "url": answer.url}


def page(newest: Iterable[Obj], params: Obj, url: str, kind: str = "object") -> Page:
    """Return one page of `newest`, whose items are newest first.

    The parameters are limit (1 to 100, default 10), starting_after, ending_before and created. Raises
    StripeError: 400 for a limit out of range or both cursors, 404 for a cursor that is not in the list.
    """
    limit = params.get("limit", 10)
    if not 1 <= limit <= _MAX_LIMIT:
        raise invalid(
            f"This value must be between 1 and {_MAX_LIMIT}", param="limit", code="parameter_invalid_integer"
        )
    after, before = params.get("starting_after"), params.get("ending_before")
    if after and before:
        raise invalid("You cannot parameterize a request with both starting_after and ending_before")
    items = [item for item in newest if in_range(item.get("created", 0), params.get("created"))]
    if before:
        at = _position(items, before, "ending_before", kind)
        start = max(0, at - limit)
        return Page(items[start:at], start > 0, url)
    start = _position(items, after, "starting_after", kind) + 1 if after else 0
    return Page(items[start : start + limit], start + limit < len(items), url)


def _position(items: list[Obj], id: str, param: str, kind: str) -> int:
    for at, item in enumerate(items):
        if item["id"] == id:
            return at
    raise no_such(kind, id, param)


def in_range(value: int, wanted: Any) -> bool:
    """Return whether a time in Unix seconds matches `created` (an instant, or gt, gte, lt, lte)."""
    if wanted is None or wanted == "":
        return True
    if isinstance(wanted, int):
        return value == wanted
    low = max(wanted.get("gt", -1) + 1, wanted.get("gte", 0))
    high = min(wanted.get("lt", 1 << 62) - 1, wanted.get("lte", 1 << 62))
    return bool(low <= value <= high)


def matching(items: Iterable[Obj], params: Obj, *names: str) -> list[Obj]:
    """Return items whose fields equal those of the parameters `names` that are given."""
    wanted = {name: params[name] for name in names if params.get(name) not in (None, "")}
    return [item for item in items if all(item.get(name) == value for name, value in wanted.items())]


def changed(value: Obj, changes: Obj) -> Obj:
    """Apply `changes` to `value` and return the previous values of the changed fields."""
    previous = {name: value.get(name) for name, new in changes.items() if value.get(name) != new}
    value.update(changes)
    return previous
