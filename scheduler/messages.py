"""The rest of the scheduler socket's vocabulary: greetings, refusals, progress and re-announcement.

scheduler/wire.py holds what other packages see; these frames stay between client.py and service.py.
"""

import msgspec

from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from workers.wire import CommandResult, Heartbeat, KvDelta, ReplicaCommand


class ClientHello(msgspec.Struct, tag="client_hello"):
    """A client's first frame. The same name after a reconnect takes its placements over."""

    token: str
    name: str


class Welcome(msgspec.Struct, tag="welcome"):
    """The scheduler's first frame to a client, or its last when `error` says why it hangs up."""

    epoch: str
    error: str = ""


class PlaceRefused(msgspec.Struct, tag="refused"):
    """The other answer to a PlaceRequest."""

    request_id: str
    status: int
    """429 = the caller's share is used up while others wait, 503 = no capacity for anyone."""
    reason: str
    message: str
    retry_after_s: float
    position: int = 0
    """Place in the queue when it ended, 1 = next; 0 = it never queued."""
    warm_replicas: int = 0
    predicted_wait_s: float = 0.0


class CancelPlace(msgspec.Struct, tag="cancel"):
    """The caller of a PlaceRequest is gone; whatever was placed for it in between is taken back."""

    request_id: str


class PrefillDone(msgspec.Struct, tag="prefill_done"):
    """The first token arrived: the prompt no longer waits for prefill."""

    request_id: str
    replica_id: str


class Progress(msgspec.Struct, tag="progress"):
    """Output tokens so far."""

    request_id: str
    replica_id: str
    output_tokens: int


class AnnouncedPlacement(msgspec.Struct):
    """A placement the client holds, as it tells a scheduler that may not know it."""

    request_id: str
    tenant_id: str
    model: str
    replica_id: str
    boot_id: str
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int
    """Estimated."""
    produced: int = 0
    """Output tokens so far, as far as reported."""
    prefilled: bool = False
    age_s: float = 0.0
    tier: str = "standard"
    weight: float = 1.0
    epoch: str = ""
    """The scheduler that last counted it, so that announced counters include its estimate; empty = none has."""


class AnnouncedRequest(msgspec.Struct):
    """A request the client still waits for; `request.deadline_s` is what remains of its deadline."""

    request: PlaceRequest
    age_s: float


class TenantCounter(msgspec.Struct):
    """What a tenant has been served of a model, in the fair queue's unit (weighted tokens)."""

    tenant_id: str
    model: str
    service: float
    tier: str = "standard"
    """Counters are kept per band: what batches took of spare capacity is not held against interactive requests."""


class Counters(msgspec.Struct, tag="counters"):
    """Scheduler to clients, twice a second: the counters that changed, for the next scheduler.

    The nameless tenant stands for a newcomer: the counter that one would start with.
    """

    epoch: str
    counters: list[TenantCounter]


class Announce(msgspec.Struct, tag="announce"):
    """All a client holds and waits for, sent after every (re)connection; it replaces what was known.

    Where it is more than a frame takes, further ones follow that add to it.
    """

    placements: list[AnnouncedPlacement]
    queued: list[AnnouncedRequest]
    counters: list[TenantCounter] = []
    """The fair queue's counters as last heard from a scheduler; the largest announced wins."""
    more: bool = False
    """It goes on from the announcement before it; nothing is replaced."""


FromClient = PlaceRequest | CancelPlace | Released | PrefillDone | Progress | Announce | ReplicaCommand
FromAgent = Heartbeat | CommandResult | KvDelta
ToClient = Welcome | Placement | PlaceRefused | PoolSnapshot | Counters | CommandResult
