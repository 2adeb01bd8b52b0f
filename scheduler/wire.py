"""What API processes and the scheduler say to each other: the contract of scheduler.client.

Frames on the socket are a 4-byte big-endian length and one msgpack-encoded, tagged struct.
"""

import msgspec

from workers.wire import ReplicaStatus


class PlaceRequest(msgspec.Struct, tag="place"):
    """Where should this request run? Never carries text."""

    request_id: str
    tenant_id: str
    model: str
    prompt_tokens: int
    """Estimated prompt tokens (learned tokens-per-byte ratio; no tokenizer on this path)."""
    output_tokens: int
    """Estimated output tokens."""
    blocks: list[int] = []
    """Chained 64-bit hashes of the prompt's text blocks, salted per tenant, longest prefix first to last."""
    deadline_s: float = 30.0
    """Seconds from now that the request may wait in the queue."""
    tier: str = "standard"
    """priority | standard | batch."""
    weight: float = 1.0
    exclude: list[str] = []
    """Replicas on which this request has failed already."""


class Placement(msgspec.Struct, tag="placed"):
    """The answer: run it here. Must be released exactly once."""

    request_id: str
    epoch: str
    """The scheduler's incarnation; empty when the client placed by itself because the scheduler was away."""
    replica_id: str
    url: str
    model: str
    boot_id: str
    simulated: bool = False
    queue_s: float = 0.0
    """Seconds it waited in the fair queue."""
    predicted_ttft_s: float = 0.0
    hit_tokens: int = 0
    """Prompt tokens believed to be cached on the replica."""


class Released(msgspec.Struct, tag="released"):
    """Client to scheduler: a placement is over; correct the counters."""

    request_id: str
    replica_id: str
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    failed: bool = False
    """The attempt failed because of the replica."""


class PoolSnapshot(msgspec.Struct, tag="snapshot"):
    """Live state for the console, /v1/models and the local fallback."""

    epoch: str = ""
    at_unix_ms: int = 0
    replicas: list[ReplicaStatus] = []
    hosts: list["HostView"] = []
    queues: list["QueueView"] = []


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


class QueueView(msgspec.Struct):
    """One model's queue."""

    model: str
    waiting: int = 0
    oldest_s: float = 0.0
    in_flight: int = 0
