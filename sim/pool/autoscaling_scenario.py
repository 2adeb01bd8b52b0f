"""Pools and their days for the comparison of scaling policies, and how a day is played."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from scheduler.core.autoscale.capacity import Load, needed
from scheduler.core.autoscale.state import HostObservation, ModelSpec, Rung, RungFigures
from sim.pool.autoscaling_load import Arrival, Curve, Day, Lengths, arrivals, diurnal, evening, office
from sim.pool.autoscaling_pool import DayPool, PoolReplica, Scaler
from sim.pool.autoscaling_replica import FluidReplica
from sim.pool.autoscaling_result import DayResult

CURVES: dict[str, Curve] = {"diurnal": diurnal, "office": office, "flash": diurnal}
"""Days of one model."""
ANTIPHASE = "antiphase"
"""The day of two models on contracted hosts."""
FLASH = 0.6
"""Height of the flash crowd in shares of the daily peak."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and its days."""

    workload: str
    days: Mapping[str, tuple[Day, Lengths]]
    specs: Mapping[str, ModelSpec]
    hosts: Sequence[HostObservation]
    homes: Sequence[tuple[str, str]]
    """(model, host) of every replica that there may be."""
    rest: Rung
    """Where replicas rest."""
    tables: dict[tuple[str, int], Sequence[Sequence[int]]] = field(default_factory=dict, compare=False)
    """What the bound has found out about the days of this scenario, by model and seed: costly, so kept."""

    @property
    def day_s(self) -> float:
        """Length of a day."""
        return next(iter(self.days.values()))[0].day_s

    def arrivals(self, seed: int) -> list[Arrival]:
        """The requests of a day."""
        return arrivals([(model, day, lengths) for model, (day, lengths) in self.days.items()], seed)

    def on(self, hosts: int) -> "Scenario":
        """The same with only the first `hosts` of its hosts."""
        kept = self.hosts[:hosts]
        names = {host.host_id for host in kept}
        return self._with(kept, [home for home in self.homes if home[1] in names])

    def parted(self, hosts: int) -> "Scenario":
        """The first `hosts` of its hosts dealt out to the models: each host has one, and no other ever."""
        models = list(self.specs)
        owner = {host.host_id: models[n % len(models)] for n, host in enumerate(self.hosts[:hosts])}
        return self._with(self.hosts[:hosts], [home for home in self.homes if owner.get(home[1]) == home[0]])

    def alone(self, model: str) -> "Scenario":
        """The same with one of its models only."""
        homes = [home for home in self.homes if home[0] == model]
        kept = self._with(self.hosts, homes)
        return replace(kept, specs={model: kept.specs[model]}, days={model: self.days[model]})

    def _with(self, hosts: Sequence[HostObservation], homes: Sequence[tuple[str, str]]) -> "Scenario":
        places = {model: sum(home[0] == model for home in homes) for model in self.specs}
        specs = {
            model: msgspec.structs.replace(spec, max_awake=places[model])
            for model, spec in self.specs.items()
        }
        return replace(self, specs=specs, hosts=hosts, homes=homes)


def single_model(
    workload: str,
    spec: ModelSpec,
    *,
    day_s: float,
    peak_rps: float,
    lengths: Lengths,
    replicas: int,
    wake_s: float,
) -> Scenario:
    """One model on hosts of its own that cost only while they are used."""
    ladder = {Rung.STOPPED: RungFigures(wake_s)}
    gpus = max(1, spec.capacity.gpus)
    mine = ModelSpec(spec.model, spec.capacity, spec.targets, ladder, 1, replicas)
    day = Day(CURVES[workload], peak_rps, day_s, flash=FLASH if workload == "flash" else 0.0)
    hosts = [
        HostObservation(f"host-{n:02}", gpus, 0.0, contracted=False, usd_per_hour=1.0)
        for n in range(replicas)
    ]
    homes = [(spec.model, host.host_id) for host in hosts]
    return Scenario(workload, {spec.model: (day, lengths)}, {spec.model: mine}, hosts, homes, Rung.STOPPED)


def two_models(
    first: ModelSpec, second: ModelSpec, *, day_s: float, peak_rps: tuple[float, float], lengths: Lengths,
    hosts: int, wake_s: float,
) -> Scenario:  # fmt: skip
    """Two models with opposite days on contracted hosts: each host has both, one set awake at a time.

    `wake_s` is that of sleep level 1, on which they rest.
    """
    ladder = {Rung.SLEEP_1: RungFigures(wake_s, 1.0), Rung.STOPPED: RungFigures(wake_s)}
    gpus = max(first.capacity.gpus, second.capacity.gpus)
    seen = [HostObservation(f"host-{n:02}", gpus, 1e6, contracted=True) for n in range(hosts)]
    days = {
        first.model: (Day(office, peak_rps[0], day_s), lengths),
        second.model: (Day(evening, peak_rps[1], day_s), lengths),
    }
    specs: dict[str, ModelSpec] = {}
    homes: list[tuple[str, str]] = []
    for spec in (first, second):
        per_host = gpus // spec.capacity.gpus
        specs[spec.model] = ModelSpec(spec.model, spec.capacity, spec.targets, ladder, 1, hosts * per_host)
        homes += [(spec.model, host.host_id) for host in seen for _ in range(per_host)]
    return Scenario(ANTIPHASE, days, specs, seen, homes, Rung.SLEEP_1)


def play(
    scenario: Scenario,
    scaler: Scaler,
    day: Sequence[Arrival],
    *,
    start: int | None = None,
    patience_s: float = math.inf,
) -> DayResult:
    """A day under a policy, which begins with `start` replicas of each model, or with what the first minutes need.

    Requests that no replica has taken after `patience_s` leave.
    """
    begin = {model: first_need(scenario, model) if start is None else start for model in scenario.specs}
    free = {host.host_id: host.gpus for host in scenario.hosts}
    slots: list[PoolReplica] = []
    awake: dict[str, int] = {}
    for number, (model, host_id) in enumerate(scenario.homes):
        spec = scenario.specs[model]
        up = awake.get(model, 0) < begin[model] and free[host_id] >= spec.capacity.gpus
        if up:
            awake[model] = awake.get(model, 0) + 1
            free[host_id] -= spec.capacity.gpus
        rung = Rung.AWAKE if up else scenario.rest
        slots.append(
            PoolReplica(f"{host_id}/{model}-{number}", spec, host_id, rung, FluidReplica(spec.capacity))
        )
    return DayPool(slots, scenario.hosts, scaler, scenario.day_s, patience_s=patience_s).play(day)


def first_need(scenario: Scenario, model: str) -> int:
    """Replicas that the first minutes of the day need, by the laws."""
    day, lengths = scenario.days[model]
    rate = day.peak_rps * max(day.curve(place / 200.0) for place in range(5))
    spec = scenario.specs[model]
    load = Load(
        rate, lengths.prompt, lengths.prompt, lengths.output, lengths.prompt_cv**2, lengths.output_cv**2
    )
    return max(spec.min_awake, needed(load, spec.capacity, spec.targets, at_most=spec.max_awake))
