"""Shared types of the simulator: requests, routing systems, the visible state of replicas, and results.

Times are seconds of simulated time from the start of a run; lengths are in tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from workers.wire import Capacity, KvDelta, RankStatus, ReplicaState, Targets


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request of a workload."""

    key: int
    """Unique in its workload, ascending by arrival."""
    at: float
    """Time at which the request arrives at an API process, in seconds."""
    tenant: str
    model: str
    prompt_tokens: int
    output_tokens: int
    """Number of tokens the answer really has; routing systems only see an estimate."""
    blocks: tuple[int, ...] = ()
    """Chained hashes of the prompt's leading whole blocks, which include the tenant's salt."""
    block_tokens: int = 64
    output_blocks: tuple[int, ...] = ()
    """Hashes that continue `blocks` after the answer, for a later prompt that contains this answer."""
    session: str = ""
    """Id of the conversation or agent run; session-hash routing hashes it."""
    tier: str = "standard"
    weight: float = 1.0


class Workload(Protocol):
    """A source of requests. The same seed gives the same requests."""

    @property
    def name(self) -> str:
        """The name under which users select the workload."""

    @property
    def models(self) -> Sequence[str]:
        """Names of the models it requests; at least one."""

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        """Yield requests in order of arrival: `rate` per second on average over `seconds`.

        Traces are stretched or compressed in time to that rate; consecutive seeds take consecutive parts of it.
        """


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica's metrics as a scrape shows them; always slightly out of date when a routing system sees them."""

    replica_id: str
    model: str
    boot_id: str
    state: ReplicaState
    capacity: Capacity
    targets: Targets
    running: int
    waiting: int
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""
    scraped_at: float
    ranks: tuple[RankStatus, ...] = ()
    """The figures by rank, where the engine has several."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A decision to run this request on a replica now."""

    key: int
    replica_id: str
    predicted_hit_tokens: int = -1
    """Number of prompt tokens expected in the replica's cache; -1 = the system does not predict it."""
    predicted_ttft_s: float = -1.0
    """Predicted seconds from now to the first token; -1 = the system does not predict it."""
    priority: int = 0
    """The priority that it sends to the engine, the lowest first."""
    rank: int | None = None
    """The rank of the replica that it asks for; None = the engine chooses one, or has none."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A decision not to run this request."""

    key: int
    reason: str
    retry_after_s: float = 0.0


Decision = Dispatch | Refuse


class Routing(Protocol):
    """A routing system under test: Penstock's scheduler or a published policy.

    `router` is the number of the API process (router instance) that received a request. A system whose
    instances do not share state keeps one state per `router`; one with a central scheduler ignores it.
    """

    name: str
    central: bool
    """Whether a decision requires a round trip to a central scheduler; the cluster then adds the network delay."""

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Accept a request that needs a replica; a later `decide` returns the decision.

        The system must not read `request.output_tokens`, which is the true length; it may use the run's
        `estimates`.
        """

    def decide(self, now: float) -> list[Decision]:
        """Return the decisions due now; called after every event that could change them."""

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Handle the first token, as the API process receives it."""

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None:
        """Handle the output tokens so far; called several times a second for long answers."""

    def finished(
        self,
        key: int,
        replica_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        failed: bool,
        now: float,
    ) -> None:
        """Handle the end of an attempt, complete or failed with the replica (the cluster then calls `arrive`
        again).
        """

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Handle scraped metrics of the whole pool, 50 to 200 ms old."""

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Handle KV events, 5 to 50 ms old; only called where `wants_kv_events`."""

    wants_kv_events: bool

    def next_wake(self, now: float) -> float | None:
        """Return when `decide` should run without another event (deadlines), in seconds; None = never."""


@runtime_checkable
class Restartable(Protocol):
    """A central routing system whose scheduler process can fail and be replaced."""

    def restart(self, now: float) -> None:
        """Discard the process's memory; state that API processes would announce again may be kept."""


@runtime_checkable
class LosesRouters(Protocol):
    """A routing system that handles the failure of API processes."""

    def router_lost(self, router: int, now: float) -> None:
        """Handle a dead API process: its queued and running requests are gone and never reach `finished`."""


@dataclass(slots=True)
class Record:
    """The outcome of one request."""

    request: SimRequest
    router: int
    replica_id: str = ""
    dispatched_at: float = -1.0
    first_token_at: float = -1.0
    finished_at: float = -1.0
    refused: str = ""
    """Reason of the refusal; empty when the request was not refused."""
    retry_after_s: float = 0.0
    cached_tokens: int = 0
    predicted_hit_tokens: int = -1
    """Number of prompt tokens predicted to be cached; -1 = the routing system does not predict it."""
    predicted_ttft_s: float = -1.0
    attempts: int = 0
    preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token; only valid for a request that received one."""
        return self.first_token_at - self.request.at

    @property
    def tpot_s(self) -> float:
        """Mean seconds per output token after the first; 0 for answers of one token."""
        further = self.request.output_tokens - 1
        return (self.finished_at - self.first_token_at) / further if further > 0 else 0.0


@dataclass(slots=True)
class RunResult:
    """The result of one run: every request's record and the pool's GPU time."""

    policy: str
    workload: str
    load: float
    seed: int
    records: list[Record]
    seconds: float
    """Simulated seconds from the first arrival to the last event."""
    gpu_hours: float
    """GPUs held (loading, ready, draining, failed) times hours; sleeping replicas hold none."""
    replica_seconds: dict[str, float] = field(default_factory=dict)
    """Replica seconds by state, such as ready, loading or asleep."""
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    """GPU seconds by state: each replica's seconds times its GPUs."""
    usd_per_gpu_hour: float = 0.0
    arrivals_s: float = 0.0
    """Time of the last arrival in seconds; afterwards the run only drains."""
    warmup_s: float = 0.0
    """Seconds of warm-up: earlier arrivals fill caches and are excluded from every figure."""
    cooldown_s: float = 0.0
    """Seconds before the last arrival whose arrivals are excluded, too."""

    @property
    def measured_until_s(self) -> float:
        """Time in seconds until which arrivals count."""
        return max(self.arrivals_s - self.cooldown_s, self.warmup_s)
