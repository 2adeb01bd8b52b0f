"""What agents, scheduler and API processes say of hosts and replicas.

Plain msgspec structs: msgpack on the scheduler's socket; read by scheduler/, gateway/ and console/ alike.
"""

from enum import StrEnum

import msgspec


class ReplicaState(StrEnum):
    """Where a replica stands; seconds in each are accounted per host (DESIGN §5, GPU economics)."""

    LOADING = "loading"
    """Process starting, weights loading, warm-up running."""
    READY = "ready"
    """May be routed to (serving, or warm and idle)."""
    ASLEEP = "asleep"
    """Weights parked; requests would hang, never route here."""
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""
    FAILED = "failed"
    """Died; the agent restarts it after a backoff."""
    STOPPED = "stopped"


class Roofline(msgspec.Struct, frozen=True):
    """Reading the weights of a mixture of experts, which a step cannot be faster than."""

    dense_s: float
    """Seconds to read what every token needs."""
    experts_s: float
    """Seconds to read all experts."""
    experts: int
    """Routed experts a layer."""
    per_token: int
    """Of which a token uses that many."""


class Capacity(msgspec.Struct, frozen=True):
    """What a replica can do, from its engine profile; units as in DESIGN §6."""

    prefill_tokens_per_s: float
    """R: prefill throughput, tokens per second."""
    step_base_s: float
    """alpha: seconds of a decode step with an empty batch."""
    step_per_seq_s: float
    """beta: added seconds per running sequence."""
    step_per_kv_token_s: float = 0.0
    """gamma: added seconds per token of KV cache read."""
    accept_per_step: float = 1.0
    """Tokens a step yields per sequence (above 1 with speculative decoding)."""
    draft_tokens: int = 0
    """Tokens drafted per sequence and step; 0 = as many as `accept_per_step` needs at least."""
    max_num_seqs: int = 256
    kv_cache_tokens: int = 100_000
    """Room of the KV cache in tokens."""
    max_model_len: int = 4096
    gpus: int = 0
    """GPUs the replica occupies; 0 on CPU."""
    roofline: Roofline | None = None
    """How experts bend the line `step_base_s + step_per_seq_s * B` in the step model; its ends stay as they are."""


class Targets(msgspec.Struct, frozen=True):
    """What callers of a model are promised (its service level), from the catalog."""

    ttft_s: float = 2.0
    """A first token within this, on top of the request's own prefill without any cache (`prompt / R`)."""
    tpot_s: float = 0.1
    """Mean seconds per output token after the first."""


class EngineCounters(msgspec.Struct, frozen=True):
    """Cumulative counters of one engine incarnation, as its /metrics shows them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0


class ReplicaStatus(msgspec.Struct):
    """One replica in a heartbeat."""

    replica_id: str
    """Stable name, e.g. `host-1/tiny-0`."""
    model: str
    url: str
    """Base URL without /v1; reachable from the API processes."""
    engine: str
    """vllm | sim | external."""
    boot_id: str
    """Names this incarnation of the engine process; counters restart with it."""
    state: ReplicaState
    capacity: Capacity
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    block_size: int = 0
    kv_blocks: int = 0
    counters: EngineCounters = EngineCounters()
    warmup_counters: EngineCounters = EngineCounters()
    """Counters at the end of warm-up: the baseline of reconciliation."""
    scrape: int = 0
    """Number of the scrape that `running`, `waiting` and `counters` are from."""
    restarts: int = 0
    simulated: bool = False
    targets: Targets = Targets()
    prefix_kind: str = "text"
    """How prompts are matched to its cache: `text` = mirrored text blocks, `tokens` = exact, by the engine's events."""
    sleep_level: int = 0
    """While asleep: 1 = weights in host memory, 2 = weights dropped."""
    metrics_url: str = ""
    pid: int = 0
    detail: str = ""
    """One sentence on why it is not ready."""


class AgentHello(msgspec.Struct, tag="agent_hello"):
    """An agent's first frame on the scheduler's socket."""

    token: str
    agent_id: str


class Heartbeat(msgspec.Struct, tag="heartbeat"):
    """An agent's whole view, every 500 ms."""

    agent_id: str
    host_id: str
    boot_id: str
    """Names this run of the agent's accounting of `state_seconds`."""
    seq: int
    region: str
    host_kind: str
    """Key of the catalog's host prices, e.g. `gpu-b300x8-2304gb-contracted` or `local-cpu`."""
    gpus: int
    replicas: list[ReplicaStatus]
    state_seconds: dict[str, int]
    """Cumulative whole seconds of host time per state (loading, serving, warm_idle, asleep, draining)
    since `boot_id` began; they add up to the host's life."""
    model_seconds: dict[str, dict[str, int]] = {}
    """The same per model: model -> state -> seconds of replica time weighted by its share of the host."""


class KvDelta(msgspec.Struct, tag="kv_delta"):
    """Agent to scheduler: how one replica's prefix cache has changed, translated from the engine's KV events.

    Block hashes are Penstock's own chained 64-bit hashes of token blocks, salted per tenant, the same ones that
    PlaceRequest.blocks carries for a model whose `prefix_kind` is `tokens`.
    """

    replica_id: str
    boot_id: str
    seq: int
    """Counts up by one per delta of a boot; after a reconnection or a KvResync the agent sends `cleared` and
    everything, in as many deltas as it takes."""
    stored: list[int] = []
    removed: list[int] = []
    cleared: bool = False
    """Forget everything known of the replica first."""


class KvResync(msgspec.Struct, tag="kv_resync"):
    """Scheduler to agent: say again all that a replica's prefix cache holds; deltas of it have gone missing.

    An agent that does not know this frame closes the connection, and says everything on the next one.
    """

    replica_id: str


class ReplicaCommand(msgspec.Struct, tag="replica_command"):
    """Scheduler to agent: bring a replica into a state."""

    command_id: str
    replica_id: str
    action: str
    """drain | resume | sleep | wake | stop | restart | kill."""
    deadline_s: float = 120.0


class CommandResult(msgspec.Struct, tag="command_result"):
    """Agent to scheduler: what became of a command."""

    command_id: str
    ok: bool
    message: str = ""
