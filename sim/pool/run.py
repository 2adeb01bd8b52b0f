"""Runs one simulation: a workload, a routing system and a pool give every request's record."""

from collections.abc import Iterable, Sequence

from sim.pool.cluster import Cluster
from sim.pool.contract import RunResult, SimRequest
from sim.pool.pool import ReplicaSpec
from sim.pool.settings import RoutingFactory, RunConfig


def simulate(
    routing_factory: RoutingFactory,
    requests: Iterable[SimRequest],
    pool: Sequence[ReplicaSpec],
    config: RunConfig | None = None,
    *,
    workload: str = "",
    load: float = 0.0,
) -> RunResult:
    """Run `requests` (in order of arrival) against `pool` under a routing system.

    The same arguments give the same result. `workload` and `load` only label the result.
    """
    cluster = Cluster(routing_factory, requests, pool, config or RunConfig())
    cluster.run()
    return cluster.result(workload, load)
