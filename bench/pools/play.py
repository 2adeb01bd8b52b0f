"""Plays days with hosts from a provider, and the same days in the autoscaler's own simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.pools.day import CloudPool, HostKind, Seen
from core.errors import InvalidRequest
from core.money import PICO_PER_USD, usd_to_pico
from scheduler.autoscaling import SPOT
from scheduler.core.autoscale.state import HostOption, ModelSpec, Rung, RungFigures
from sim.pool.autoscaling_load import Lengths
from sim.pool.autoscaling_policies import PenstockScaler
from sim.pool.autoscaling_result import DayResult
from sim.pool.autoscaling_scenario import Scenario, first_need, play, single_model
from workers.catalog import Catalog, load_catalog

LENGTHS = Lengths(prompt=9000.0, output=500.0)
REPLICAS = 14
"""Most replicas."""


@dataclass(frozen=True, slots=True)
class Day:
    """One day, played twice."""

    workload: str
    requests: int
    gpus_per_host: int
    usd_per_hour: float
    acted: DayResult
    """With hosts from the provider."""
    seen: Seen
    simulated: DayResult
    """By `penstock sim autoscale`: a replica costs from the start of its wake to the end of its drain."""

    @property
    def gpu_hours(self) -> float:
        """GPU hours of the provider's hosts in the day."""
        return self.seen.host_s * self.gpus_per_host / 3600.0

    @property
    def simulated_gpu_hours(self) -> float:
        """GPU hours of the same day in the simulation."""
        return self.simulated.gpu_s / 3600.0


@dataclass(frozen=True, slots=True)
class Days:
    """All days with what they were played with."""

    model: str
    kind: HostKind
    day_s: float
    peak_rps: float
    days: Sequence[Day]


def days_of(
    name: str, workloads: Sequence[str], *, day_s: float, peak_rps: float, seed: int,
    on_progress: Callable[[str], None] = lambda words: None,
) -> Days:  # fmt: skip
    """Play days of one model. Raises InvalidRequest for a model or workload that does not exist, or that has no host
    with a price."""
    catalog = load_catalog()
    model, _, profile = name.partition(":")
    kind = _kind(catalog, model, profile)
    found = []
    for workload in workloads:
        scenario = _scenario(catalog, model, profile, workload, kind, day_s, peak_rps)
        arrivals = scenario.arrivals(seed)
        spec = _with_hosts(scenario.specs[model], kind)
        on_progress(f"{workload}: hosts from the provider")
        pool = CloudPool(
            spec,
            kind,
            PenstockScaler({model: spec}),
            scenario.day_s,
            -(-first_need(scenario, model) // kind.per_host),
        )
        acted = pool.play(arrivals)
        seen = pool.finish()
        on_progress(f"{workload}: the autoscaler's simulation")
        simulated = play(scenario, PenstockScaler(scenario.specs), arrivals)
        gpus = spec.capacity.gpus * kind.per_host
        usd = kind.usd_pico_per_hour / PICO_PER_USD
        found.append(Day(workload, len(arrivals), gpus, usd, acted, seen, simulated))
    return Days(name, kind, day_s, peak_rps, found)


def _kind(catalog: Catalog, model: str, profile: str) -> HostKind:
    """The kind of host like that of the profile that is paid by the hour, a spot one where there is any."""
    chosen, ladder = catalog.model(model).profile(profile), catalog.ladder
    if ladder is None:
        raise InvalidRequest("the catalog has no [ladder]")
    own = catalog.hosts[chosen.host_kind]
    for slug, host in sorted(catalog.hosts.items(), key=lambda row: (not row[0].endswith(SPOT), row[0])):
        alike = (host.gpu, host.gpus) == (own.gpu, own.gpus)
        if alike and host.price is not None and not host.own:
            usd_pico = usd_to_pico(host.price.usd_per_hour)
            return HostKind(
                slug, usd_pico, chosen.instances, ladder.create_s.value, ladder.stopped_wake_s.value
            )
    raise InvalidRequest(f"no host with {own.gpus} {own.gpu} is paid by the hour, which {model} needs")


def _scenario(
    catalog: Catalog, model: str, profile: str, workload: str, kind: HostKind, day_s: float, peak_rps: float
) -> Scenario:
    known = catalog.model(model)
    spec = ModelSpec(model, known.profile(profile).capacity, known.service_level, {})
    return single_model(
        workload, spec, day_s=day_s, peak_rps=peak_rps, lengths=LENGTHS, replicas=REPLICAS,
        wake_s=kind.create_s + kind.load_s,
    )  # fmt: skip


def _with_hosts(spec: ModelSpec, kind: HostKind) -> ModelSpec:
    """The model as the scheduler knows it where hosts of a kind may be created for it."""
    ladder = {
        Rung.STOPPED: RungFigures(kind.load_s),
        Rung.DESTROYED: RungFigures(kind.create_s + kind.load_s),
    }
    option = HostOption(kind.slug, kind.usd_pico_per_hour / PICO_PER_USD, kind.per_host)
    return ModelSpec(
        spec.model, spec.capacity, spec.targets, ladder, spec.min_awake, spec.max_awake, kinds=(option,)
    )
