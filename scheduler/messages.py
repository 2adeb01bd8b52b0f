"""Further messages of the scheduler's socket: hello frames, refusals, progress and announcements.

scheduler/wire.py has the messages that other packages use; these are used by client.py and service.py only.
"""

import msgspec

from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from workers.wire import CommandResult, Heartbeat, KvDelta, ReplicaCommand


class ClientHello(msgspec.Struct, tag="client_hello"):
    """A client's first frame. A new connection with the same name takes over the placements of the old one."""

    token: str
    name: str


class Welcome(msgspec.Struct, tag="welcome"):
    """The scheduler's first frame to a client. With `error`, the connection is closed for this reason."""

    epoch: str
    error: str = ""


class PlaceRefused(msgspec.Struct, tag="refused"):
    """The answer to a PlaceRequest that is refused."""

    request_id: str
    status: int
    """429 = the tenant's share is used up while others wait, 503 = no capacity for anyone."""
    reason: str
    message: str
    retry_after_s: float
    position: int = 0
    """Position in the queue at the refusal, 1 = next; 0 = it never queued."""
    warm_replicas: int = 0
    predicted_wait_s: float = 0.0


class CancelPlace(msgspec.Struct, tag="cancel"):
    """The caller of a PlaceRequest no longer waits. A placement that crosses this message is released."""

    request_id: str


class PrefillDone(msgspec.Struct, tag="prefill_done"):
    """The first token of a placement has arrived."""

    request_id: str
    replica_id: str


class Progress(msgspec.Struct, tag="progress"):
    """Output tokens of a placement so far."""

    request_id: str
    replica_id: str
    output_tokens: int


class AnnouncedPlacement(msgspec.Struct):
    """A placement that the client holds, for a scheduler that may not know it."""

    request_id: str
    tenant_id: str
    model: str
    replica_id: str
    boot_id: str
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int
    """Estimated output tokens."""
    produced: int = 0
    """Output tokens so far."""
    prefilled: bool = False
    age_s: float = 0.0
    tier: str = "standard"
    weight: float = 1.0
    epoch: str = ""
    """The scheduler that charged it last, so that announced counters contain its estimate; empty = none."""


class AnnouncedRequest(msgspec.Struct):
    """A request that the client waits for; `request.deadline_s` is the rest of its deadline."""

    request: PlaceRequest
    age_s: float


class TenantCounter(msgspec.Struct):
    """The service that a tenant received from a model, in weighted tokens."""

    tenant_id: str
    model: str
    service: float
    tier: str = "standard"
    """Counters are kept per band: spare capacity used by batches does not count against interactive requests."""


class Counters(msgspec.Struct, tag="counters"):
    """The counters that changed, sent to clients twice a second for the next scheduler.

    The tenant with an empty id stands for new tenants: its counter is where they start.
    """

    epoch: str
    counters: list[TenantCounter]


class Announce(msgspec.Struct, tag="announce"):
    """A client's placements and queued requests, sent after every (re)connection; it replaces what was known of the
    client.

    Large announcements take several frames.
    """

    placements: list[AnnouncedPlacement]
    queued: list[AnnouncedRequest]
    counters: list[TenantCounter] = []
    """The counters of the fair queue as last received from a scheduler. The largest announced value wins."""
    more: bool = False
    """Whether this frame continues the announcement before it, so that nothing is replaced."""


FromClient = PlaceRequest | CancelPlace | Released | PrefillDone | Progress | Announce | ReplicaCommand
FromAgent = Heartbeat | CommandResult | KvDelta
ToClient = Welcome | Placement | PlaceRefused | PoolSnapshot | Counters | CommandResult
