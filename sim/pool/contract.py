"""What the parts of the simulator agree on: requests, routing systems, replicas as they are seen, results.

Times are seconds of simulated time from the start of a run; tokens are tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from workers.wire import Capacity, KvDelta, ReplicaState, Targets


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request of a workload."""

    key: int
    """Unique in its workload, counting up by arrival."""
    at: float
    """When it arrives at an API process."""
    tenant: str
    model: str
    prompt_tokens: int
    output_tokens: int
    """True length; routing systems only see an estimate."""
    blocks: tuple[int, ...] = ()
    """Chained hashes of the prompt's leading whole blocks; the tenant's salt is part of them."""
    block_tokens: int = 64
    output_blocks: tuple[int, ...] = ()
    """The hashes that continue `blocks` once the answer is there, where a later prompt continues this answer."""
    session: str = ""
    """Conversation or agent run it belongs to; what session-hash routing hashes."""
    tier: str = "standard"
    weight: float = 1.0


class Workload(Protocol):
    """A source of requests. The same seed gives the same requests."""

    @property
    def name(self) -> str:
        """As users ask for it."""

    @property
    def models(self) -> Sequence[str]:
        """Models it asks for; one or more."""

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        """Requests in order of arrival: `rate` a second on average over `seconds`.

        Traces are stretched or compressed in time to that rate, starting at a place that `seed` chooses.
        """


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica's metrics as a scrape shows them; always a little old when a routing system sees it."""

    replica_id: str
    model: str
    boot_id: str
    state: ReplicaState
    capacity: Capacity
    targets: Targets
    running: int
    waiting: int
    kv_usage: float
    """0 to 1."""
    scraped_at: float


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run this request there, now."""

    key: int
    replica_id: str
    predicted_hit_tokens: int = -1
    """Prompt tokens it expects to be cached there; -1 = it does not predict."""
    predicted_ttft_s: float = -1.0
    """Seconds to the first token from now on; -1 = it does not predict."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not run this request."""

    key: int
    reason: str
    retry_after_s: float = 0.0


Decision = Dispatch | Refuse


class Routing(Protocol):
    """A routing system under test: Penstock's scheduler, or a published policy.

    `router` numbers the API process (router instance) that a request came to. A system whose instances do not share
    state keeps one state per `router`; one with a central scheduler ignores it.
    """

    name: str
    central: bool
    """Whether a decision crosses the network to a scheduler and back (the cluster then adds that delay)."""

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """A request wants a replica; the answer comes from `decide`, at once or later.

        `request.output_tokens` is the truth and must not be looked at; `estimate` of the run says what is known.
        """

    def decide(self, now: float) -> list[Decision]:
        """What is to happen now; called after every event that could change the answer."""

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """The API process saw the first token."""

    def progress(self, key: int, replica_id: str, produced: int, now: float) -> None:
        """Output tokens so far; a few times a second for long answers."""

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
        """The answer is complete, or failed because of the replica (the cluster then calls `arrive` again)."""

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Scraped metrics arrive: the whole pool, some 50-200 ms old."""

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """KV events arrive (5-50 ms old); only called where `wants_kv_events`."""

    wants_kv_events: bool

    def next_wake(self, now: float) -> float | None:
        """When `decide` should be called though nothing has happened (deadlines); None = never."""


@runtime_checkable
class Restartable(Protocol):
    """A central routing system whose scheduler process can die and be replaced."""

    def restart(self, now: float) -> None:
        """All that the process held in memory is gone; what API processes would announce again may be kept."""


@runtime_checkable
class LosesRouters(Protocol):
    """A routing system that wants to know of API processes that died."""

    def router_lost(self, router: int, now: float) -> None:
        """The process is dead, with all it waited for and everything it ran; its requests never `finish`."""


@dataclass(slots=True)
class Record:
    """What became of one request."""

    request: SimRequest
    router: int
    replica_id: str = ""
    dispatched_at: float = -1.0
    first_token_at: float = -1.0
    finished_at: float = -1.0
    refused: str = ""
    """Reason; empty when it was not refused."""
    retry_after_s: float = 0.0
    cached_tokens: int = 0
    predicted_hit_tokens: int = -1
    """-1 = the routing system does not predict."""
    predicted_ttft_s: float = -1.0
    attempts: int = 0
    preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token; only for a request that got one."""
        return self.first_token_at - self.request.at

    @property
    def tpot_s(self) -> float:
        """Mean seconds per output token after the first; 0 for answers of one token."""
        further = self.request.output_tokens - 1
        return (self.finished_at - self.first_token_at) / further if further > 0 else 0.0


@dataclass(slots=True)
class RunResult:
    """One run: every request's record and what the pool did."""

    policy: str
    workload: str
    load: float
    seed: int
    records: list[Record]
    seconds: float
    """Simulated seconds from the first arrival to the last event."""
    gpu_hours: float
    """GPUs held (loading, ready, draining, failed; asleep replicas have given theirs to others) times hours."""
    replica_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of replica time by state, e.g. ready, loading, asleep."""
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    """The same, each replica's seconds times its GPUs."""
    usd_per_gpu_hour: float = 0.0
    arrivals_s: float = 0.0
    """When the last request arrived; afterwards the run only drains."""
    warmup_s: float = 0.0
    """Arrivals before this time fill caches and are left out of every figure."""
