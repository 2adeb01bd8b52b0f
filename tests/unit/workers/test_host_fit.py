"""What plans count for a kind of host is what an agent on such a host starts."""

import pytest

from core.errors import InvalidRequest
from core.settings import Settings
from workers.catalog import CatalogModel, EngineProfile, load_catalog
from workers.host_fit import check_fit, gpus_of, kinds_for, profile_on, replicas_on
from workers.host_models import parse_models, plan_models
from workers.plan import HostPlan, plan_sim, plan_vllm
from workers.prepare import prepare

CATALOG = load_catalog()
B300, SPOT, NVL4 = "gpu-b300x8-2304gb-contracted", "gpu-b300x8-2304gb-spot", "gb200-nvl4"
PAIRS = [
    (model, kind, name)
    for model in CATALOG.models.values()
    for name in ("", *model.profiles)
    for kind in kinds_for(CATALOG, model, name)
    if kind != "external"
]


def started(plan: HostPlan) -> list[tuple[EngineProfile, int]]:
    return [(each.profile, len(each.gpu_ids)) for each in plan.replicas]


@pytest.mark.parametrize(("model", "kind", "name"), PAIRS, ids=lambda each: getattr(each, "name", each))
def test_an_agent_starts_what_the_plan_counts(model: CatalogModel, kind: str, name: str) -> None:
    profile = profile_on(CATALOG, model, kind, name)
    assert profile is not None
    count = replicas_on(CATALOG, kind, profile)
    real = plan_vllm(CATALOG, "h", model.name, 0, gpus_of(CATALOG, kind), hub_answers=True, profile_name=name)
    gpus = profile.gpus or min(1, len(gpus_of(CATALOG, kind).ids))
    assert started(real) == [(profile, gpus)] * count
    simulated = plan_sim(CATALOG, "h", model.name, 0, profile_name=name, kind=kind)
    assert [each.profile for each in simulated.replicas] == [profile] * count


def test_a_model_runs_on_every_kind_with_the_gpus_of_a_profile() -> None:
    deepseek = CATALOG.model("deepseek-v3.2")
    assert {B300, SPOT, NVL4} <= set(kinds_for(CATALOG, deepseek))
    chosen = profile_on(CATALOG, deepseek, SPOT, "dp8")
    assert chosen is not None
    assert chosen.name == "dp8"
    assert profile_on(CATALOG, deepseek, "gpu-b300x1-288gb-spot") is None  # it has one GPU
    assert profile_on(CATALOG, deepseek, NVL4, "dp8") is None  # it has other GPUs
    llama = CATALOG.model("llama-3.3-70b")
    assert profile_on(CATALOG, llama, "gpu-h100x1-80gb") is None
    with pytest.raises(
        InvalidRequest, match="does not run on hosts of kind 'gpu-h100x1-80gb'; it runs on: gpu-h100x8"
    ):
        check_fit(CATALOG, llama, "gpu-h100x1-80gb", "", "kind")
    with pytest.raises(InvalidRequest, match=r"profile 'dp8' of 'deepseek-v3\.2' does not run"):
        check_fit(CATALOG, deepseek, NVL4, "dp8", "kind")


def test_as_many_replicas_as_the_gpus_of_each_model_hold() -> None:
    plan = plan_models(
        CATALOG, "h", parse_models("minimax-m2.5[0-3],qwen3.5-397b[4-7]"), 0, gpus_of(CATALOG, B300)
    )
    used = [gpu for each in plan.replicas for gpu in each.gpu_ids]
    assert len(used) == len(set(used))
    for name, most in (("minimax-m2.5", 4), ("qwen3.5-397b", 4)):
        profile = next(each.profile for each in plan.replicas if each.model.name == name)
        assert sum(each.model.name == name for each in plan.replicas) == most // profile.gpus


async def test_a_host_is_of_the_kind_that_its_settings_name() -> None:
    spot = Settings(engine="sim", model="deepseek-v3.2", host_kind=SPOT, replicas=0)
    plan = await prepare(spot, CATALOG, "h")
    assert (plan.host_kind, len(plan.replicas)) == (SPOT, 1)
    plain = Settings(engine="sim", model="deepseek-v3.2")
    assert (await prepare(plain, CATALOG, "h")).host_kind == B300
