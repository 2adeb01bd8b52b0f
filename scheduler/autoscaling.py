"""The autoscaler beside the live scheduler: counts demand, observes the fleet, and computes a plan.

LivePlanner listens to requests, and the service calls `plan` every PLAN_INTERVAL_S seconds. plan_actor.py acts on it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from core.errors import InvalidRequest
from core.money import PICO_PER_USD
from scheduler.core.autoscale.autoscaler import Autoscaler
from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.plan import view
from scheduler.core.autoscale.state import (
    Binding,
    CacheValue,
    CreatingHost,
    CreationFailures,
    DemandObservation,
    HostObservation,
    HostOption,
    ModelSpec,
    Observation,
    PlaceLimits,
    ReplicaObservation,
    Rung,
    RungFigures,
    RunSlot,
)
from scheduler.core.placement import ActivePlacement
from scheduler.core.replica import Replica
from scheduler.demand_counts import DemandCounts, KnownPlaces
from scheduler.held_replicas import HeldReplicas
from scheduler.listeners import Listener
from scheduler.wire import BoundTo, HostView, PlaceRequest, PlanView, QueueView, Released
from workers.acting.contracts import Contracts, HostContract, covering
from workers.acting.places import Places
from workers.added_models import with_added
from workers.catalog import Catalog, CatalogModel, EngineProfile
from workers.host_fit import profile_on, replicas_on, shared_on
from workers.host_models import is_shared
from workers.scaling import NO_LIMITS, AnswerPrice, ScalingDirectory, ScalingLimits
from workers.wire import Capacity, LifeTimes, ReplicaState, ReplicaStatus, StageTime, Targets

PLAN_INTERVAL_S = 2.0
"""Seconds between two observations."""
HIT_RATE_WEIGHT = 0.02
"""Weight of one observation in a replica's hit rate, which covers about the last minutes."""
LEARNT = (
    "prefill_tokens_per_s", "prefill_pair_s", "step_base_s", "step_experts_s", "step_per_seq_s", "request_s",
    "accept_per_step",
)  # fmt: skip
"""Figures of a capacity that are learnt (`capacity_estimate`, `acceptance`)."""
MOVED = 0.15
"""Relative change of a learnt figure from which the plan takes it."""
NO_TIMES = LifeTimes()
"""Nothing was measured yet."""
NOWHERE = Places()
NONE_BOUND: Mapping[str, Mapping[BoundTo, int]] = {}
SPOT = "-spot"
"""Ends the kinds of hosts that their provider may take back."""
_UP = frozenset({ReplicaState.READY, ReplicaState.LOADING})


def model_spec(
    catalog: Catalog,
    model: CatalogModel,
    capacity: Capacity,
    targets: Targets,
    limits: ScalingLimits,
    kinds: tuple[HostOption, ...],
    times: LifeTimes = NO_TIMES,
    booked: AnswerPrice | None = None,
) -> ModelSpec:
    """A model's specification for the autoscaler, with the ladder's figures of the catalog or as measured (`times`).

    The revenue of an answer is its list price at 1,000 prompt and 300 output tokens, by the books (`booked`), else by
    the catalog; it only ranks models. One without a price comes last.
    """
    price = model.list_price
    usd = 0.0 if price is None else (1000.0 * float(price.input) + 300.0 * float(price.output)) / 1e6
    if booked is not None:
        usd = (1000 * booked.input + 300 * booked.output) / PICO_PER_USD
    budget = limits.budget_usd_pico_per_hour
    return ModelSpec(
        model.name,
        capacity,
        targets,
        ladder_of(catalog, model, times),
        limits.min_awake,
        limits.max_awake,
        usd,
        math.inf if budget is None else budget / PICO_PER_USD,
        kinds,
        times.drain.mean_s,
        place_limits(limits),
    )


def place_limits(limits: ScalingLimits) -> tuple[PlaceLimits, ...]:
    """The limits of single regions and kinds of hosts."""
    regions = [PlaceLimits(Binding((row.region,)), row.min_awake, row.max_awake) for row in limits.regions]
    kinds = [PlaceLimits(Binding(kinds=(row.kind,)), row.min_awake, row.max_awake) for row in limits.kinds]
    return (*regions, *kinds)


def ladder_of(catalog: Catalog, model: CatalogModel, times: LifeTimes = NO_TIMES) -> dict[Rung, RungFigures]:
    """The rungs below awake with figures in the catalog. Sleep rungs need the engine's sleep mode.

    A time to wake that replicas have measured replaces the catalog's.
    """
    figures = catalog.ladder
    if figures is None:
        return {Rung.STOPPED: RungFigures(_known(times.load, 0.0))}
    cold_s = _known(times.load, figures.stopped_wake_s.value)
    ladder = {
        Rung.STOPPED: RungFigures(cold_s),
        Rung.DESTROYED: RungFigures(figures.create_s.value + cold_s),
    }
    if model.profile().args.get("enable-sleep-mode"):
        share = figures.sleep_1_host_share.value
        ladder[Rung.SLEEP_1] = RungFigures(
            _known(times.wake_1, figures.sleep_1_wake_s.value), share * model.weights_gb
        )
        ladder[Rung.SLEEP_2] = RungFigures(
            _known(times.wake_2, figures.sleep_2_wake_s.value), figures.sleep_2_host_gb.value
        )
    return ladder


def _known(measured: StageTime, figure: float) -> float:
    return measured.mean_s if measured.count else figure


class LivePlanner(Listener):
    """Plans for every model of the catalog that some replica serves, or for which an admin has set limits."""

    def __init__(
        self,
        catalog: Catalog,
        scaling: ScalingDirectory | None = None,
        settings: AutoscalerSettings | None = None,
        *,
        added: Callable[[], Mapping[str, CatalogModel]] = dict,
        places: Places = NOWHERE,
    ) -> None:
        """Without `scaling` every model has the default limits, and hosts cost what the catalog says.

        `added` returns the models that are known beside the catalog's. `places` says where hosts may be created.
        """
        self._catalog, self._scaling, self._added, self._places = catalog, scaling, added, places
        self._known = KnownPlaces()
        self._autoscaler = Autoscaler(settings=settings)
        self._specs: dict[str, ModelSpec] = {}
        self._served: set[str] = set()
        """The models whose capacity was taken from a replica."""
        self._times: dict[str, LifeTimes] = {}
        """By model: the measured times that its plan rests on."""
        self._counts: dict[str, DemandCounts] = {}
        self._hits: dict[str, float] = {}
        self._hit_tokens: dict[str, int] = {}
        self._states: dict[str, tuple[Rung, float]] = {}
        self._held = HeldReplicas()
        self._contracts = Contracts()
        self._covered: Mapping[str, HostContract] = {}
        """By host: the contract that covers it."""
        self._free: Mapping[tuple[str, str], int] = {}
        """Hosts that contracts cover beside those that there are, by kind and region (empty = any)."""
        self._last = 0.0

    def on_submit(self, client: str, request: PlaceRequest, at: float, *, announced: bool) -> None:
        """Count an arrival, unless the request is announced again."""
        if not announced:
            self.count_arrival(request.model, request.prompt_tokens, request.output_tokens, request.bound_to)

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Count a served request and the prompt tokens that its replica had cached."""
        if placement is not None and not released.failed:
            self.count_release(
                placement.model, placement.replica_id, released.input_tokens, released.cached_input_tokens
            )

    def count_arrival(
        self, model: str, prompt_tokens: int, output_tokens: int, bound_to: BoundTo = ((), ())
    ) -> None:
        """Count a request with its estimated output tokens, unless it may run nowhere."""
        where = self._known.binding(bound_to)
        if where is not None and (counts := self._counts.get(model)):
            counts.arrive(prompt_tokens, output_tokens, where)

    def count_release(self, model: str, replica_id: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a served request, `cached_tokens` of whose prompt were cached on the replica."""
        if (counts := self._counts.get(model)) and replica_id in self._states:
            counts.serve(max(0, prompt_tokens - cached_tokens))
            self._hit_tokens[replica_id] = self._hit_tokens.get(replica_id, 0) + cached_tokens

    def plan(
        self,
        replicas: Mapping[str, Replica],
        hosts: Sequence[HostView],
        queues: Sequence[QueueView],
        now: float,
        *,
        creating: Sequence[CreatingHost] = (),
        failures: Sequence[CreationFailures] = (),
        drained_by_person: Callable[[str], bool] = lambda name: True,
        waiting_at: Mapping[str, Mapping[BoundTo, int]] = NONE_BOUND,
    ) -> PlanView | None:
        """Observe and plan. None when there is no model to plan for.

        `waiting_at`: of the requests in `queues`, by model, those that are bound to places.

        `drained_by_person` tells whether a replica that drains does so because of a person.

        `now` is in monotonic seconds. `creating`, whose prices are those of their kinds, and `failures` are what the
        providers of hosts report. Raises PlanningError when a model's figures are out of range.
        """
        elapsed, self._last = max(1e-3, now - self._last), now
        if self._scaling is not None and self._scaling.contracts is not self._contracts:
            self._contracts = self._scaling.contracts
            self._covered, self._free = self._contracts.assigned, self._contracts.free
        by_engine: dict[str, list[Replica]] = {}
        for replica in replicas.values():
            by_engine.setdefault(replica.engine.replica_id, []).append(replica)
        for name, model in self._models.items():
            if name in self._limits or name in self._specs:
                capacity = self._first_profile(model, self._limits.get(name, NO_LIMITS)).capacity
                self._plan_for(model, capacity, model.service_level, served=False)
        for replica in _representatives(replicas):
            self._learn(replica)
        host_of = {host.agent_id: host for host in hosts}
        observed = [
            self._replica(ranks, host_of.get(ranks[0].agent_id), elapsed, now, drained_by_person)
            for _, ranks in sorted(by_engine.items())
            if ranks[0].engine.model in self._specs
        ]
        by_model = {queue.model: queue for queue in queues}
        self._known = self._known_places(replicas)
        demand: list[DemandObservation] = []
        for model_name, counts in self._counts.items():
            queue = by_model.get(model_name)
            bound = waiting_at.get(model_name, {})
            demand += counts.take(model_name, 0 if queue is None else queue.waiting, bound, self._known)
        self._forget(by_engine)
        if not self._specs:
            return None
        self._autoscaler.observe(
            Observation(
                now,
                [self._host(host) for host in hosts],
                observed,
                demand,
                [
                    msgspec.structs.replace(
                        host,
                        usd_per_hour=0.0 if covering(self._covered, host.host_id) else self._cost(host.kind),
                        gpu=self._catalog.gpu_of(host.kind),
                        slots=self._slots(host.kind, host.model),
                    )
                    for host in creating
                ],
                list(failures),
            )
        )
        return view(self._autoscaler.plan(), observed)

    def _known_places(self, replicas: Mapping[str, Replica]) -> KnownPlaces:
        """Where replicas are, and where hosts may be created for some model."""
        kinds = [option for spec in self._specs.values() for option in spec.kinds]
        regions = {replica.engine.region.lower() for replica in replicas.values()}
        gpus = {replica.engine.gpu.lower() for replica in replicas.values()}
        return KnownPlaces(
            frozenset(regions.union(*(option.regions for option in kinds))) - {""},
            frozenset(gpus | {option.gpu.lower() for option in kinds}) - {""},
        )

    def _learn(self, replica: Replica) -> None:
        """Take a model's capacity and targets from its replica: an engine may return with another profile."""
        status = replica.engine
        if status.model not in self._models or status.engine == "external":
            return  # an external engine is not Penstock's to scale
        planned, capacity = self._specs.get(status.model), replica.engine_capacity
        if planned is not None:
            capacity = _settled(planned.capacity, capacity)
        self._times[status.model] = _settled_times(self._times.get(status.model, NO_TIMES), status.times)
        self._plan_for(self._models[status.model], capacity, status.targets)

    def _plan_for(
        self, model: CatalogModel, capacity: Capacity, targets: Targets, *, served: bool = True
    ) -> None:
        """Plan for a model by these figures. Those of the catalog (`served` false) only stand in until it is served."""
        known = self._specs.get(model.name)
        if served:
            self._served.add(model.name)
        elif known is not None and model.name in self._served:
            capacity, targets = known.capacity, known.targets
        limits = self._limits.get(model.name, NO_LIMITS)
        times = self._times.get(model.name, NO_TIMES)
        booked = None if self._scaling is None else self._scaling.list_prices.get(model.name)
        kinds = self._kinds(model, limits)
        spec = model_spec(self._catalog, model, capacity, targets, limits, kinds, times, booked)
        if spec == known:
            return
        self._specs[model.name] = spec
        self._counts.setdefault(model.name, DemandCounts())
        self._autoscaler.add(spec)

    @property
    def _models(self) -> Mapping[str, CatalogModel]:
        return with_added(self._catalog, self._added()).models

    @property
    def _limits(self) -> Mapping[str, ScalingLimits]:
        return {} if self._scaling is None else self._scaling.limits

    def _kinds(self, model: CatalogModel, limits: ScalingLimits) -> tuple[HostOption, ...]:
        """The kinds of hosts that may be created for a model: those that contracts cover first, as many as they have
        room for. Without a contract those without a known price are left out."""
        options, covered = list[HostOption](), list[HostOption]()
        for kind in limits.host_kinds:
            per_host = self._per_host(model, kind, limits)
            if not per_host:
                continue
            regions = tuple(dict.fromkeys(place.region.lower() for place in self._places.of(kind)))
            gpu, shares = self._catalog.gpu_of(kind), limits.shares
            covered += [
                HostOption(kind, 0.0, per_host, (region,) if region else regions, gpu, shares, count)
                for (of, region), count in sorted(self._free.items())
                if of == kind and (not region or region in regions)
            ]
            if self._usd_per_hour(kind) is not None:
                options.append(HostOption(kind, self._cost(kind), per_host, regions, gpu, shares))
        return (*covered, *sorted(options, key=lambda option: self._turn(option.kind)))

    def _per_host(self, model: CatalogModel, kind: str, limits: ScalingLimits) -> int:
        """Replicas of a model that a created host of a kind has; 0 = it does not fit, or what it shares hosts with."""
        if limits.shares:
            return sum(slot.model == model.name for slot in self._slots(kind, limits.shares))
        profile = profile_on(self._catalog, model, kind, limits.profile)
        return 0 if profile is None else replicas_on(self._catalog, kind, profile)

    def _slots(self, kind: str, models: str) -> tuple[RunSlot, ...]:
        """The replicas of a host that models share; none when it is a single model's, or they do not fit."""
        if not is_shared(models):
            return ()
        try:
            found = shared_on(with_added(self._catalog, self._added()), models, kind)
        except InvalidRequest:
            return ()  # a model has another profile by now
        return tuple(RunSlot(each.model.name, each.gpu_ids) for each in found)

    def _first_profile(self, model: CatalogModel, limits: ScalingLimits) -> EngineProfile:
        """The profile that the first host which may be created for a model runs, else the model's first."""
        found = (profile_on(self._catalog, model, kind, limits.profile) for kind in limits.host_kinds)
        return next((each for each in found if each is not None), model.profile())

    def kinds(self, model: str) -> tuple[HostOption, ...]:
        """The kinds of hosts that may be created for a model, in the order in which the plan tries them."""
        spec = self._specs.get(model)
        return () if spec is None else spec.kinds

    def _turn(self, kind: str) -> int:
        """The operator's own hosts first, spot second, on-demand last; kinds of the same sort in the admin's order."""
        return 0 if self._own(kind) else 1 if kind.endswith(SPOT) else 2

    def _cost(self, kind: str) -> float:
        """USD per hour that a host of that kind costs without a contract."""
        return 0.0 if self._own(kind) else self._usd_per_hour(kind) or 0.0

    def _usd_per_hour(self, kind: str) -> float | None:
        """The price of a host of that kind: that of the books, else the catalog's; None = not known."""
        booked = self._scaling.usd_per_hour(kind) if self._scaling is not None else None
        known = self._catalog.hosts.get(kind)
        if booked is not None or known is None or known.price is None:
            return booked
        return float(known.price.usd_per_hour)

    def _own(self, kind: str) -> bool:
        """Whether hosts of that kind are the operator's own; so is one that the catalog does not know."""
        known = self._catalog.hosts.get(kind)
        return known is None or known.own

    def _replica(
        self,
        ranks: list[Replica],
        host: HostView | None,
        elapsed: float,
        now: float,
        drained_by_person: Callable[[str], bool],
    ) -> ReplicaObservation:
        """A replica as the autoscaler takes it: all its ranks together."""
        status = ranks[0].engine
        name = status.replica_id
        rung = _rung(status)
        before = self._states.get(name)
        if before is None or before[0] is not rung:
            self._states[name] = (rung, now)
        hits = self._hit_tokens.pop(name, 0) / elapsed
        self._hits[name] = self._hits.get(name, 0.0) + HIT_RATE_WEIGHT * (hits - self._hits.get(name, 0.0))
        spec = self._specs[status.model]
        since = now - self._states[name][1]
        loading = status.state is ReplicaState.LOADING
        return ReplicaObservation(
            name,
            status.model,
            "" if host is None else host.host_id,
            rung,
            since,
            max(1.0, spec.ladder[Rung.STOPPED].wake_s - since) if loading else 0.0,
            status.state is ReplicaState.DRAINING,
            status.running,
            sum(rank.load.unprefilled for rank in ranks),
            status.kv_usage,
            CacheValue(self._hits[name]),
            self._held.is_held(status, now, drained_by_person),
            tuple(status.gpu_ids),
            status.region,
            status.gpu,
            "" if host is None else host.host_kind,
        )

    def _host(self, host: HostView) -> HostObservation:
        kind = self._catalog.hosts.get(host.host_kind)
        stated = kind.ram_gb.value if kind is not None and kind.ram_gb is not None else 0.0
        ram = host.memory_gb or stated
        price = self._usd_per_hour(host.host_kind) or 0.0
        contract = covering(self._covered, host.host_id)
        contracted = contract is not None or self._own(host.host_kind)
        words = "" if contract is None else contract.words
        return HostObservation(
            host.host_id, host.gpus, ram, contracted, price, host.host_kind, host.region, words
        )

    def _forget(self, known: Iterable[str]) -> None:
        keep = set(known)
        self._hits = {name: value for name, value in self._hits.items() if name in keep}
        self._hit_tokens = {name: value for name, value in self._hit_tokens.items() if name in keep}
        self._states = {name: value for name, value in self._states.items() if name in keep}
        self._held.keep(keep)


def _representatives(replicas: Mapping[str, Replica]) -> Iterable[Replica]:
    """One replica per model, whose figures stand for the model: the first by name that serves, else the first.

    Replicas that report no KV cache are left out.
    """
    chosen: dict[str, Replica] = {}
    for _, replica in sorted(replicas.items()):
        if not replica.status.capacity.kv_cache_tokens:
            continue
        present = chosen.get(replica.status.model)
        serves = replica.status.state is ReplicaState.READY
        if present is None or (serves and present.status.state is not ReplicaState.READY):
            chosen[replica.status.model] = replica
    return chosen.values()


def _settled(planned: Capacity, believed: Capacity) -> Capacity:
    """The capacity to plan with: the believed one, unless it differs only in learnt figures, and little.

    Another specification drops the needs that were found before, so the noise of what is learnt must not be one.
    """
    present = {name: getattr(planned, name) for name in LEARNT}
    small = all(abs(getattr(believed, name) - value) <= MOVED * value for name, value in present.items())
    return planned if small and msgspec.structs.replace(believed, **present) == planned else believed


def _settled_times(planned: LifeTimes, measured: LifeTimes) -> LifeTimes:
    """The times to plan with: those that were measured, where they differ from the planned ones by more than noise."""
    return LifeTimes(
        *(
            now
            if now.count and not (then.count and abs(now.mean_s - then.mean_s) <= MOVED * then.mean_s)
            else then
            for then, now in zip(
                msgspec.structs.astuple(planned), msgspec.structs.astuple(measured), strict=True
            )
        )
    )


def _rung(status: ReplicaStatus) -> Rung:
    if status.state in _UP:
        return Rung.AWAKE
    if status.state is ReplicaState.ASLEEP:
        return Rung.SLEEP_2 if status.sleep_level >= 2 else Rung.SLEEP_1
    return Rung.STOPPED
