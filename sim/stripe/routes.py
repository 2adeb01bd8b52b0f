"""Defines a route: method, path, the operation whose parameters it accepts, and its handler."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from sim.stripe.errors import Obj
from sim.stripe.sim import Sim
from sim.stripe.views import Page

Handler = Callable[..., Obj | Page]


class Route(NamedTuple):
    """One operation. `supported` names the parameters that the handler implements; None = all of Stripe's."""

    method: str
    pattern: re.Pattern[str]
    operation: str
    handler: Handler
    supported: frozenset[str] | None

    def call(self, sim: Sim, params: Obj, ids: tuple[Any, ...]) -> Obj | Page:
        """Call the handler and return its answer. Raises StripeError as the handler does."""
        return self.handler(sim, params, *ids)


def route(method: str, path: str, operation: str, handler: Handler, supported: str | None = None) -> Route:
    """Return a route; ids at the {id} parts of `path` are passed to the handler in order."""
    pattern = re.compile(re.sub(r"\{\w+\}", r"([^/]+)", path))
    return Route(
        method, pattern, operation, handler, None if supported is None else frozenset(supported.split())
    )
