"""Targets by tier: the catalog's, the default and those that an admin has stored."""

import math
from fractions import Fraction

import msgspec
import pytest

from sim.pool.pool import pool_of
from workers.catalog import load_catalog
from workers.machine import Gpus
from workers.plan import plan_external, plan_sim, plan_vllm
from workers.service_level import TargetFigures, service_level, target_problem, with_stored
from workers.wire import Targets, TierTargets


def test_a_tier_without_figures_is_promised_what_the_standard_tier_is() -> None:
    level = service_level({"standard": TargetFigures(3.0, 0.05), "batch": TargetFigures(60.0, 0.2)})
    assert level.of("standard") == level.of("unknown") == level.of("priority") == level
    assert (level.ttft_s, level.tpot_s) == (3.0, 0.05)
    assert level.of("batch") == TierTargets(60.0, 0.2)
    assert service_level({}) == Targets(2.0, 0.1)


def test_stored_targets_replace_those_of_their_tier_alone() -> None:
    base = Targets(2.0, 0.1, priority=TierTargets(1.0, 0.05))
    changed = with_stored(base, {"standard": TierTargets(4.0, 0.2), "batch": TierTargets(90.0, 0.4)})
    assert changed == Targets(4.0, 0.2, TierTargets(1.0, 0.05), TierTargets(90.0, 0.4))
    assert with_stored(base, {}) is base
    follows = with_stored(Targets(2.0, 0.1), {"standard": TierTargets(4.0, 0.2)})
    assert follows.of("priority").ttft_s == 4.0


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "named"),
    [(0.0, 0.1, "ttft_s"), (2.0, 0.0, "tpot_s"), (3601.0, 0.1, "ttft_s"), (2.0, math.nan, "tpot_s")],
)
def test_a_target_out_of_range_is_named(ttft_s: float, tpot_s: float, named: str) -> None:
    problem = target_problem(ttft_s, tpot_s)
    assert problem is not None
    assert problem.startswith(f"{named} is ")
    assert target_problem(2.0, 0.1) is None


def test_live_replicas_and_simulated_ones_have_the_catalogs_targets() -> None:
    catalog = load_catalog()
    for name, model in catalog.models.items():
        level = model.service_level
        assert {spec.targets for spec in pool_of(catalog, [name], 1)} == {level}
        assert plan_sim(catalog, "h", name, 1).replicas[0].targets == level
    [live] = plan_vllm(catalog, "h", "penstock/tiny", 1, Gpus((), ""), hub_answers=False).replicas
    assert live.targets == catalog.model("penstock/tiny").service_level
    assert catalog.model("llama-3.3-70b").service_level != Targets()
    external = plan_external("h/m-0", "m", max_num_seqs=4, context_len=100, share=Fraction(1))
    assert external.targets.tpot_s > 10.0


def test_targets_of_tiers_survive_the_wire() -> None:
    level = load_catalog().model("deepseek-v3.2").service_level
    assert level.priority is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(level), type=Targets) == level
    plain = msgspec.msgpack.encode({"ttft_s": 1.0, "tpot_s": 0.2})
    assert msgspec.msgpack.decode(plain, type=Targets) == Targets(1.0, 0.2), "an agent of an earlier release"
