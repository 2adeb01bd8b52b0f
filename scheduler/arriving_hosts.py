"""When hosts that providers are creating will serve their models, by the stages that earlier hosts took. Pure.

A host is created, its agent joins, its checks let it serve, and its engine loads. The first three are learnt from the
intents of earlier hosts of its kind, which PostgreSQL keeps, and the load from the model's replicas. Until hosts of a
kind have joined, the catalog's time counts from the request to the start of the engine.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from statistics import fmean

from scheduler.core.waking import LONG_LOAD, MIN_LEFT_S, Arrival, Figures
from scheduler.provider_hosts import ProviderHosts
from workers.providers.intents import Intent
from workers.wire import SIMULATED_HOST, ReplicaStatus

LEARNT_FROM = 8
"""The latest hosts of a kind whose stages are averaged."""
_ENDS = ("running_at", "joined_at", "first_fit_at")
"""Ends of the stages before the load, in order; the first begins with the call of create."""
_NEEDED = ("running_at", "joined_at")
"""Stages without which nothing was learnt; a host without GPUs has no checks."""


class ArrivingHosts:
    """What is known of hosts in creation, and of the loads on them."""

    def __init__(
        self,
        figures: Figures,
        create_s: float | None,
        gpu_of: Callable[[str], str],
        takes_adapters: Callable[[str], bool] = lambda model: False,
    ) -> None:
        """`figures` give the load of a model that was never measured, and `create_s` the seconds from a request to the
        start of the engine, until hosts have shown it. `gpu_of` gives the GPU of a kind of hosts. `takes_adapters`
        holds for a model until a replica of it is known.
        """
        self._figures, self._create_s, self._gpu_of = figures, create_s, gpu_of
        self._takes_adapters = takes_adapters
        self._loads: dict[str, float] = {}
        """By model: the measured seconds of a load, the download of the weights included."""
        self._adapters: dict[str, bool] = {}
        """By model: whether engines of its latest known replicas take adapters."""

    def learn(self, replicas: Iterable[ReplicaStatus]) -> None:
        """Take the measured times of replicas; those of a model that has none any more stay."""
        found: dict[str, list[float]] = {}
        adapters: dict[str, bool] = {}
        for status in replicas:
            adapters[status.model] = adapters.get(status.model, False) or status.max_adapters > 0
            if status.times.load.count:
                found.setdefault(status.model, []).append(
                    status.times.load.mean_s + status.times.prefetch.mean_s
                )
        self._loads |= {model: fmean(seconds) for model, seconds in found.items()}
        self._adapters |= adapters

    def arrivals(
        self, known: ProviderHosts, elapsed_s: float, reported: Set[str], now: float
    ) -> dict[str, list[Arrival]]:
        """The hosts in creation by model, each with the instant from which it serves; `now` is in monotonic seconds.

        `known` was read `elapsed_s` seconds ago. Hosts in `reported`, whose agents report replicas, are left out: those
        replicas say more. So is one whose checks refuse it, or that has taken LONG_LOAD times what was expected.
        """
        stages = _learnt(known.intents)
        coming = {host.host_id for host in known.creating(())}
        found: dict[str, list[Arrival]] = {}
        for one in known.wanted:
            ours = one.name in coming and one.refused_since is None
            if not ours or {one.name, SIMULATED_HOST + one.name} & reported:
                continue
            for model in one.models:
                load_s = self._load_s(model)
                if load_s is None:
                    continue
                left = _left_s(one, known.at, elapsed_s, stages.get(one.kind), load_s, self._create_s)
                if left is not None:
                    takes = self._adapters.get(model, self._takes_adapters(model))
                    arrival = Arrival(now + left, one.region, self._gpu_of(one.kind), takes)
                    found.setdefault(model, []).append(arrival)
        return found

    def created_in_s(self, known: ProviderHosts, model: str, kind: str) -> float | None:
        """Seconds from the request of a host of a kind until it serves a model; None = nothing is known."""
        stages, load_s = _learnt(known.intents).get(kind), self._load_s(model)
        before_s = self._create_s if stages is None else sum(stages.values())
        return None if before_s is None or load_s is None else before_s + load_s

    def _load_s(self, model: str) -> float | None:
        return self._loads.get(model, self._figures(model, 0))


def _learnt(intents: Iterable[Intent]) -> dict[str, dict[str, float]]:
    """By kind of host: mean seconds of each stage of its latest hosts; kinds of which no host has joined are absent."""
    spans: dict[str, dict[str, list[float]]] = {}
    for one in intents:
        for stage, seconds in _spans(one):
            spans.setdefault(one.kind, {}).setdefault(stage, []).append(seconds)
    return {
        kind: {stage: fmean(seconds[-LEARNT_FROM:]) for stage, seconds in found.items()}
        for kind, found in spans.items()
        if all(stage in found for stage in _NEEDED)
    }


def _spans(intent: Intent) -> Iterable[tuple[str, float]]:
    """The seconds of the stages that an intent has been through, by the instant that ended each."""
    began = intent.called_at
    for stage in _ENDS:
        ended: datetime | None = getattr(intent, stage)
        if began is None or ended is None:
            return
        yield stage, max(0.0, (ended - began).total_seconds())
        began = ended


def _left_s(
    intent: Intent,
    at: datetime,
    elapsed_s: float,
    stages: Mapping[str, float] | None,
    load_s: float,
    create_s: float | None,
) -> float | None:
    spent_s = (at - (intent.called_at or intent.requested_at)).total_seconds() + elapsed_s
    if stages is None:
        if create_s is None or spent_s > LONG_LOAD * (create_s + load_s):
            return None
        return max(MIN_LEFT_S, create_s - spent_s) + load_s
    if spent_s > LONG_LOAD * (sum(stages.values()) + load_s):
        return None
    done = list(_spans(intent))
    in_stage_s = max(0.0, spent_s - sum(seconds for _, seconds in done))
    left = [seconds for stage in _ENDS[len(done) :] if (seconds := stages.get(stage, 0.0))] + [load_s]
    return max(MIN_LEFT_S, left[0] - in_stage_s) + sum(left[1:])
