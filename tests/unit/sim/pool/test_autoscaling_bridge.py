"""The autoscaler on the stepwise cluster: it wakes who is asleep under load, and lets go when the load has gone."""

from dataclasses import replace

from scheduler.core.autoscale.model_planner import AutoscalerSettings
from scheduler.core.autoscale.state import ModelSpec, Observation, Rung, RungFigures
from sim.pool.autoscaling_bridge import ScalerController
from sim.pool.autoscaling_policies import PenstockScaler
from sim.pool.cluster import Cluster
from sim.pool.control import ActionKind, PoolAction, PoolView
from sim.pool.settings import RunConfig
from tests.support.simulated import CAPACITY, MODEL, RoundRobin, poisson, pool
from workers.wire import ReplicaState, Targets


def test_load_wakes_replicas_and_its_end_puts_them_to_sleep() -> None:
    spec = ModelSpec(MODEL, CAPACITY, Targets(2.0, 0.1), {Rung.SLEEP_1: RungFigures(5.5)}, 1, 4)
    asleep = pool(4, state=ReplicaState.ASLEEP)
    replicas = [
        replace(each, state=ReplicaState.READY) if each.replica_id == "r0" else each for each in asleep
    ]
    scaler = PenstockScaler({MODEL: spec}, AutoscalerSettings(stabilization_s=30.0))
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


class Watches:
    """A controller that keeps what it saw; puts r0 to sleep at 40 s."""

    every_s = 2.0

    def __init__(self) -> None:
        self.views: list[tuple[float, PoolView]] = []

    def observe(self, view: PoolView, now: float) -> list[PoolAction]:
        self.views.append((now, view))
        return [PoolAction(ActionKind.SLEEP, "r0")] if now == 40.0 else []


def test_the_view_tells_which_cached_blocks_were_of_use() -> None:
    watches = Watches()
    cluster = Cluster(RoundRobin, poisson(6, 60, 3, families=3), pool(2), RunConfig(controller=watches))
    cluster.run()
    cached = {round(now): view.cached_blocks for now, view in watches.views}
    assert cached[2].get("r0", 0) < cached[38]["r0"]
    # Three families share a prefix of 11 blocks; what is their own is never asked for twice.
    assert 0 < cached[38]["r0"] <= 3 * 11
    assert "r0" not in cached[58], "what a sleeper had cached is gone"
    assert cached[58]["r1"] > 0


class SeesAll:
    """A policy that keeps its observations and wants one replica stopped, later awake."""

    name = "sees"

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def evaluate(self, seen: Observation) -> dict[str, Rung]:
        self.seen.append(seen)
        return {"r1": Rung.STOPPED if 10.0 <= seen.now < 40.0 else Rung.AWAKE}


def test_a_stopped_replica_is_remembered_and_can_be_started_again() -> None:
    spec = ModelSpec(MODEL, CAPACITY, Targets(2.0, 0.1), {Rung.STOPPED: RungFigures(15.0)}, 1, 2)
    policy = SeesAll()
    replicas = pool(2, cold_start_s=10.0, create_s=5.0)
    controller = ScalerController(policy, {MODEL: spec})
    Cluster(RoundRobin, poisson(4, 70, 5, families=3), replicas, RunConfig(controller=controller)).run()
    r1 = {round(seen.now): row for seen in policy.seen for row in seen.replicas if row.replica_id == "r1"}
    assert r1[8].cache.hit_tokens_per_s > 0.0
    assert r1[38].rung is Rung.STOPPED
    assert r1[66].rung is Rung.AWAKE
    assert r1[66].ready_in_s == 0.0
