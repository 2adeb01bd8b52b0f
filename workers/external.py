"""A replica on an engine that Penstock does not run: any OpenAI-compatible server behind a URL."""

import asyncio

from core.clock import Clock
from core.errors import Conflict, EngineFailed
from core.ids import incarnation
from workers.engine_api import EngineApi
from workers.plan import ReplicaPlan
from workers.replica_view import ReplicaView
from workers.wire import ReplicaState

PROBE_S = 1.0
"""Seconds between probes."""


class ExternalReplica(ReplicaView):
    """A replica that is probed, but never started, stopped or warmed up."""

    def __init__(self, plan: ReplicaPlan, *, api: EngineApi, clock: Clock) -> None:
        super().__init__(plan, plan.url)
        self._api = api
        self._clock = clock
        self._draining = False
        self._seen_before = False

    async def run(self) -> None:
        """Probe once a second until cancelled; falling counters mean that the engine was restarted."""
        while True:
            try:
                await self._probe()
            except EngineFailed as error:
                self.boot_id = ""
                self.enter(ReplicaState.FAILED, error.message)
            await asyncio.sleep(PROBE_S)

    async def _probe(self) -> None:
        if not await self._api.healthy() and await self._api.first_model() is None:
            raise EngineFailed(f"{self.url} answers neither /health nor /v1/models")
        metrics = await self._api.metrics()
        fell = metrics.counters.prompt_tokens < self.metrics.counters.prompt_tokens
        if not self.boot_id or fell:
            self.restarts += self._seen_before
            self._seen_before = True
            self.boot_id = incarnation("external")
            self.warmup = metrics.counters
        self.record_scrape(metrics)
        self.enter(ReplicaState.DRAINING if self._draining else ReplicaState.READY)

    async def command(self, action: str, deadline_s: float) -> None:
        """Execute drain or resume. Raises Conflict for other actions."""
        if action not in ("drain", "resume"):
            raise Conflict(f"{self.plan.replica_id} is an external engine; it cannot be told to {action}")
        self._draining = action == "drain"
        if self.state in (ReplicaState.READY, ReplicaState.DRAINING):
            self.enter(ReplicaState.DRAINING if self._draining else ReplicaState.READY)

    async def shut_down(self, drain_s: float) -> None:
        """Enter STOPPED; the engine itself is left alone."""
        self.enter(ReplicaState.STOPPED, "the agent has stopped")
