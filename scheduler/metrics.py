"""The Prometheus metrics of the scheduler."""

import heapq
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from scheduler.core.capacity_estimate import Factors
from scheduler.core.placement import ActivePlacement
from scheduler.core.replica import Replica
from scheduler.core.rules import NEW_TENANT
from scheduler.core.state import SchedulerState
from scheduler.listeners import Listener
from scheduler.messages import PlaceRefused, TenantCounter
from scheduler.wire import Placement, PlanView, QueueView, Released

MAX_TENANTS = 20
"""Tenants with a label of their own per model."""
MAX_REFUSED_MODELS = 1024
"""Models with a label of their own in the counts of refusals; clients can invent any number of model names."""
OTHER = "other"
"""Label for everything beyond the bounded number of names."""

PLACEMENTS = Counter("penstock_scheduler_placements", "Requests placed on a replica", ["model"])
REFUSALS = Counter("penstock_scheduler_refusals", "Requests refused", ["model", "status", "reason"])
WAKES = Counter("penstock_scheduler_wakes", "Replicas woken for requests that waited", ["result"])
QUEUE_WAITING = Gauge("penstock_scheduler_queue_waiting", "Queued requests", ["model", "band"])
QUEUE_OLDEST = Gauge(
    "penstock_scheduler_queue_oldest_seconds", "Age of the oldest queued request", ["model", "band"]
)
IN_FLIGHT = Gauge("penstock_scheduler_in_flight", "Active placements", ["model"])
QUEUE_SECONDS = Histogram(
    "penstock_scheduler_queue_seconds",
    "Seconds from arrival to placement",
    ["model", "band"],
    buckets=(0.0005, 0.002, 0.01, 0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60),
)
DECISION_SECONDS = Histogram(
    "penstock_scheduler_decision_seconds",
    "Processor seconds of one dispatch with decisions",
    buckets=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
)
DISPATCH_SECONDS = Counter(
    "penstock_scheduler_dispatch_seconds",
    "Processor seconds of all dispatches",
)
_RATIOS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
TTFT_RATIO = Histogram(
    "penstock_scheduler_ttft_ratio", "Observed over predicted time to first token", ["model"], buckets=_RATIOS
)
ITL_RATIO = Histogram(
    "penstock_scheduler_itl_ratio",
    "Observed over predicted time per output token",
    ["model"],
    buckets=_RATIOS,
)
PREDICTION_MAPE = Gauge(
    "penstock_scheduler_prediction_mape",
    "Mean absolute error as a share of the observed value",
    ["model", "kind"],
)
PREDICTION_BIAS = Gauge(
    "penstock_scheduler_prediction_bias_seconds", "Mean of observed minus predicted", ["model", "kind"]
)
PREDICTION_COVERAGE = Gauge(
    "penstock_scheduler_prediction_coverage",
    "Share of outcomes within the stated bound",
    ["model", "kind"],
)
TENANT_SERVICE = Gauge(
    "penstock_scheduler_tenant_service",
    "Counters of the fair queue in weighted tokens: the tenants served most, the rest as other",
    ["model", "tenant"],
)
LEARNT = Gauge(
    "penstock_scheduler_learnt_ratio",
    "Learnt over stated: seconds of prefill, base (alpha), sequences (beta), overhead (h); accepted tokens per step",
    ["replica", "figure"],
)
LEARNT_SPREAD = Gauge(
    "penstock_scheduler_learnt_spread",
    "Standard deviation of the logarithm of a learnt ratio; 1.1 = nothing is known beyond what is stated",
    ["replica", "figure"],
)
PREFIX_ENTRIES = Gauge(
    "penstock_scheduler_prefix_entries", "Prefix blocks remembered of a model's replicas", ["model"]
)
KV_EVENTS_REFUSED = Counter(
    "penstock_scheduler_kv_events_refused", "Rejected frames of KV events", ["reason"]
)
KV_RESYNCS = Counter(
    "penstock_scheduler_kv_resyncs", "Full cache states requested from agents after a missing delta"
)
REPLICAS_REFUSED = Counter(
    "penstock_scheduler_replicas_refused",
    "Rejected reports of replicas: a capacity or target is out of range",
)
HIT_TOKENS_PREDICTED = Counter(
    "penstock_scheduler_hit_tokens_predicted",
    "Prompt tokens believed to be cached at placement, by source: exact (token blocks) or mirrored (text blocks)",
    ["model", "source"],
)
HIT_TOKENS_ACTUAL = Counter(
    "penstock_scheduler_hit_tokens_actual",
    "Prompt tokens that the engine found cached, by source at placement",
    ["model", "source"],
)
CONNECTIONS = Gauge("penstock_scheduler_connections", "Open connections", ["kind"])
REJECTED_CONNECTIONS = Counter(
    "penstock_scheduler_rejected_connections", "Connections that the scheduler closed", ["reason"]
)
REPLICAS_DESIRED = Gauge(
    "penstock_scheduler_replicas_desired", "Replicas that the autoscaler would have awake", ["model"]
)
PLANNED_RPS = Gauge(
    "penstock_scheduler_planned_rps", "Arrivals per second that the autoscaler plans for", ["model"]
)
PLAN_FAILURES = Counter(
    "penstock_scheduler_plan_failures",
    "Observations without a plan, because the arithmetic failed on a model's figures",
    ["model"],
)
PLAN_STORE_FAILURES = Counter(
    "penstock_scheduler_plan_store_failures", "Rounds in which the autoscaler's plan could not be stored"
)
ROLLOUT_STORE_FAILURES = Counter(
    "penstock_scheduler_rollout_store_failures", "Rounds in which rollouts could not be read or stored"
)
ROLLOUT_FAILURES = Counter(
    "penstock_scheduler_rollout_failures",
    "Looks in which a rollout was not decided on, because of a mistake",
    ["model"],
)
HOST_HOURS_FAILURES = Counter(
    "penstock_scheduler_host_hours_failures", "Rounds in which host seconds could not be stored"
)
ACCEPTANCE_FAILURES = Counter(
    "penstock_scheduler_acceptance_failures", "Rounds in which acceptances of hosts could not be stored"
)
ENGINE_COUNTERS_FAILURES = Counter(
    "penstock_scheduler_engine_counters_failures", "Rounds in which engine counters could not be stored"
)
ENGINE_COUNTERS_REFUSED = Counter(
    "penstock_scheduler_engine_counters_refused", "Reports of one engine's counters that PostgreSQL refused"
)
TRACE_FAILURES = Counter(
    "penstock_scheduler_request_trace_failures", "Rounds in which recorded requests could not be stored"
)
TRACE_DROPPED = Counter(
    "penstock_scheduler_request_trace_dropped", "Requests that were not recorded because of a bound"
)


TERM = Gauge(
    "penstock_scheduler_term", "Term of the lease under which this scheduler serves; 0 while it stands by"
)
LEASES_LOST = Counter(
    "penstock_scheduler_leases_lost", "Times that this scheduler stopped because it had lost its lease"
)
LEASE_FAILURES = Counter(
    "penstock_scheduler_lease_failures", "Renewals of the lease that PostgreSQL did not answer"
)
_OF_SERVING = (
    QUEUE_WAITING,
    QUEUE_OLDEST,
    IN_FLIGHT,
    PREDICTION_MAPE,
    PREDICTION_BIAS,
    PREDICTION_COVERAGE,
    TENANT_SERVICE,
    LEARNT,
    LEARNT_SPREAD,
    PREFIX_ENTRIES,
    REPLICAS_DESIRED,
    PLANNED_RPS,
)
"""Gauges of what a scheduler serves."""


class BoundedLabels:
    """A bounded number of label values, because prometheus_client never removes one from a counter."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        """`name` while it is known or there is room for one more, else OTHER."""
        if name not in self._known:
            if len(self._known) >= self._limit:
                return "other"
            self._known.add(name)
        return name


class RequestMetrics(Listener):
    """Counts placements and refusals, and compares predictions with observations."""

    def __init__(self) -> None:
        self._refused_models = BoundedLabels(MAX_REFUSED_MODELS)
        self._models: dict[str, _ModelMetrics] = {}
        """By model that was ever served. To look up a child of a metric costs more than to count."""

    def on_place(self, client: str, placement: Placement, tier: str, at: float) -> None:
        """Count a placement and its time in the queue."""
        found = self._of(placement.model)
        found.placements.inc()
        seconds = found.queue_seconds.get(tier)
        if seconds is None:
            seconds = found.queue_seconds[tier] = QUEUE_SECONDS.labels(placement.model, tier)
        seconds.observe(placement.queue_s)

    def on_refuse(self, client: str, model: str, refusal: PlaceRefused, at: float) -> None:
        """Count a refusal by its reason."""
        label = self._refused_models.label(model)
        REFUSALS.labels(label, str(refusal.status), refusal.reason).inc()

    def on_first_token(
        self, client: str, request_id: str, placement: ActivePlacement | None, at: float
    ) -> None:
        """Observe the ratio of actual to predicted time to first token."""
        if placement is not None and placement.predicted_ttft_s > 0:
            ratio = (at - placement.placed_at) / placement.predicted_ttft_s
            self._of(placement.model).ttft_ratio.observe(ratio)

    def on_release(
        self, client: str, released: Released, placement: ActivePlacement | None, at: float
    ) -> None:
        """Count predicted and actual cached tokens, and observe the ratio of actual to predicted time per output
        token."""
        if placement is None or released.failed:
            return
        found = self._of(placement.model)
        predicted, actual = found.exact_hits if placement.block_tokens else found.mirrored_hits
        if placement.hit_tokens:
            predicted.inc(placement.hit_tokens)
        if released.cached_input_tokens > 0:
            actual.inc(released.cached_input_tokens)
        further = released.output_tokens - 1
        if further > 0 and placement.first_token_at > 0 and placement.predicted_itl_s > 0:
            itl_s = (at - placement.first_token_at) / further
            found.itl_ratio.observe(itl_s / placement.predicted_itl_s)

    def _of(self, model: str) -> "_ModelMetrics":
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _ModelMetrics(model)
        return found


class _ModelMetrics:
    """The children of the request metrics for one model."""

    __slots__ = ("exact_hits", "itl_ratio", "mirrored_hits", "placements", "queue_seconds", "ttft_ratio")

    def __init__(self, model: str) -> None:
        self.placements = PLACEMENTS.labels(model)
        self.queue_seconds: dict[str, Histogram] = {}
        """By tier; placements name one of the bands."""
        self.ttft_ratio = TTFT_RATIO.labels(model)
        self.itl_ratio = ITL_RATIO.labels(model)
        self.exact_hits = (
            HIT_TOKENS_PREDICTED.labels(model, "exact"),
            HIT_TOKENS_ACTUAL.labels(model, "exact"),
        )
        self.mirrored_hits = (
            HIT_TOKENS_PREDICTED.labels(model, "mirrored"),
            HIT_TOKENS_ACTUAL.labels(model, "mirrored"),
        )


def show_queues(queues: Sequence[QueueView]) -> None:
    """Set the gauges of all queues; models without queued or running requests disappear."""
    QUEUE_WAITING.clear()
    QUEUE_OLDEST.clear()
    IN_FLIGHT.clear()
    for queue in queues:
        IN_FLIGHT.labels(queue.model).set(queue.in_flight)
        for band in queue.bands:
            QUEUE_WAITING.labels(queue.model, band.tier).set(band.waiting)
            QUEUE_OLDEST.labels(queue.model, band.tier).set(band.oldest_s)


def show_state(state: SchedulerState) -> None:
    """Set the gauges of accuracy, tenants' service, learnt speeds and prefix entries."""
    for (model, kind), accuracy in state.accuracy().items():
        if accuracy.count:
            PREDICTION_MAPE.labels(model, kind).set(accuracy.mape)
            PREDICTION_BIAS.labels(model, kind).set(accuracy.bias_s)
            PREDICTION_COVERAGE.labels(model, kind).set(accuracy.coverage)
    TENANT_SERVICE.clear()
    for model, tenants in service_by_tenant(state.counters()).items():
        for tenant_id, service in tenants.items():
            TENANT_SERVICE.labels(model, tenant_id).set(service)
    entries: dict[str, int] = {}
    LEARNT.clear()
    LEARNT_SPREAD.clear()
    for name, replica in state.fleet.replicas.items():
        _show_learnt(name, replica)
        entries[replica.status.model] = entries.get(replica.status.model, 0) + len(replica.prefix)
    PREFIX_ENTRIES.clear()
    for model, count in entries.items():
        PREFIX_ENTRIES.labels(model).set(count)


def _show_learnt(name: str, replica: Replica) -> None:
    estimate = replica.meter.estimate
    for figure, ratio, spread in zip(Factors._fields, estimate.factors, estimate.spreads, strict=True):
        LEARNT.labels(name, figure).set(ratio)
        LEARNT_SPREAD.labels(name, figure).set(spread)
    accepted = replica.stated.accept_per_step / max(1.0, replica.status.capacity.accept_per_step)
    LEARNT.labels(name, "accepted").set(accepted)
    LEARNT_SPREAD.labels(name, "accepted").set(replica.acceptance.spread(replica.status.capacity))


def service_by_tenant(
    counters: Sequence[TenantCounter], limit: int = MAX_TENANTS
) -> dict[str, dict[str, float]]:
    """By model the `limit` tenants with the largest counters, summed over bands, and the rest as OTHER."""
    models: dict[str, dict[str, float]] = {}
    for counter in counters:
        if counter.tenant_id != NEW_TENANT:
            tenants = models.setdefault(counter.model, {})
            tenants[counter.tenant_id] = tenants.get(counter.tenant_id, 0.0) + counter.service
    for model, tenants in models.items():
        if len(tenants) > limit:
            top = dict(heapq.nlargest(limit, tenants.items(), key=lambda item: (item[1], item[0])))
            models[model] = top | {OTHER: sum(tenants.values()) - sum(top.values())}
    return models


def stand_by() -> None:
    """Count a lost lease, and clear what a scheduler shows only while it serves."""
    LEASES_LOST.inc()
    TERM.set(0)
    for gauge in _OF_SERVING:
        gauge.clear()


def show_plan(plan: PlanView | None) -> None:
    """Set the gauges of the plan; models that are no longer planned for disappear."""
    REPLICAS_DESIRED.clear()
    PLANNED_RPS.clear()
    for row in plan.models if plan is not None else ():
        REPLICAS_DESIRED.labels(row.model).set(row.target)
        PLANNED_RPS.labels(row.model).set(row.planned_rps)
