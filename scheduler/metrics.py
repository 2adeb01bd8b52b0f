"""What the scheduler counts, pre-bound."""

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from scheduler.wire import QueueView

PLACEMENTS = Counter("penstock_scheduler_placements", "Requests placed on a replica", ["model"])
REFUSALS = Counter("penstock_scheduler_refusals", "Requests refused", ["model", "status", "reason"])
QUEUE_WAITING = Gauge("penstock_scheduler_queue_waiting", "Requests waiting for a replica", ["model"])
IN_FLIGHT = Gauge("penstock_scheduler_in_flight", "Placements not released yet", ["model"])
QUEUE_SECONDS = Histogram(
    "penstock_scheduler_queue_seconds",
    "Seconds from arrival to placement",
    ["model"],
    buckets=(0.0005, 0.002, 0.01, 0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60),
)
DECISION_SECONDS = Histogram(
    "penstock_scheduler_decision_seconds",
    "Processor seconds of one round of decisions",
    buckets=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
)
HIT_TOKENS_PREDICTED = Counter(
    "penstock_scheduler_hit_tokens_predicted", "Prompt tokens believed cached at placement", ["model"]
)
HIT_TOKENS_ACTUAL = Counter(
    "penstock_scheduler_hit_tokens_actual", "Prompt tokens the engine said were cached", ["model"]
)
CONNECTIONS = Gauge("penstock_scheduler_connections", "Open connections", ["kind"])
REJECTED_CONNECTIONS = Counter("penstock_scheduler_rejected_connections", "Connections closed by us", ["why"])
HOST_HOURS_FAILURES = Counter(
    "penstock_scheduler_host_hours_failures", "Rounds in which host seconds could not be stored"
)
ENGINE_COUNTERS_FAILURES = Counter(
    "penstock_scheduler_engine_counters_failures", "Rounds in which engine counters could not be stored"
)
ENGINE_COUNTERS_REFUSED = Counter(
    "penstock_scheduler_engine_counters_refused", "Reports of one engine's counters that PostgreSQL refused"
)


def show_queues(queues: Sequence[QueueView]) -> None:
    """Set the gauges of every model; those that nobody waits for or runs any more disappear."""
    QUEUE_WAITING.clear()
    IN_FLIGHT.clear()
    for queue in queues:
        QUEUE_WAITING.labels(queue.model).set(queue.waiting)
        IN_FLIGHT.labels(queue.model).set(queue.in_flight)
