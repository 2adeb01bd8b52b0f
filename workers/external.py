"""Engines that Penstock does not run: any OpenAI-compatible server behind a URL.

Each model that the engine lists is a replica, named after it. The engine is probed once a second for all of them. The
speed of the only model of an engine is measured at first; others share theirs, and to ask for one may load it.

The URL may be that of a router with a fleet of engines (workers/engine_fleet.py). Its metrics are those of any one of
them, so that nothing follows from them; its capacity is that of all.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction

import aiohttp
import msgspec

from core.clock import Clock
from core.errors import Conflict, EngineFailed, PenstockError
from core.ids import incarnation
from core.settings import Settings
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_fleet import StreamCounts, capacity_of, engines_behind, stream_counts
from workers.engine_models import ASSUMED_CONTEXT_LEN, ServedModel, list_models
from workers.engine_speed import measured
from workers.plan import ExternalPlan, plan_external
from workers.replica_view import Replica, ReplicaView
from workers.wire import ReplicaState

log = logging.getLogger(__name__)

PROBE_S = 1.0
"""Seconds between probes."""
LIST_EVERY = 10
"""Probes between two listings of the models of an engine with a working /health."""


class ExternalReplica(ReplicaView):
    """One model of an external engine. It is observed, but never started, stopped or warmed up."""

    def __init__(self, plan: ExternalPlan, url: str) -> None:
        super().__init__(plan, url)
        self._of_one = plan.capacity
        """Capacity of one engine."""
        self._draining = False
        self._seen_before = False

    def on_serving(
        self, metrics: EngineMetrics, *, stream_interval: bool, counts_ids: bool = False, fleet: int = 0
    ) -> None:
        """The engine answers and lists the model; falling counters mean that it was restarted.

        `counts_ids`: as in ReplicaStatus. `fleet`: engines behind its address; 0 = it is one engine's.
        """
        self.stream_interval, self.counts_ids = stream_interval, counts_ids
        self.capacity = capacity_of(self._of_one, fleet or 1)
        fell = metrics.counters.prompt_tokens < self.metrics.counters.prompt_tokens
        if not self.boot_id or fell:
            self.restarts += self._seen_before
            self._seen_before = True
            self.boot_id = incarnation("external")
            self.warmup = metrics.counters
        self.record_scrape(metrics)
        detail = f"a fleet of {fleet} engine{'s' * (fleet > 1)}" if fleet else ""
        self.enter(ReplicaState.DRAINING if self._draining else ReplicaState.READY, detail)

    def on_failure(self, why: str) -> None:
        """The engine does not answer."""
        self.boot_id = ""
        self.enter(ReplicaState.FAILED, why)

    def on_unlisted(self) -> None:
        """The engine answers, but does not list the model any more."""
        self.boot_id = ""
        self.enter(ReplicaState.STOPPED, f"the engine at {self.url} does not list this model any more")

    async def measure(self, api: EngineApi, clock: Clock) -> None:
        """Measure the engine's speed for this model; it is stated instead of what is assumed from the next probe on."""
        capacity = await measured(api, self.plan.model_name, self.plan.capacity, clock)
        if capacity is not None:
            self._of_one = capacity

    async def command(self, action: str, deadline_s: float, level: int = 1) -> None:
        """Execute drain or resume. Raises Conflict for other actions."""
        if action not in ("drain", "resume"):
            raise Conflict(f"{self.plan.replica_id} is an external engine; it cannot be told to {action}")
        self._draining = action == "drain"
        if self.state in (ReplicaState.READY, ReplicaState.DRAINING):
            self.enter(ReplicaState.DRAINING if self._draining else ReplicaState.READY)

    async def shut_down(self, drain_s: float) -> None:
        """Enter STOPPED; the engine itself is left alone."""
        self.enter(ReplicaState.STOPPED, "the agent has stopped")


class ExternalSettings(msgspec.Struct, frozen=True):
    """What the operator states of external engines."""

    max_num_seqs: int = 256
    """Of one engine."""
    fleet: int = 0
    """Engines behind each address, where a router does not say how many there are; 0 = the address is one engine's."""
    context_len: int = 0
    """For models whose engine does not state it; 0 = ASSUMED_CONTEXT_LEN."""
    model: str = ""
    """The only model to serve; empty = all that are listed."""
    engines: int = 1
    """Number of external engines of this host."""


class ExternalEngine:
    """Probes one engine and keeps a replica for each model that it lists or has listed."""

    def __init__(
        self,
        api: EngineApi,
        settings: ExternalSettings,
        replica_id: Callable[[str], str],
        add: Callable[[Replica], None],
        clock: Clock,
    ) -> None:
        """`replica_id` returns the id for a model's name. `add` is given each new replica."""
        self._clock = clock
        self._measuring: asyncio.Task[None] | None = None
        self._measured: dict[str, str] = {}
        """By model: the incarnation of which `_counts` is known, and whose speed was measured."""
        self._counts: dict[str, StreamCounts] = {}
        """By model: a router may have an engine of another kind for each."""
        self._fleet = settings.fleet
        """Engines behind the address of a router; 0 = it is one engine's."""
        self._api = api
        self._settings = settings
        self._replica_id = replica_id
        self._add = add
        self._replicas: dict[str, ExternalReplica] = {}
        self._listed: frozenset[str] = frozenset()
        self._last_metrics = EngineMetrics()
        self._probes = 0
        self._tries: Counter[str] = Counter()
        """By model: how often it was asked for how it counts."""
        self._stream_interval = False
        """Whether the engine takes `stream_interval`, asked when it first answers and after each failure."""
        self._failure = ""

    async def run(self) -> None:
        """Probe once a second until cancelled, and measure each incarnation beside it."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self.probe()
                    self._failure = ""
                except PenstockError as error:
                    self._on_failure(error.message)
                if self._measuring is None or self._measuring.done():
                    replica = self._unmeasured()
                    self._measuring = tasks.create_task(self._measure(replica)) if replica else None
                await asyncio.sleep(PROBE_S)

    @property
    def _measurable(self) -> bool:
        """Whether a request measures without that a model is loaded for it: a fleet has loaded all that it lists."""
        return len(self._listed) == 1 or self._fleet > 0

    def _unmeasured(self) -> ExternalReplica | None:
        """The first replica of a model that is listed whose incarnation is not measured, those last that failed to be;
        None = all are."""
        if self._failure or not self._measurable:
            return None
        left = (
            self._replicas[name] for name in sorted(self._listed, key=lambda name: (self._tries[name], name))
        )
        return next((each for each in left if each.boot_id != self._measured.get(each.plan.model_name)), None)

    async def _measure(self, replica: ExternalReplica) -> None:
        """Learn how streams of a model are counted, and the speed of an only one. What fails is tried again."""
        boot_id, name = replica.boot_id, replica.plan.model_name
        self._tries[name] += 1
        try:
            self._counts[name] = await stream_counts(self._api, name)
        except EngineFailed as error:
            log.info("how %s counts a stream is not known: %s", replica.plan.replica_id, error.message)
            return
        self._measured[name] = boot_id
        if len(self._listed) == 1:
            await replica.measure(self._api, self._clock)

    async def probe(self) -> None:
        """Look at the engine once. Raises EngineFailed or InvalidRequest when it cannot serve."""
        status, _ = await self._api.get("/health")
        if status != 200 or self._failure or self._probes % LIST_EVERY == 0:
            self._take(await list_models(self._api))
        if self._failure or not self._probes:
            self._stream_interval = await self._api.takes_stream_interval()
            self._counts = {}
        if self._fleet or self._failure or not self._probes:
            self._fleet = await engines_behind(self._api) or self._settings.fleet
        self._probes += 1
        metrics = await self._metrics()
        for name, replica in self._replicas.items():
            if name in self._listed:
                counts = self._counts.get(name, StreamCounts())
                replica.on_serving(
                    metrics,
                    # Where events without counts had several tokens, a stream that ends early would be billed too
                    # little.
                    stream_interval=self._stream_interval and (counts.exact or not self._measurable),
                    counts_ids=counts.ids and not counts.usage,
                    fleet=self._fleet,
                )
            elif replica.state is not ReplicaState.STOPPED:
                replica.on_unlisted()

    async def _metrics(self) -> EngineMetrics:
        """The engine's metrics; the last ones when they cannot be read, since an engine need not have any.

        Of a fleet, only whether it is simulated: each scrape is another engine's.
        """
        with suppress(PenstockError):  # the probe has shown that the engine answers
            self._last_metrics = await self._api.metrics()
        if self._fleet:
            return EngineMetrics(simulated=self._last_metrics.simulated)
        return self._last_metrics

    def _take(self, models: list[ServedModel]) -> None:
        wanted = [model for model in models if self._settings.model in ("", model.name)]
        share = Fraction(1, self._settings.engines * max(1, len(wanted)))
        for model in wanted:
            if model.name not in self._replicas:
                plan = plan_external(
                    self._replica_id(model.name),
                    model.name,
                    max_num_seqs=self._settings.max_num_seqs,
                    context_len=model.context_len or self._settings.context_len or ASSUMED_CONTEXT_LEN,
                    share=share,
                )
                self._replicas[model.name] = ExternalReplica(plan, self._api.url)
                self._add(self._replicas[model.name])
        self._listed = frozenset(model.name for model in wanted)

    def _on_failure(self, why: str) -> None:
        if why != self._failure:
            log.warning("the external engine at %s: %s", self._api.url, why)
        self._failure = why
        for replica in self._replicas.values():
            replica.on_failure(why)


class ReplicaNames:
    """Names of an engine's replicas: host, model with `-` for characters of paths, number of the engine."""

    def __init__(self, host_id: str, engine: int) -> None:
        self._host_id = host_id
        self._engine = engine
        self._models: dict[str, str] = {}

    def __call__(self, model: str) -> str:
        """The replica id of a model; different models have different ones."""
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-") or "model"
        name, number = f"{self._host_id}/{slug}-{self._engine}", 1
        while self._models.setdefault(name, model) != model:
            number += 1
            name = f"{self._host_id}/{slug}.{number}-{self._engine}"
        return name


def external_engines(
    settings: Settings,
    urls: Sequence[str],
    session: aiohttp.ClientSession,
    key: str,
    host_id: str,
    found: Callable[[Replica], None],
    clock: Clock,
) -> list[tuple[str, ExternalEngine]]:
    """The external engines of a host by base URL; `found` takes the replicas that they add."""
    stated = ExternalSettings(
        max_num_seqs=settings.max_num_seqs,
        fleet=settings.engine_fleet,
        context_len=settings.context_len,
        model=settings.model,
        engines=len(urls),
    )
    return [
        (
            url,
            ExternalEngine(EngineApi(session, url, key), stated, ReplicaNames(host_id, number), found, clock),
        )
        for number, url in enumerate(urls)
    ]
