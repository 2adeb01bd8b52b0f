"""Messages about hosts and replicas between agents, scheduler and API processes.

They are msgspec structs, encoded as msgpack on the scheduler's socket.
"""

from enum import StrEnum
from operator import add, sub
from typing import Annotated, Literal

import msgspec

Term = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A term of the scheduler's lease."""
USUAL_BATCHED_TOKENS = 8192
"""Tokens of a step where none are stated: vLLM's own choice on an H100, and that of the published sweeps."""


class ReplicaState(StrEnum):
    """State of a replica; seconds in each are accounted per host."""

    LOADING = "loading"
    """Process starting, weights loading, warm-up running; or waking from sleep."""
    READY = "ready"
    """May be routed to (serving, or warm and idle)."""
    ASLEEP = "asleep"
    """Weights not on the GPU; no request may be routed here, because it would hang."""
    DRAINING = "draining"
    """Finishes its requests and accepts no new ones."""
    FAILED = "failed"
    """The engine died; the agent restarts it after a backoff."""
    STOPPED = "stopped"
    """The engine was stopped by command, or the agent is stopping."""


class Capacity(msgspec.Struct, frozen=True):
    """Capacity of a replica from its engine profile: the parameters of the formula in workers/step_time.py.

    Agents send it. A figure that an older agent does not send has no effect.
    """

    prefill_tokens_per_s: float
    """R: prompt tokens per second that an engine computes after an empty context."""
    step_base_s: float
    """alpha: seconds of a decode step with an empty batch."""
    step_per_seq_s: float
    """beta: added seconds per running sequence."""
    step_per_kv_token_s: float = 0.0
    """gamma: added seconds per token of KV cache read."""
    step_experts_s: float = 0.0
    """Added seconds of a step whose tokens use every expert; 0 for a dense model."""
    expert_share: float = 0.0
    """k/E: share of a layer's routed experts that one token uses, 0 to 1."""
    prefill_pair_s: float = 0.0
    """q: added seconds per pair of a new prompt token and a token before it (attention over the context)."""
    dp_ranks: int = 1
    """Attention data parallelism: ranks of which each computes whole requests, in steps that all take together. The
    other figures are those of the whole engine with evenly loaded ranks; a prompt alone has one rank's share of R.
    workers/ranks.py has the part of one rank."""
    request_s: float = 0.0
    """h: seconds by which a request's first token is later, beside the engine's steps (HTTP, tokens, scheduling)."""
    accept_per_step: float = 1.0
    """Tokens per sequence and step (above 1 with speculative decoding)."""
    draft_tokens: int = 0
    """Draft tokens per sequence and step; 0 = the fewest that `accept_per_step` needs."""
    max_num_seqs: int = 256
    """Most sequences in a batch, of all ranks together."""
    max_batched_tokens: int = USUAL_BATCHED_TOKENS
    """Most tokens of one step of a rank (vLLM's `--max-num-batched-tokens`): a prompt is computed in chunks of at most
    as many, and running answers pause for as long as one takes."""
    by_priority: bool = False
    """Whether the engine orders requests by their `priority`, the lowest first; otherwise all are equal to it."""
    kv_cache_tokens: int = 100_000
    """Size of the KV cache in tokens, of all ranks together."""
    host_kv_tokens: int = 0
    """Tokens whose KV the engine keeps in host memory behind its cache; 0 = it keeps none there."""
    kv_load_s: float = 0.0
    """Seconds to bring the KV of one token back from there, with the links of all ranks busy."""
    max_model_len: int = 4096
    """Most tokens of prompt and output together."""
    gpus: int = 0
    """GPUs the replica occupies; 0 on CPU."""
    sweep: str = ""
    """Name of the sweep that validates the figures; empty = they are not validated."""
    assumed: bool = False
    """Whether nothing is known of the speeds but their order (external engines that were not measured)."""
    learnt: bool = False
    """Whether the scheduler has seen enough of the engine's answers to know its speeds. It says so in snapshots."""


def basis_of(capacity: Capacity) -> str:
    """What the figures of a capacity are, in a word: `validated` by a sweep, `learnt` by the scheduler from answers, or
    `unvalidated`."""
    if capacity.sweep and not capacity.assumed:
        return "validated"
    return "learnt" if capacity.learnt or capacity.assumed else "unvalidated"


class TierTargets(msgspec.Struct, frozen=True):
    """The times that are promised to one tier of a model."""

    ttft_s: float = 2.0
    """Seconds to the first token, in addition to the request's own prefill (`step_time.own_prefill_s`)."""
    tpot_s: float = 0.1
    """Mean seconds per output token after the first."""


class Targets(TierTargets, frozen=True):
    """Service level of a model: what the standard tier is promised, and the other tiers where they differ."""

    priority: TierTargets | None = None
    """Of the priority tier; None = as the standard tier."""
    batch: TierTargets | None = None
    """Of the batch tier; None = as the standard tier."""

    def of(self, tier: str) -> TierTargets:
        """What `tier` is promised; an unknown tier counts as standard."""
        own = self.priority if tier == "priority" else self.batch if tier == "batch" else None
        return self if own is None else own


class EngineCounters(msgspec.Struct, frozen=True):
    """Cumulative counters of one engine incarnation, from its /metrics."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0
    """Steps of sequences for which tokens were drafted."""
    accepted_tokens: int = 0
    """Drafted tokens that were accepted."""

    def plus(self, other: "EngineCounters") -> "EngineCounters":
        """The sums."""
        return EngineCounters(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def minus(self, other: "EngineCounters") -> "EngineCounters":
        """The differences."""
        return EngineCounters(*map(sub, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class RankStatus(msgspec.Struct, frozen=True):
    """One rank of an engine with attention data parallelism, from its /metrics."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of its KV cache in use, 0 to 1."""
    kv_blocks: int = 0
    counters: EngineCounters = EngineCounters()


class StageTime(msgspec.Struct, frozen=True):
    """How long a stage of a replica's life took, in seconds; `count` 0 = it was not measured yet."""

    last_s: float = 0.0
    mean_s: float = 0.0
    """Running mean, in which the newest time weighs most."""
    count: int = 0


class LifeTimes(msgspec.Struct, frozen=True):
    """Measured times of a replica, kept by its agent over restarts."""

    load: StageTime = StageTime()
    """From the start of the process until it may serve."""
    drain: StageTime = StageTime()
    """From the command until no request was left."""
    wake_1: StageTime = StageTime()
    """From sleep level 1 until it may serve, the proof of its weights included."""
    wake_2: StageTime = StageTime()
    """From sleep level 2."""
    prefetch: StageTime = StageTime()
    """Until the weights were on the host and checked."""


ANY_DISTANCE = 100.0
"""A distance of log-probabilities that no two answers have, in nats."""


class AnswerQuality(msgspec.Struct, frozen=True):
    """The greedy answers of a version's engine beside those of the engine before it, to the same fixed prompts."""

    agreement: float
    """Share of the tokens that are the same, 0 to 1; of embeddings the least cosine."""
    logprob_distance: float | None = None
    """Mean difference of the log-probabilities of those, in nats; None = the engine gives none."""
    beside: str | None = None
    """The version of that earlier engine; None = an agent before this field does not say it."""


class ReplicaStatus(msgspec.Struct):
    """One replica in a heartbeat."""

    replica_id: str
    """Stable name such as `host-1/tiny-0`."""
    model: str
    url: str
    """Base URL without /v1 that the API processes can reach."""
    engine: str
    """vllm | sim | external."""
    boot_id: str
    """Id of this incarnation of the engine process; its counters begin at 0."""
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
    """Number of the scrape that `running`, `waiting` and `counters` come from."""
    scrape_age_s: float = 0.0
    """Seconds since that scrape, when the heartbeat was sent."""
    restarts: int = 0
    simulated: bool = False
    targets: Targets = Targets()
    prefix_kind: str = "text"
    """How prompts are matched to its prefix cache: `text` = mirrored text blocks, `tokens` = by the engine's events."""
    sleep_level: int = 0
    """Of a replica that sleeps or wakes: 1 = weights in host memory, 2 = weights dropped."""
    phase: str = ""
    """What it does in more detail than `state` (workers.replica_states.Phase); an older agent sends none."""
    phase_s: float = 0.0
    """Seconds in this phase, or of the stage (load, drain, wake) that it belongs to."""
    weights_done_bytes: int = 0
    """While it prefetches: bytes of its weights that are on the host, or that are checked; else 0."""
    weights_total_bytes: int = 0
    """Bytes of all its weights then; 0 = not known."""
    times: LifeTimes = LifeTimes()
    """How long its stages took."""
    held: bool = False
    """Whether it was stopped by a command that no program of the scheduler gave: requests do not wake it."""
    failures: int = 0
    """Failures in a row; 0 again after a minute of health, or a start by a command."""
    gpu_ids: list[str] = []
    """The GPUs of its host that it uses while it is awake."""
    stream_interval: bool = False
    """Whether the engine takes `stream_interval` with a request: the number of tokens per event of a stream."""
    counts_ids: bool = False
    """Whether its streams have no running usage, but the ids of their tokens where a request asks for them."""
    ranks: list[RankStatus] = []
    """The ranks of its engine, in order, where a request can be sent to one; the other figures are those of all
    together. Empty = requests are sent to the replica as a whole."""
    region: str = ""
    """Region of its host; empty = an older agent reports it."""
    gpu: str = ""
    """Class of its GPUs, as the catalog names it for the kind of host; empty = it has none, or they are not known."""
    metrics_url: str = ""
    pid: int = 0
    detail: str = ""
    """One sentence on why the replica is not ready."""
    version: str = ""
    """Version of its engine by the last rollout (workers/engine_spec.py); empty = as its host's settings say."""
    deploys: bool = False
    """Whether its agent knows the command `deploy`."""
    max_adapters: int = 0
    """LoRA adapters that one batch may use; 0 = its engine takes none."""
    adapters: list[str] = []
    """Those that its engine has asked for since it started."""
    quality: AnswerQuality | None = None
    """Answers of this version beside those of the one that it replaced; None = they were not compared."""


class EndedEngine(msgspec.Struct):
    """The last status of an engine process that has ended. Heartbeats repeat it, for a scheduler that was away."""

    status: ReplicaStatus
    scrape_age_s: float
    """Seconds since its last scrape."""
    ended_age_s: float
    """Seconds since its end was noticed."""


class AcceptanceFinding(msgspec.Struct, frozen=True):
    """One thing that the checks of a host found."""

    severity: Literal["note", "degraded", "refused"]
    check: str
    text: str


class AcceptanceReport(msgspec.Struct, frozen=True):
    """The result of the checks of a GPU host (workers/acceptance)."""

    verdict: Literal["accepted", "degraded", "refused"]
    """A refused host starts no engine."""
    at_unix_ms: int
    """When it was checked; the speed of an engine that started later may have changed the verdict."""
    findings: list[AcceptanceFinding] = []
    figures: dict[str, float] = {}
    """What was measured, with the unit in each name."""


class AgentJoin(msgspec.Struct, tag="agent_join"):
    """The only frame of a host that joins: its one-time token for the right to use a secret that it has made."""

    token: str
    host_id: str
    secret_hash: bytes
    """SHA-256 of the secret. The same frame again is answered alike, should the answer have been lost."""


class AgentRotation(msgspec.Struct, tag="agent_rotation"):
    """The only frame of a host that replaces its secret, as a Claim has asked. It is answered as AgentJoin is."""

    token: str
    """A secret that holds."""
    host_id: str
    secret_hash: bytes
    """SHA-256 of the secret that is to hold from now on."""


class JoinAnswer(msgspec.Struct, tag="join_answer"):
    """Scheduler to a host that joins or replaces its secret; the connection is closed."""

    error: str = ""
    """Why not; empty = the secret holds from now on."""


class AuthorityRequest(msgspec.Struct, tag="authority_request"):
    """The only frame of a host that knows the fingerprint of the schedulers' authority and not yet its certificate."""


class AuthorityAnswer(msgspec.Struct, tag="authority_answer"):
    """Scheduler to such a host; the connection is closed. The host checks the fingerprint."""

    certificate: bytes
    """In PEM; empty = the scheduler speaks no TLS."""


class AgentHello(msgspec.Struct, tag="agent_hello"):
    """An agent's first frame on the scheduler's socket."""

    token: str
    """The internal token, or with `joined` the host's own secret."""
    agent_id: str
    waits: bool = False
    """Whether the agent waits for a Claim before it sends anything more; an older one does not know that frame."""
    term: Term = 0
    """The highest term of the lease that the agent knows of; a scheduler of a lower one stops."""
    run: str = ""
    """Id of this run of the agent, which tells it from another agent with the same id; an older one sends none."""
    wants: str = ""
    """Names of added models whose entries the agent needs, separated by commas; empty = none."""
    joined: bool = False
    """Whether the host has joined, and its agent id is the name under which it did."""
    engine_key: str = ""
    """Key that this host's engines require of API processes; empty = the one of the whole platform."""
    engine_authority: bytes = b""
    """Certificate, in PEM, of the authority that signs the certificates of this host's engines; empty = no TLS."""


class AgentRefusal(msgspec.Struct, tag="agent_refusal"):
    """Scheduler to agent, in place of a Claim: it is turned away, and the connection is closed.

    An agent that does not know this frame closes the connection by itself.
    """

    error: str
    """What is wrong and what to do."""


class Claim(msgspec.Struct, tag="claim"):
    """Scheduler to agent, at once and then every second: whether it serves.

    An agent talks to the scheduler with the highest term alone.
    """

    term: int
    """Term of the lease under which the scheduler serves; 0 = it stands by."""
    entry: str = ""
    """The entry of a model that the agent wants (workers.added_models.encode_model), one in each Claim; empty = of none
    that is known here."""
    rotate: bool = False
    """Whether the agent is to make another secret (AgentRotation). An older one does not, and its secret holds on."""


SIMULATED_HOST = "sim-"
"""Begins the id of a host whose engines are simulated; the rest is its name."""


class Heartbeat(msgspec.Struct, tag="heartbeat"):
    """The whole state of an agent, sent every 500 ms."""

    agent_id: str
    host_id: str
    boot_id: str
    """Id of this run of the agent's accounting."""
    seq: int
    region: str
    host_kind: str
    """Key of the catalog's host prices, such as `gpu-b300x8-2304gb-contracted` or `local-cpu`."""
    gpus: int
    replicas: list[ReplicaStatus]
    state_seconds: dict[str, int]
    """Whole seconds of host time per state (loading, serving, warm_idle, asleep, draining) since `boot_id` began; their
    sum is the time since then."""
    model_seconds: dict[str, dict[str, int]] = {}
    """Model -> state -> seconds of replica time, weighted by the replica's share of the host."""
    ended: list[EndedEngine] = []
    """The last engine processes of each replica that have ended."""
    sent_at: float = 0.0
    """When it was sent, in seconds of the agent's monotonic clock; 0 = unknown."""
    acceptance: AcceptanceReport | None = None
    """None = the host has no GPUs, is being checked, or is not to be."""
    address: str = ""
    """Address or name at which API processes reach its engines."""
    version: str = ""
    """Version of Penstock that the agent is of."""
    complete: bool = False
    """Whether `replicas` are all that the host has: not while the agent prepares, when engines of an earlier run may
    serve. An older agent does not say."""
    memory_gb: float = 0.0
    """Memory of the host in GB for the weights of sleeping replicas: all but what its engines keep KV caches in;
    0 = not known."""


class KvDelta(msgspec.Struct, tag="kv_delta"):
    """Agent to scheduler: changes of the prefix cache of one replica, or rank, translated from the engine's KV events.

    Block hashes are those of workers/token_blocks.py, which PlaceRequest.blocks carries for a model whose `prefix_kind`
    is `tokens`.
    """

    replica_id: str
    """Name of the replica, or of one rank of it (`ranks.rank_id`)."""
    boot_id: str
    seq: int
    """Incremented by each delta of a boot. After a reconnection or a KvResync, the next deltas hold the whole content,
    and the first of them has `cleared` set."""
    stored: list[int] = []
    removed: list[int] = []
    cleared: bool = False
    """Whether the receiver must first forget the replica's blocks."""


class KvResync(msgspec.Struct, tag="kv_resync"):
    """Scheduler to agent: deltas are missing, so send the whole content of a replica's prefix cache again.

    An agent that does not know this frame closes the connection and sends the whole content on the next one.
    """

    replica_id: str


class ReplicaCommand(msgspec.Struct, tag="replica_command"):
    """Scheduler to agent: change the state of a replica."""

    command_id: str
    replica_id: str
    action: str
    """drain | resume | sleep | wake | stop | restart | deploy | kill | answers: the result's message has the greedy
    answers of its engine, as JSON."""
    deadline_s: float = 120.0
    level: int = 1
    """Of sleep: 1 = weights in host memory, 2 = weights dropped. An older agent knows level 1 alone."""
    hold: bool = False
    """Of stop: whether requests must not wake it. The scheduler sets it for commands of its clients."""
    spec: bytes = b""
    """Of deploy: the version to run from now on, as JSON (workers.engine_spec.EngineSpec)."""
    same_answer: bool = False
    """Of deploy: whether the new engine must give the stored greedy answer of the one before it."""
    min_agreement: float = 0.0
    """Of deploy: least share of the tokens of that answer which the new engine must give."""
    max_logprob_distance: float | None = None
    """Of deploy: largest mean difference of their log-probabilities, in nats; None = any."""


class CommandResult(msgspec.Struct, tag="command_result"):
    """Agent to scheduler: the result of a command."""

    command_id: str
    ok: bool
    message: str = ""
    refused: bool = False
    """Whether the agent cannot do what the command says, now or later; else it may succeed when it is tried again."""
    called_off: bool = False
    """Whether another command has taken its place, so that the replica serves again."""
