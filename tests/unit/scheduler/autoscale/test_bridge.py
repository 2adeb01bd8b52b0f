"""The autoscaler on the stepwise cluster: it wakes who is asleep under load, and lets go when the load has gone."""

from dataclasses import replace

from scheduler.core.autoscale.forecast import Smoothing
from scheduler.core.autoscale.state import ModelSpec, Rung, RungFigures
from scheduler.core.autoscale.watch import Settings
from scheduler.simulator.autoscaling_bridge import ScalerController
from scheduler.simulator.autoscaling_policies import Ours
from scheduler.simulator.cluster import Cluster
from scheduler.simulator.settings import RunConfig
from tests.support.simulated import CAPACITY, MODEL, RoundRobin, poisson, pool
from workers.wire import ReplicaState, Targets


def test_load_wakes_replicas_and_its_end_puts_them_to_sleep() -> None:
    spec = ModelSpec(MODEL, CAPACITY, Targets(2.0, 0.1), {Rung.SLEEP_1: RungFigures(5.5)}, 1, 4)
    asleep = pool(4, state=ReplicaState.ASLEEP)
    replicas = [
        replace(each, state=ReplicaState.READY) if each.replica_id == "r0" else each for each in asleep
    ]
    scaler = Ours({MODEL: spec}, Settings(smoothing=Smoothing(bin_s=10.0), hold_s=30.0))
    requests = poisson(14, 40, 1) + [
        replace(late, key=10_000 + late.key, at=60.0 + late.at) for late in poisson(0.3, 500, 2)
    ]
    controller = ScalerController(scaler, {MODEL: spec})
    cluster = Cluster(RoundRobin, requests, replicas, RunConfig(controller=controller))
    cluster.run()
    result = cluster.result("", 0.0)
    assert all(record.finished_at > 0 for record in result.records)
    assert {record.replica_id for record in result.records if record.request.at < 40} > {"r0"}
    asleep_now = [name for name, each in cluster.replicas.items() if each.state is ReplicaState.ASLEEP]
    assert len(asleep_now) >= 2
    assert result.replica_seconds["asleep"] > 0
