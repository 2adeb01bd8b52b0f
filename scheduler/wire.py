"""Messages between API processes and the scheduler: the contract of scheduler.client.

A frame on the socket is a 4-byte big-endian length and one msgpack-encoded, tagged struct.
"""

from collections.abc import Collection, Sequence

import msgspec

from workers.wire import AcceptanceReport, ReplicaStatus


def allows_place(regions: Collection[str], gpus: Collection[str], region: str, gpu: str) -> bool:
    """Whether what names `regions` and `gpus`, in lower case, may run in `region` on `gpu`; empty = any."""
    return (not regions or region.lower() in regions) and (not gpus or gpu.lower() in gpus)


BoundTo = tuple[tuple[str, ...], tuple[str, ...]]
"""Regions and classes of GPU, in lower case, one of each of which it has to be; empty = any."""


def place_words(regions: Sequence[str], gpus: Sequence[str], kinds: Sequence[str] = ()) -> str:
    """Regions, classes of GPU and kinds of hosts, any of which will do, in words; empty for none."""
    parts = [f"in {' or '.join(regions)}"] if regions else []
    parts += [f"on {' or '.join(gpus)}"] if gpus else []
    return " ".join(parts + ([f"on hosts of kind {' or '.join(kinds)}"] if kinds else []))


class PlaceRequest(msgspec.Struct, array_like=True):
    """Asks for a replica. Never carries text. Encoded by position: new fields are appended, with a default."""

    request_id: str
    tenant_id: str
    model: str
    prompt_tokens: int
    """Estimated prompt tokens (learned tokens-per-byte ratio; no tokenizer on this path)."""
    output_tokens: int
    """Estimated output tokens."""
    blocks: Sequence[int] = ()
    """Chained 64-bit hashes of the prompt's text or token blocks, salted per tenant, first to last."""
    block_tokens: int = 0
    """Tokens in each of `blocks`, for token blocks; 0 = text blocks, each an even share of the prompt."""
    deadline_s: float = 30.0
    """Longest time in the queue, in seconds from now."""
    tier: str = "standard"
    """priority | standard | batch."""
    weight: float = 1.0
    exclude: list[str] = []
    """Replicas on which the request has failed."""
    regions: tuple[str, ...] = ()
    """Regions in one of which it has to run, in lower case; empty = any."""
    gpus: tuple[str, ...] = ()
    """Classes of GPU on one of which it has to run, in lower case; empty = any."""
    wake_deadline_s: float = 0.0
    """Longest time in the queue of a model that has to wake first, in seconds from now; at least `deadline_s` holds."""
    track: str = ""
    """During a canary: of which version its replica has to be (scheduler/core/canary.py). The scheduler sets it."""
    adapter: str = ""
    """The LoRA adapter of its model that it names; empty = none."""

    @property
    def narrowed(self) -> bool:
        """Whether only some replicas may take it: it has failed on others, or has to run in some places."""
        return bool(self.exclude or self.bound)

    @property
    def bound(self) -> bool:
        """Whether it has to run in a region, on GPUs, on one version, or on an engine that takes adapters."""
        return bool(self.regions or self.gpus or self.track or self.adapter)

    @property
    def bound_to(self) -> BoundTo:
        """The regions and the classes of GPU that it has to run on."""
        return tuple(self.regions), tuple(self.gpus)

    def allows(self, region: str, gpu: str, *, adapters: bool = True) -> bool:
        """Whether it may run in `region` on GPUs of the class `gpu`, by an engine that takes adapters or not."""
        return allows_place(self.regions, self.gpus, region, gpu) and (adapters or not self.adapter)


class Placement(msgspec.Struct, array_like=True):
    """The answer: the replica of the request. It must be released exactly once. Encoded by position."""

    request_id: str
    epoch: str
    """The scheduler's incarnation; empty when the client placed the request without the scheduler."""
    replica_id: str
    url: str
    model: str
    boot_id: str
    simulated: bool = False
    queue_s: float = 0.0
    """Seconds that the request was queued."""
    predicted_ttft_s: float = 0.0
    hit_tokens: int = 0
    """Prompt tokens believed to be cached on the replica."""
    predicted_itl_s: float = 0.0
    """Predicted seconds per output token."""
    service: float = 0.0
    """The tenant's counter in the fair queue after this placement, for announcements to the next scheduler."""
    stream_interval: bool = False
    """Whether the replica's engine takes `stream_interval` with a request."""
    priority: int | None = None
    """The priority that the engine gets with the request: the number of its band, 0 = served first. None = the engine
    does not schedule by it."""
    rank: int | None = None
    """Rank of the replica that computes the request (workers/ranks.py); None = it has none."""
    region: str = ""
    """Region of the replica's host."""
    gpu: str = ""
    """Class of its GPUs, such as B300; empty = it has none, or they are not known."""
    engine_key: str = ""
    """Key of the replica's engine where its host has one of its own. The client writes it here; it is never sent."""
    engine_authority: bytes = b""
    """Certificate of the authority that signs those of its engines; empty = none. As `engine_key`."""
    counts_ids: bool = False
    """Whether the tokens of its streams are counted by their ids (`ReplicaStatus.counts_ids`)."""


class Released(msgspec.Struct, array_like=True):
    """A placement is over, with the actual usage. Encoded by position."""

    request_id: str
    replica_id: str
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    failed: bool = False
    """Whether the attempt failed because of the replica."""
    dispatched: bool = True
    """Whether the request was sent to the replica's engine. Its tenant is not charged otherwise."""


class PoolSnapshot(msgspec.Struct, tag="snapshot"):
    """The live state for the console, /v1/models and the local fallback."""

    epoch: str = ""
    at_unix_ms: int = 0
    replicas: list[ReplicaStatus] = []
    hosts: list["HostView"] = []
    queues: list["QueueView"] = []
    plan: "PlanView | None" = None
    """The plan of the autoscaler; None until it has enough observations."""
    models: list["ModelView"] = []
    """Every model that has a replica or had one in the last day."""
    started_unix_ms: int = 0
    """When the scheduler began to observe."""
    complete: bool = False
    """Whether all agents had the time to report: a model that is not in `models` then has no replica."""


class TierView(msgspec.Struct):
    """Requests of one model and tier in the last ten minutes; a figure without observations is None."""

    tier: str
    requests: int = 0
    availability: float | None = None
    """Share that got a replica which did not fail, 0 to 1. Refusals for a tenant's own share do not count."""
    ttft_p50_s: float | None = None
    """Median seconds to the first token, the wait for a replica included."""
    tokens_per_s: float | None = None
    """Median output tokens per second of an answer after its first token."""


class ModelView(msgspec.Struct):
    """Whether a model can serve, and how well it did."""

    model: str
    ready_in_s: float | None = None
    """Seconds until a replica can serve it, as expected: 0 = now or any moment, None = none is going to."""
    last_ready_unix_ms: int | None = None
    """When a replica could serve it last; None = not since the scheduler began."""
    tiers: list[TierView] = []
    wakes: bool = False
    """Whether it serves nothing now and a request wakes a replica, or is demand for which a host may be created."""


class HostView(msgspec.Struct):
    """One host, from its agent's last heartbeat."""

    host_id: str
    agent_id: str
    host_kind: str
    region: str
    gpus: int
    last_seen_s: float
    """Seconds since the last heartbeat."""
    state_seconds: dict[str, int] = {}
    acceptance: AcceptanceReport | None = None
    """What the checks of a GPU host found."""
    complete: bool = False
    """Whether its agent has reported all replicas of the host."""
    memory_gb: float = 0.0
    """Memory of the host in GB for the weights of sleeping replicas, as its agent reports it; 0 = not known."""


class QueueView(msgspec.Struct):
    """One model's queue."""

    model: str
    waiting: int = 0
    oldest_s: float = 0.0
    in_flight: int = 0
    bands: list["BandView"] = []
    """Bands with queued requests, served first to last."""
    tenants: list["TenantView"] = []
    """The tenants with most queued requests, largest first, at most 20."""


class BandView(msgspec.Struct):
    """The queued requests of one tier."""

    tier: str
    waiting: int
    oldest_s: float


class TenantView(msgspec.Struct):
    """One tenant's part of a model's queue."""

    tenant_id: str
    tier: str
    waiting: int
    running: int
    service: float
    """The tenant's counter in the fair queue, in weighted tokens."""


class ModelPlanView(msgspec.Struct, frozen=True):
    """Awake replicas that the autoscaler wants of a model, with the reason."""

    model: str
    awake: int
    """Serving replicas."""
    pending: int
    """Replicas that are waking, or will be on hosts in creation."""
    target: int
    planned_rps: float
    """Arrivals per second that are planned for: the measured rate and a margin for its uncertainty."""
    reason: str
    turn_in_s: float | None = None
    """Seconds until its first replica serves, where it waits for GPUs that other models use; null = it does not."""
    places: tuple["PlacePlanView", ...] = ()
    """Where requests are bound, or an admin has set a minimum: how many of `target` have to be there."""
    most: dict[str, int] = {}
    """Kinds of hosts with a maximum: how many replicas may be awake on their hosts."""


class PlacePlanView(msgspec.Struct, frozen=True):
    """Replicas of a model that requests, or a minimum, need in some places."""

    regions: tuple[str, ...]
    """Any of these; empty = any."""
    gpus: tuple[str, ...]
    awake: int
    """Serving replicas there."""
    pending: int
    """Replicas there that are waking, or will be on hosts in creation."""
    target: int
    """At least so many have to be there."""
    kinds: tuple[str, ...] = ()
    """On hosts of one of these kinds; empty = any."""

    @property
    def words(self) -> str:
        """Where it is, such as `in tor1 or nyc2 on b300`."""
        return place_words(self.regions, self.gpus, self.kinds)


class PlanChangeView(msgspec.Struct):
    """A replica that the autoscaler would move. Rungs are awake, sleep_1, sleep_2, stopped, destroyed."""

    replica_id: str
    before: str
    after: str
    reason: str
    region: str = ""


class KindPlanView(msgspec.Struct, frozen=True):
    """Hosts of one kind: those that there are, and those that the autoscaler wants."""

    kind: str
    present: int
    """Hosts that have joined, those to destroy included."""
    creating: int
    """Hosts in creation that have not joined."""
    desired: int
    """Hosts that there should be: `present` and `creating`, less those to destroy, plus those to create."""
    failures: int = 0
    """Creations that failed since the last success."""
    retry_in_s: float = 0.0
    """Seconds until one may be created again after failures; 0 = now."""


class HostCreationView(msgspec.Struct, frozen=True):
    """Hosts of one kind that the autoscaler would create for a model, beside those in creation."""

    kind: str
    model: str
    count: int
    reason: str
    regions: tuple[str, ...] = ()
    """In one of these regions, in lower case; empty = wherever the kind may be created."""
    shares: str = ""
    """The models that will share them, this one among them; empty = this one alone."""


class HostRemovalView(msgspec.Struct, frozen=True):
    """A host that the autoscaler would destroy."""

    host_id: str
    kind: str
    reason: str
    region: str = ""


class HostKeptView(msgspec.Struct, frozen=True):
    """A host that the autoscaler needs for nothing now and keeps."""

    host_id: str
    kind: str
    reason: str
    region: str = ""


class PlanView(msgspec.Struct):
    """The plan of the autoscaler, bounded."""

    models: list[ModelPlanView] = []
    changes: list[PlanChangeView] = []
    changes_total: int = 0
    """Number of all changes; `changes` contains the first of them."""
    kinds: list[KindPlanView] = []
    create: list[HostCreationView] = []
    destroy: list[HostRemovalView] = []
    kept: list[HostKeptView] = []
