"""Pools and days for the comparison of scaling policies, and the simulation of one day."""

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
"""Load curves of the workloads with one model, by name."""
ANTIPHASE = "antiphase"
"""Name of the workload with two models on contracted hosts."""
FLASH = 0.6
"""Height of the flash crowd as a share of the daily peak."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pool and the load of its days."""

    workload: str
    days: Mapping[str, tuple[Day, Lengths]]
    specs: Mapping[str, ModelSpec]
    hosts: Sequence[HostObservation]
    homes: Sequence[tuple[str, str]]
    """Model and host of every replica that may exist."""
    rest: Rung
    """The rung on which replicas rest."""
    tables: dict[tuple[str, int], Sequence[Sequence[int]]] = field(default_factory=dict, compare=False)
    """Violation tables that the bound has computed for this scenario, by model and seed; kept because they are
    expensive.
    """

    @property
    def day_s(self) -> float:
        """Length of a day in seconds."""
        return next(iter(self.days.values()))[0].day_s

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return the requests of the day that belongs to `seed`."""
        return arrivals([(model, day, lengths) for model, (day, lengths) in self.days.items()], seed)

    def on(self, hosts: int) -> "Scenario":
        """Return the scenario with only the first `hosts` of its hosts."""
        kept = self.hosts[:hosts]
        names = {host.host_id for host in kept}
        return self._with(kept, [home for home in self.homes if home[1] in names])

    def parted(self, hosts: int) -> "Scenario":
        """Return the scenario with its first `hosts` hosts divided between the models, one fixed model per host."""
        models = list(self.specs)
        owner = {host.host_id: models[n % len(models)] for n, host in enumerate(self.hosts[:hosts])}
        return self._with(self.hosts[:hosts], [home for home in self.homes if owner.get(home[1]) == home[0]])

    def alone(self, model: str) -> "Scenario":
        """Return the scenario with one of its models only."""
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
    """Return a scenario of one model on its own hosts, which cost only while they are used."""
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
    """Return a scenario of two models with opposite days on contracted hosts, with one model awake per host at
    a time.

    `wake_s` is the wake time in seconds from sleep level 1, on which the replicas rest.
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
    """Simulate a day under a policy that begins with `start` replicas of each model, or with those of the first
    minutes.

    Requests that no replica has taken after `patience_s` seconds leave.
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
    """Return the replicas that the scaling laws require for the first minutes of the day."""
    day, lengths = scenario.days[model]
    rate = day.peak_rps * max(day.curve(place / 200.0) for place in range(5))
    spec = scenario.specs[model]
    load = Load(
        rate, lengths.prompt, lengths.prompt, lengths.output, lengths.prompt_cv**2, lengths.output_cv**2
    )
    return max(spec.min_awake, needed(load, spec.capacity, spec.targets, at_most=spec.max_awake))
