"""Scenarios of processes that fail, hang, start and leave."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from scheduler.core.autoscale.retire import retire_order
from scheduler.core.autoscale.state import CacheValue, ReplicaObservation, Rung
from sim.pool.contract import SimRequest
from sim.pool.control import ActionKind, PoolAction, PoolView
from sim.pool.faults import Kill, KillApiProcess, RestartScheduler, Slow
from sim.pool.penstock_routing import PenstockRouting
from sim.pool.registry import Policy
from sim.pool.scenarios.figures import arrived, hit_rate, in_time, of_tenant, shares, ttft
from sim.pool.scenarios.scenario import Finding, RunOutcome, Scenario, Setup, at_least, at_most, on_cluster
from sim.pool.scenarios.shipped import NEWEST_FIRST
from sim.pool.scenarios.traffic import BLOCK, CAPACITY, make_request, merged, poisson, pool, rng_of
from sim.pool.settings import RunConfig
from workers.wire import ReplicaState

# One replica hangs

_HANGS_S, _KILLED_S = 20.0, 35.0


def _hang(seed: int) -> Setup:
    rng = rng_of("dead-backend", seed)
    requests = [
        make_request(at, f"t{number % 6}", rng.randrange(600, 2_400), rng.randrange(40, 160), number)
        for number, at in enumerate(poisson(rng, 8.0, 0.0, 60.0))
    ]
    faults = (Slow(_HANGS_S, "r1", 0.0, 1e6),)
    config = RunConfig(seed=seed, faults=faults, hang_limit_s=_KILLED_S - _HANGS_S)
    return Setup(pool(4, cold_start_s=60.0), merged(requests), config)


def _hang_check(ran: RunOutcome) -> list[Finding]:
    during = arrived(ran.result.records, _HANGS_S, _KILLED_S)
    late = sum(record.ttft_s > 3.0 for record in during)
    return [
        at_most("without an answer", ran.unanswered, 0),
        at_most("arrivals while it hangs that wait for it or behind it", late / len(during), 0.2, "%"),
        at_most(
            "TTFT p99 once its agent has killed it",
            ttft(arrived(ran.result.records, 37.0, 60.0), 0.99),
            2.0,
            "s",
        ),
    ]


# The scheduler restarts under load


def _busy(name: str, seed: int, rate: float, seconds: float) -> list[SimRequest]:
    rng = rng_of(name, seed)
    return [
        make_request(at, f"t{number % 6}", 2_048 + rng.randrange(100, 1_200), rng.randrange(40, 260), number,
            shared="system prompt", shared_tokens=2_048)
        for number, at in enumerate(poisson(rng, rate, 0.0, seconds))
    ]  # fmt: skip


def _restart(seed: int) -> Setup:
    rng = rng_of("scheduler-restart burst", seed)
    burst = [
        make_request(9.5 + rng.uniform(0.0, 0.4), "burst", rng.randrange(1_500, 2_500), 60, n)
        for n in range(60)
    ]
    requests = _busy("scheduler-restart", seed, 14.0, 40.0)
    faults = (RestartScheduler(10.0, 1.0), RestartScheduler(30.0, 0.5))
    return Setup(pool(4), merged(requests, burst), RunConfig(seed=seed, faults=faults, drain_s=60.0))


def _restart_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    quiet = arrived(records, 0.0, 9.0) + arrived(records, 16.0, 29.0) + arrived(records, 31.0, 40.0)
    return [
        at_most("requests lost", ran.unanswered, 0),
        at_most("still on the books when all is over", _left_over(ran), 0),
        at_least("in time, without the burst and the two absences", in_time(quiet), 0.95, "%"),
        at_most("TTFT p99, all of them", ttft(records, 0.99), 10.0, "s"),
    ]


def _left_over(ran: RunOutcome) -> int:
    """Return how many requests the scheduler or one of its clients still holds after the last request has ended."""
    return ran.routing.open_requests() if isinstance(ran.routing, PenstockRouting) else 0


# An API process dies


def _api_dies(seed: int) -> Setup:
    requests = _busy("api-process-dies", seed, 14.0, 30.0)
    return Setup(
        pool(4), merged(requests), RunConfig(seed=seed, faults=(KillApiProcess(12.0, 1),), drain_s=60.0)
    )


def _api_dies_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    others = [record for record in records if record.router != 1 or record.request.at >= 12.0]
    return [
        at_most(
            "requests of the other processes without an answer",
            sum(each.finished_at < 0 for each in others),
            0,
        ),
        at_most("still on the books when all is over", _left_over(ran), 0),
        at_least("arrivals afterwards in time", in_time(arrived(records, 12.5, 30.0)), 0.97, "%"),
    ]


# Cold starts under load

_OUT_S, _WARM_S = 15.0, 27.0


def _cold(seed: int) -> Setup:
    rng = rng_of("cold-start-under-load", seed)
    requests = [
        make_request(at, f"t{number % 6}", rng.randrange(1_000, 3_000), rng.randrange(60, 240), number)
        for number, at in enumerate(poisson(rng, 5.0, 0.0, 60.0))
    ]
    faults = tuple(Kill(_OUT_S, f"r{number}") for number in (1, 2, 3))
    replicas = pool(4, cold_start_s=_WARM_S - _OUT_S)
    return Setup(replicas, merged(requests), RunConfig(seed=seed, faults=faults))


def _cold_check(ran: RunOutcome) -> list[Finding]:
    records = ran.result.records
    waited, after = arrived(records, _WARM_S - 6.0, _WARM_S), arrived(records, _WARM_S + 4.0, 60.0)
    return [
        at_most("without an answer", ran.unanswered, 0),
        at_most("TTFT p50 of those that came in the 6 s before the others were back", ttft(waited, 0.5), 10.0, "s"),
        at_most("arrivals in the next 4 s on one of 4 replicas",
                shares(arrived(records, _WARM_S + 0.8, _WARM_S + 4.8), 4)[0], 0.6, "%"),
        at_least("later arrivals in time", in_time(after), 0.97, "%"),
    ]  # fmt: skip


# Scale-down and the hot cache

_RETIRES_S = 60.0
_HOT_S = 26.0
Order = Callable[[Sequence[ReplicaObservation]], list[ReplicaObservation]]


class Retires:
    """A controller that wakes the last replica at 20 s and retires the first of `order` at 60 s."""

    every_s = 2.0

    def __init__(self, order: Order) -> None:
        self._order = order
        self._since: dict[str, float] = {}

    def observe(self, view: PoolView, now: float) -> Sequence[PoolAction]:
        """Wake and retire replicas at their times."""
        asleep = [each.replica_id for each in view.replicas if each.state is ReplicaState.ASLEEP]
        if now < _RETIRES_S:
            if asleep and now >= 20.0:
                self._since[asleep[0]] = now
                return [PoolAction(ActionKind.WAKE, asleep[0])]
            return []
        if asleep:
            return []
        seen = [
            ReplicaObservation(
                each.replica_id, each.model, each.replica_id, Rung.AWAKE, now - self._since.get(each.replica_id, 0.0),
                0.0, each.state is ReplicaState.DRAINING, each.running, 0, each.kv_usage,
                _cache(view.cached_blocks.get(each.replica_id, 0)),
            )
            for each in view.replicas
        ]  # fmt: skip
        if any(each.draining for each in seen):
            return []
        return [PoolAction(ActionKind.SLEEP, self._order(seen)[0].replica_id)]


def _cache(blocks: int) -> CacheValue:
    """Return the value of reused blocks, each assumed to have been hit once in the last ten minutes."""
    return CacheValue(blocks * BLOCK / 600.0)


def _newest(replicas: Sequence[ReplicaObservation]) -> list[ReplicaObservation]:
    return sorted(replicas, key=lambda each: each.since_s)


def _cheapest(replicas: Sequence[ReplicaObservation]) -> list[ReplicaObservation]:
    return retire_order(replicas, CAPACITY)


def _scale_down(seed: int) -> Setup:
    rng = rng_of("scale-down-hot-cache", seed)
    background = [
        make_request(
            rng.uniform(0.0, 18.0),
            f"t{number % 9}",
            rng.randrange(300, 600),
            rng.randrange(1_500, 2_000),
            number,
        )
        for number in range(44)
    ]
    begins = [_HOT_S + 2.0 * document for document in range(10)]
    hot = [_document(at, document, "first") for document, at in enumerate(begins)]
    for number, at in enumerate(poisson(rng, 1.5, _HOT_S + 4.0, 100.0)):
        known = sum(begun < at - 3.0 for begun in begins)
        hot.append(_document(at, rng.randrange(max(1, known)), number))
    first, second, third = pool(3)
    replicas = [first, second, replace(third, state=ReplicaState.ASLEEP)]
    return Setup(replicas, merged(background, hot), RunConfig(seed=seed))


def _document(at: float, document: int, own: str | int) -> SimRequest:
    name = f"document {document}"
    return make_request(at, "hot", 8_292, 40, f"{document} {own}", shared=name, shared_tokens=8_192)


def _scale_down_play(setup: Setup, policy: Policy) -> RunOutcome:
    order = _newest if policy.name == NEWEST_FIRST else _cheapest
    return on_cluster(replace(setup, config=replace(setup.config, controller=Retires(order))), policy)


def _scale_down_check(ran: RunOutcome) -> list[Finding]:
    hot = of_tenant(ran.result.records, "hot")
    after = arrived(hot, _RETIRES_S + 2.0, _RETIRES_S + 22.0)
    return [
        at_most("without an answer", ran.unanswered, 0),
        at_least("prompt tokens from cache in the 20 s after", hit_rate(after), 0.85, "%"),
        at_most("TTFT p90 in these 20 s", ttft(after, 0.9), 1.0, "s"),
    ]


FAILURES = (
    Scenario(
        "dead-backend",
        "vllm-project/production-stack #749",
        "A backend stopped answering, and for want of time limits the router hung with it, for all backends. Here one "
        "of four replicas stands still for 15 s before its agent kills it, metrics showing its last good state.",
        _hang,
        _hang_check,
        ("round_robin",),
    ),
    Scenario(
        "scale-down-hot-cache",
        "llm-d/llm-d-autoscaling #163",
        "Scale-down decided a number and left the choice to Kubernetes, which removes the newest pod, hot cache or "
        "not. Here a replica that joined during a busy time has all the documents that are asked for now, and one of "
        "three has to go; ours takes the one whose cache saves least.",
        _scale_down,
        _scale_down_check,
        (NEWEST_FIRST,),
        _scale_down_play,
    ),
    Scenario(
        "scheduler-restart",
        "ours",
        "The scheduler dies with a burst in its queue and is back after a second, and dies once more in quiet. Clients "
        "announce what they hold and wait for; nothing may be lost, counted twice or left over.",
        _restart,
        _restart_check,
        ("amnesiac",),
    ),
    Scenario(
        "api-process-dies",
        "ours",
        "One of three API processes dies with all its requests. The load it had placed has to be given back, or the "
        "replicas look busy for ever.",
        _api_dies,
        _api_dies_check,
        ("keeps_the_dead",),
    ),
    Scenario(
        "cold-start-under-load",
        "ours",
        "Three of four replicas die at once and are back, empty, after 12 s of more than one can do. A router "
        "that dispatches at once buries the survivor, and what waits in its engine cannot move when the others are "
        "back.",
        _cold,
        _cold_check,
        ("least_request", "llmd_sticky"),
    ),
)
