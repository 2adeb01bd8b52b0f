"""What a subject offers: method, path, the operation whose parameters it takes, and who handles it."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from sim.stripe.errors import Obj
from sim.stripe.sim import Sim
from sim.stripe.views import Page

Handler = Callable[..., Obj | Page]


class Route(NamedTuple):
    """One operation. `supported`: names of the parameters that the handler obeys, None = all that Stripe has."""

    method: str
    pattern: re.Pattern[str]
    operation: str
    handler: Handler
    supported: frozenset[str] | None

    def call(self, sim: Sim, params: Obj, ids: tuple[Any, ...]) -> Obj | Page:
        """Run the handler."""
        return self.handler(sim, params, *ids)


def route(method: str, path: str, operation: str, handler: Handler, supported: str | None = None) -> Route:
    """`path` has {id} where an id stands; it is passed on in order."""
    pattern = re.compile(re.sub(r"\{\w+\}", r"([^/]+)", path))
    return Route(
        method, pattern, operation, handler, None if supported is None else frozenset(supported.split())
    )
