"""The interface of a replica towards the agent, and the status that heartbeats carry."""

import logging
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

import msgspec

from core.errors import EngineFailed
from workers.engine_api import EngineMetrics
from workers.plan import EngineKind
from workers.wire import Capacity, EngineCounters, ReplicaState, ReplicaStatus, Targets

log = logging.getLogger(__name__)


class EngineRefused(EngineFailed):
    """An engine runs and is not fit to serve; to start it again by itself would not help."""


class Plan(Protocol):
    """What is planned for any kind of replica."""

    @property
    def replica_id(self) -> str:
        """Stable name of the replica."""

    @property
    def model_name(self) -> str:
        """The name under which the engine serves the model."""

    @property
    def embeds(self) -> bool:
        """Whether the model gives embeddings, and nothing else."""

    @property
    def engine(self) -> EngineKind:
        """The kind of engine."""

    @property
    def capacity(self) -> Capacity:
        """Capacity, until the engine reports its own."""

    @property
    def targets(self) -> Targets:
        """Service level."""

    @property
    def share(self) -> Fraction:
        """Its part of the host, 0 to 1."""


class Replica(Protocol):
    """A replica as the agent uses it."""

    state: ReplicaState

    @property
    def plan(self) -> Plan:
        """What was planned for it."""

    def status(self) -> ReplicaStatus:
        """The status for the heartbeat."""

    @property
    def busy(self) -> bool:
        """Whether the engine had work at the last scrape."""

    async def command(self, action: str, deadline_s: float, level: int = 1) -> None:
        """Execute an action of ReplicaCommand within `deadline_s` seconds. Raises PenstockError when it fails."""

    async def shut_down(self, drain_s: float) -> None:
        """Drain for at most `drain_s` seconds, then end the engine."""


class ReplicaView:
    """State and status that all kinds of replicas share."""

    def __init__(self, plan: Plan, url: str) -> None:
        self.plan = plan
        self.capacity = plan.capacity
        """Planned, or measured where the host is slower."""
        self.url = url
        self.state = ReplicaState.LOADING
        self.detail = "starting"
        self.boot_id = ""
        self.restarts = 0
        self.metrics = EngineMetrics()
        self.warmup = EngineCounters()
        self.pid = 0
        self.events_live: Callable[[], bool] = lambda: False
        """Whether the engine's KV events are received without a gap."""
        self.stream_interval = False
        """Whether the engine takes `stream_interval` with a request."""
        self.counts_ids = False
        """As in ReplicaStatus."""
        self._progressed = False
        self._scrapes = 0

    @property
    def busy(self) -> bool:
        """Whether requests were in the engine, or its token counters rose, at the last scrape."""
        return self._progressed or self.metrics.running + self.metrics.waiting > 0

    def record_scrape(self, metrics: EngineMetrics) -> None:
        """Store a new scrape."""
        before, now = self.metrics.counters, metrics.counters
        self._progressed = (
            now.generation_tokens > before.generation_tokens or now.prompt_tokens > before.prompt_tokens
        )
        self.metrics = metrics
        self._scrapes += 1

    def status(self) -> ReplicaStatus:
        """The status for the heartbeat."""
        metrics, capacity = self.metrics, self.capacity
        if metrics.block_size and metrics.kv_blocks:
            room = metrics.block_size * metrics.kv_blocks
            capacity = msgspec.structs.replace(capacity, kv_cache_tokens=room)
        return ReplicaStatus(
            replica_id=self.plan.replica_id,
            model=self.plan.model_name,
            url=self.url,
            engine=self.plan.engine,
            boot_id=self.boot_id,
            state=self.state,
            capacity=capacity,
            running=metrics.running,
            waiting=metrics.waiting,
            kv_usage=metrics.kv_usage,
            block_size=metrics.block_size,
            kv_blocks=metrics.kv_blocks,
            counters=metrics.counters,
            warmup_counters=self.warmup,
            targets=self.plan.targets,
            scrape=self._scrapes,
            restarts=self.restarts,
            simulated=self.plan.engine == "sim" or metrics.simulated,
            prefix_kind="tokens" if self.events_live() and metrics.block_size else "text",
            stream_interval=self.stream_interval,
            counts_ids=self.counts_ids,
            ranks=metrics.of_ranks(capacity.dp_ranks) if capacity.dp_ranks > 1 else [],
            metrics_url=f"{self.url}/metrics",
            pid=self.pid,
            detail=self.detail,
        )

    def enter(self, state: ReplicaState, detail: str = "") -> None:
        """Change the state; `detail` is one sentence with the reason."""
        if state is not self.state:
            log.info("replica %s: %s -> %s %s", self.plan.replica_id, self.state, state, detail)
        self.state = state
        self.detail = detail
