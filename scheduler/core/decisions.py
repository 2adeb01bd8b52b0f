"""What a dispatch decides: a request is placed on a replica, or refused."""

from typing import NamedTuple

from scheduler.core.flow import QueuedRequest
from scheduler.core.policy import Choice
from scheduler.messages import PlaceRefused
from scheduler.wire import Placement


class Placed(NamedTuple):
    """A request has an active placement; `client` is to be notified."""

    client: str
    placement: Placement
    tier: str = "standard"


class Rejection(NamedTuple):
    """A request is refused; `client` is to be notified."""

    client: str
    model: str
    refusal: PlaceRefused


class Assignment(NamedTuple):
    """A request has left the queue for `choice.replica`; a placement is to be activated for it."""

    queued: QueuedRequest
    choice: Choice


Decision = Placed | Rejection
