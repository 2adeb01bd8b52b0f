"""Events of requests and hosts, for the parts that observe without deciding: recording, planning, metrics."""

from collections.abc import Callable

from scheduler.core.placement import ActivePlacement
from scheduler.messages import PlaceRefused
from scheduler.wire import Placement, PlaceRequest, Released
from workers.wire import Heartbeat


class Listener:
    """The base of everything that observes the scheduler. A subclass overrides the events that it needs.

    Times are seconds of the service's monotonic clock. A listener must return quickly and raise nothing.
    """

    def on_submit(self, client: str, request: PlaceRequest, at: float, *, announced: bool) -> None:
        """A client wants a request placed. `announced`: it had asked an earlier scheduler, or this one before."""

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """A request has a replica."""

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """A request is refused."""

    def on_cancel(self, client: str, request_id: str, at: float) -> None:
        """A request's caller went before it was placed."""

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """A request's first token came. `placement` is None when this is not news, or the placement is not known."""

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """A placement is over. `placement` is None when it is not known (any more)."""

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """An agent's heartbeat, its figures in range. `open_placements` counts those on a replica."""
