"""Frames of the scheduler's socket: hello frames, batches, refusals and announcements.

scheduler/wire.py has the structs that other packages use; these are used by client.py and service.py only. What a
process sends in one tick of its event loop is one frame: a `ClientBatch` to the scheduler, an `Answers` back. Structs
in batches are encoded by position.
"""

import msgspec

from scheduler.wire import Placement, PlaceRequest, PoolSnapshot, Released
from workers.adapter_wire import Question
from workers.wire import CommandResult, Heartbeat, KvDelta, ReplicaCommand, Term

WIRE_VERSION = 5
"""Version of the frames between clients and the scheduler. Both ends must speak the same; 1 is a hello without one."""


class ClientHello(msgspec.Struct, tag="client_hello"):
    """A client's first frame. A new connection with the same name takes over the placements of the old one."""

    token: str
    name: str
    wire: int = 1
    """WIRE_VERSION of the client."""
    term: Term = 0
    """The highest term of the lease that the client knows of; a scheduler of a lower one stops."""
    takes_keys: bool = False
    """Whether it sends requests to engines, so that it needs the keys of hosts' own."""


class Welcome(msgspec.Struct, tag="welcome"):
    """The scheduler's first frame to a client. With `error`, the connection is closed for this reason.

    A standby repeats it every second, and once more when it begins to serve.
    """

    epoch: str
    error: str = ""
    wire: int = 1
    """WIRE_VERSION of the scheduler."""
    term: int = 0
    """Term of the lease under which the scheduler serves; 0 = it stands by."""


class PlaceRefused(msgspec.Struct, array_like=True):
    """The answer to a PlaceRequest that is refused."""

    request_id: str
    status: int
    """429 = the tenant's share is used up while others wait, 503 = no capacity for any tenant."""
    reason: str
    message: str
    retry_after_s: float
    position: int = 0
    """Position in the queue at the refusal, 1 = next; 0 = it never queued."""
    warm_replicas: int = 0
    predicted_wait_s: float = 0.0
    tier: str = "standard"
    """The request's."""


class Progress(msgspec.Struct, array_like=True):
    """Output tokens of placements so far, in parallel lists."""

    request_ids: list[str]
    replica_ids: list[str]
    output_tokens: list[int]


class PlacementId(msgspec.Struct, array_like=True):
    """Names a placement."""

    request_id: str
    replica_id: str


class ClientBatch(msgspec.Struct, tag="batch", omit_defaults=True):
    """What a client has to say, in the order in which it takes effect."""

    prefilled: list[PlacementId] = []
    """Placements whose first token has arrived."""
    progress: Progress | None = None
    released: list[Released] = []
    cancelled: list[str] = []
    """Ids of requests whose callers no longer wait. A placement that crosses this message is released."""
    requests: list[PlaceRequest] = []


class Answers(msgspec.Struct, tag="answers", omit_defaults=True):
    """The scheduler's decisions on a client's requests."""

    placed: list[Placement] = []
    refused: list[PlaceRefused] = []


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
    rank: int | None = None
    """Rank of the replica that it is on."""


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
    placements_follow: bool = False
    """Whether the next frame has more placements. Those that no frame names are closed after the last one."""


class HostEngines(msgspec.Struct, frozen=True):
    """What an API process needs for the engines of a host that has joined."""

    key: str
    authority: bytes
    """Certificate of the authority that signs their certificates, in PEM; empty = they speak no TLS."""
    replicas: frozenset[str]


class EngineKeys(msgspec.Struct, tag="engine_keys"):
    """Keys and authorities of engines on hosts that have their own, for API processes; before any placement on them."""

    hosts: list[HostEngines]


FromClient = ClientBatch | Announce | ReplicaCommand
FromAgent = Heartbeat | CommandResult | KvDelta | Question
ToClient = Welcome | Answers | PoolSnapshot | Counters | CommandResult | EngineKeys
