"""Placements with queues: published placements behind our queue, and ours behind theirs.

A queue decides when a request goes and which is next: the engine's own (everything is dispatched at once), first come
first served behind our gate, ours, or that of a published router. A placement decides where among the replicas that the
queue leaves open.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.core import policy, scalar_policy
from scheduler.core.config import PolicyConfig
from scheduler.core.pool import Pool
from scheduler.core.rules import AdmissionRules, SchedulerConfig, fifo
from scheduler.wire import PlaceRequest
from sim.pool.baselines.base import Baseline, Endpoint, Router
from sim.pool.baselines.cache_aware import CacheAware
from sim.pool.baselines.dynamo import Dynamo, QueuedDynamo
from sim.pool.baselines.llmd import FlowControl, Sticky
from sim.pool.contract import Decision, Dispatch, Refuse, ReplicaView, SimRequest
from sim.pool.penstock_routing import PenstockOptions, PenstockRouting
from sim.pool.settings import RoutingFactory, RoutingSetup
from workers.wire import KvDelta

OPEN = PolicyConfig(
    kv_fill=1e9, kv_reserve=0.0, itl_floor=1e9, backlog_cold_s=1e9, backlog_warm_s=1e9, slack_step=0.0
)
"""Placement without a gate: a replica takes requests until its slots are full, and its engine queues them."""
PLACEMENTS: Mapping[str, type[Baseline]] = {kind.name: kind for kind in (Sticky, Dynamo, CacheAware)}
"""Published placements that are put behind our queues."""
QUEUES: Mapping[str, Callable[[], SchedulerConfig]] = {
    "fifo": fifo,
    "ours": lambda: SchedulerConfig(admission=AdmissionRules(enabled=False)),
}
"""Queues that published placements are put behind."""
PUBLISHED_QUEUES: Mapping[str, type[Baseline]] = {kind.name: kind for kind in (QueuedDynamo, FlowControl)}
"""Published policies whose queues our placement is put behind."""


@dataclass(frozen=True, slots=True)
class Cross:
    """One cell of the factorial."""

    placement: str
    """Name of a published policy, or `ours`."""
    queue: str
    """`engine`, `fifo`, `ours`, or the name of a published policy with a queue."""
    policy: str
    """Name of the policy in the comparison."""


CROSSES = (
    Cross("ours", "engine", "ours+engine"),
    Cross("ours", "fifo", "fifo"),
    Cross("ours", "ours", "penstock"),
    *(Cross("ours", queue, f"ours+{queue}") for queue in PUBLISHED_QUEUES),
    *(
        Cross(name, queue, name if queue == "engine" else f"{name}+{queue}")
        for name in PLACEMENTS
        for queue in ("engine", *QUEUES)
    ),
    Cross("llmd_sticky", "llmd_flow", "llmd_flow"),
    Cross("dynamo", "dynamo_queue", "dynamo_queue"),
)
"""All cells. A published queue has its own placement and ours."""


def crossed() -> dict[str, RoutingFactory]:
    """Return the cells that are no policies by themselves, by name."""
    engine = SchedulerConfig(policy=OPEN, queue=fifo().queue, admission=AdmissionRules(enabled=False))
    made: dict[str, RoutingFactory] = {
        "ours+engine": lambda setup: PenstockRouting(setup, PenstockOptions(state=engine, name="ours+engine"))
    }
    for name, kind in PLACEMENTS.items():
        for queue, rules in QUEUES.items():
            made[f"{name}+{queue}"] = _factory(f"{name}+{queue}", kind, rules())
    for queue, kind in PUBLISHED_QUEUES.items():
        made[f"ours+{queue}"] = _behind(PenstockOptions(state=engine, name=f"ours+{queue}"), kind)
    return made


def _behind(options: PenstockOptions, kind: type[Baseline]) -> RoutingFactory:
    return lambda setup: PublishedQueue(setup, options, kind)


def _factory(name: str, kind: type[Baseline], rules: SchedulerConfig) -> RoutingFactory:
    options = PenstockOptions(exact=kind.wants_kv_events, state=rules, name=name, by_rank=False)
    return lambda setup: PublishedPlacement(setup, options, kind(setup.rng))


class WithPublished(PenstockRouting):
    """Our scheduler beside a published policy; both learn of all events."""

    def __init__(self, setup: RoutingSetup, options: PenstockOptions, published: Baseline) -> None:
        self._published = published
        self._asked: dict[int, tuple[SimRequest, int]] = {}
        """Unfinished requests, each with the API process that received it."""
        super().__init__(setup, options)

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Submit a request."""
        self._asked[request.key] = request, router
        super().arrive(request, router, now)

    def decide(self, now: float) -> list[Decision]:
        """Return the scheduler's decisions."""
        decisions = super().decide(now)
        for decision in decisions:
            if isinstance(decision, Refuse):
                self._asked.pop(decision.key, None)
        return decisions

    def first_token(self, key: int, replica_id: str, now: float) -> None:
        """Report the first token to both."""
        self._published.first_token(key, replica_id, now)
        super().first_token(key, replica_id, now)

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
        """End the placement in both."""
        for each in (self._published.finished, super().finished):
            each(
                key,
                replica_id,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                output_tokens=output_tokens,
                failed=failed,
                now=now,
            )
        if not failed:
            self._asked.pop(key, None)

    def router_lost(self, router: int, now: float) -> None:
        """Drop a dead API process's requests in both."""
        self._published.router_lost(router, now)
        super().router_lost(router, now)
        self._asked = {key: entry for key, entry in self._asked.items() if entry[1] != router}

    def metrics(self, views: Sequence[ReplicaView], now: float) -> None:
        """Pass a scrape to both."""
        self._published.metrics(views, now)
        super().metrics(views, now)

    def kv_events(self, delta: KvDelta, now: float) -> None:
        """Pass the engines' cache events to both."""
        self._published.kv_events(delta, now)
        super().kv_events(delta, now)


class PublishedPlacement(WithPublished):
    """Our scheduler with its queue and gate, where a published policy picks among the replicas that the gate opens."""

    def choose(
        self, request: PlaceRequest, pool: Pool, now: float, rng: policy.Rng
    ) -> policy.Choice | policy.Blocked:
        """Have the published policy pick one of the replicas that our filter leaves."""
        del rng
        able = {
            pool.replica(option.row).status.replica_id: option
            for option in scalar_policy.candidates(request, pool, pool.open_rows(now), now)
        }
        asked, source = self._asked[int(request.request_id)]
        router = self._published.router(source)
        endpoints = [each for each in router.candidates(asked) if each.replica_id in able]
        if not endpoints:
            return policy.blocked(request, pool, now)
        endpoint = self._published.choose(asked, endpoints, router, now)
        self._published.book(asked, source, endpoint, router, now)
        row, hits, ttft_s, cost_s = able[endpoint.replica_id]
        return policy.choice_of(request, pool, row, hits, ttft_s, cost_s)


class PublishedQueue(WithPublished):
    """The queue of a published policy, whose requests our placement puts on replicas without a gate of ours."""

    def __init__(self, setup: RoutingSetup, options: PenstockOptions, kind: type[Baseline]) -> None:
        super().__init__(setup, options, kind(setup.rng))
        self._published.choose = self._place  # type: ignore[method-assign]  # its queue, our placement
        self._made: list[Decision] = []

    def arrive(self, request: SimRequest, router: int, now: float) -> None:
        """Put a request into the published queue."""
        self._asked[request.key] = request, router
        self._published.arrive(request, router, now)

    def decide(self, now: float) -> list[Decision]:
        """Return what the published queue refuses, and our placements of what it lets go."""
        refused = [each for each in self._published.decide(now) if isinstance(each, Refuse)]
        for each in refused:
            self._asked.pop(each.key, None)
        self._collect(now)
        made, self._made = self._made, []
        return [*refused, *made]

    def _place(
        self, request: SimRequest, candidates: Sequence[Endpoint], router: Router, now: float
    ) -> Endpoint:
        """The replica of our placement. While all slots of the engines are taken our scheduler keeps the request, and
        the first candidate stands for the replica until one is free."""
        _, source = self._asked[request.key]
        PenstockRouting.arrive(self, request, source, now)
        replica_id = self._collect(now).get(request.key, "")
        return router.endpoints.get(replica_id, candidates[0])

    def _collect(self, now: float) -> dict[int, str]:
        """Take our scheduler's decisions, and book them in the published policy; returns replicas by request."""
        placed = {}
        for decision in super().decide(now):
            self._made.append(decision)
            if isinstance(decision, Dispatch):
                placed[decision.key] = decision.replica_id
                asked, source = self._asked[decision.key]
                router = self._published.router(source)
                if endpoint := router.endpoints.get(decision.replica_id):
                    self._published.book(asked, source, endpoint, router, now)
        return placed
