"""Events of requests and hosts, for the parts that observe without deciding: recording, planning, metrics."""

from collections.abc import Callable, Sequence

from scheduler.core.placement import ActivePlacement
from scheduler.messages import PlaceRefused
from scheduler.wire import Placement, PlaceRequest, Released
from workers.wire import Heartbeat


class Listener:
    """Base class of the observers of the scheduler. A subclass overrides the events that it needs.

    Times are seconds of the service's monotonic clock. A listener must return quickly and must not raise.
    """

    def on_submit(self, client: str, request: PlaceRequest, at: float, *, announced: bool) -> None:
        """A client submits a request. `announced`: it was submitted before, to an earlier scheduler or on an earlier
        connection."""

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """A request is placed on a replica."""

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """A request is refused."""

    def on_cancel(self, client: str, request_id: str, at: float) -> None:
        """A request is cancelled by its caller."""

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """A request has its first token. `placement` is None when it is not known, or its first token was reported
        before."""

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """A placement is released. `placement` is None when it is not known."""

    def on_heartbeat(self, beat: Heartbeat, open_placements: Callable[[str], int], at: float) -> None:
        """An agent's heartbeat with valid figures. `open_placements` returns the number of active placements on a
        replica."""


class Observers:
    """The overridden methods of several listeners by event, so that an event costs nothing for the others."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        def overridden(name: str) -> list[Listener]:
            return [each for each in listeners if getattr(type(each), name) is not getattr(Listener, name)]

        self.submit = [each.on_submit for each in overridden("on_submit")]
        self.place = [each.on_place for each in overridden("on_place")]
        self.refuse = [each.on_refuse for each in overridden("on_refuse")]
        self.cancel = [each.on_cancel for each in overridden("on_cancel")]
        self.first_token = [each.on_first_token for each in overridden("on_first_token")]
        self.release = [each.on_release for each in overridden("on_release")]
        self.heartbeat = [each.on_heartbeat for each in overridden("on_heartbeat")]
