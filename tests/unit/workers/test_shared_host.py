"""Several models on one host: their GPUs, who may start, and how many may sleep."""

from dataclasses import dataclass
from fractions import Fraction

import msgspec
import pytest

from core.errors import Conflict, InvalidRequest
from tests.unit.workers.test_model_definition import made
from workers.added_models import with_added
from workers.catalog import KvOffload, load_catalog
from workers.host_models import PlacedModel, parse_models, plan_models
from workers.machine import Gpus
from workers.plan import ReplicaPlan
from workers.replica_states import ASLEEP, STATES, Phase
from workers.shared_gpus import SharedGpus, host_memory_gb
from workers.wire import ReplicaState

CATALOG = load_catalog()
BIG, SMALL = "deepseek-v3.2", "minimax-m2.5"
KIND = "gpu-b300x8-2304gb-contracted"


@dataclass(eq=False)
class Replica:
    plan: ReplicaPlan
    phase: Phase = Phase.STOPPED
    going_to: int = 0

    @property
    def rests_at(self) -> int:
        return self.going_to or ASLEEP.get(self.phase, 0)

    @property
    def state(self) -> ReplicaState:
        return STATES[self.phase]

    @property
    def on_gpus(self) -> bool:
        return self.phase in (Phase.READY, Phase.LOADING, Phase.DRAINING)


def planned(text: str, replicas: int = 1) -> list[Replica]:
    plan = plan_models(CATALOG, "host", parse_models(text), replicas, None)
    assert (plan.host_kind, plan.gpus) == (KIND, 8)
    return [Replica(each) for each in plan.replicas]


def shared(*replicas: Replica, memory_gb: float = 0.0) -> SharedGpus:
    return SharedGpus(lambda: replicas, memory_gb, CATALOG.ladder)


def test_models_are_given_with_or_without_gpus_of_their_own() -> None:
    assert parse_models("a") == (PlacedModel("a"),)
    assert parse_models("org/a, b[2],c[4-7]") == (
        PlacedModel("org/a"),
        PlacedModel("b", 2, 2),
        PlacedModel("c", 4, 7),
    )


@pytest.mark.parametrize("text", ["", "a,", "a,a", "a[1-]", "a[x]", "a[1]b"])
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="PENSTOCK_MODEL"):
        parse_models(text)


def test_replicas_take_the_gpus_of_their_model_from_the_first_on() -> None:
    one, two = planned(f"{BIG},{SMALL}[4-7]")
    assert (one.plan.replica_id, one.plan.gpu_ids) == ("host/deepseek-v3.2-0", tuple("01234567"))
    assert (two.plan.replica_id, two.plan.gpu_ids) == ("host/minimax-m2.5-0", tuple("4567"))
    assert (one.plan.share, two.plan.share) == (Fraction(1), Fraction(1, 2))


def test_the_machines_own_gpus_are_used_and_a_profile_for_them() -> None:
    gpus = Gpus(tuple("abcdefgh"), "H100")
    models = parse_models("llama-3.3-70b[0-1],minimax-m2.5[0-3]")
    plan = plan_models(CATALOG, "host", models, 1, gpus)
    assert plan.host_kind == "gpu-h100x8-640gb"
    assert [(each.engine, each.gpu_ids) for each in plan.replicas] == [
        ("vllm", ("a", "b")),
        ("vllm", tuple("abcd")),
    ]


def test_added_models_of_the_same_short_name_share_a_host() -> None:
    added = {name: made(name=name, gpus=gpus)[0] for name, gpus in (("acme/model", 2), ("river/model", 4))}
    plan = plan_models(
        with_added(CATALOG, added),
        "host",
        parse_models("acme/model,river/model"),
        0,
        Gpus(tuple("abcdefgh"), "H100"),
    )
    assert {each.replica_id: each.gpu_ids for each in plan.replicas} == {
        "host/acme-model-0": ("a", "b"),
        "host/acme-model-1": ("c", "d"),
        "host/acme-model-2": ("e", "f"),
        "host/acme-model-3": ("g", "h"),
        "host/river-model-0": tuple("abcd"),
        "host/river-model-1": tuple("efgh"),
    }


@pytest.mark.parametrize(
    ("text", "replicas", "why"),
    [
        (f"{BIG},{SMALL}[6-9]", 1, "gives it the GPUs 6 to 9 of 8"),
        (f"{BIG},{SMALL}[0-2]", 1, "need 4 GPUs"),
        (f"{BIG},{SMALL}", 3, "need 24 GPUs"),
        (f"{BIG},penstock/tiny", 1, "no profile that uses GPUs"),
        (f"{BIG},unknown", 1, "has no model"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, replicas: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        planned(text, replicas)


def test_a_replica_starts_when_nothing_else_uses_one_of_its_gpus() -> None:
    one, two = planned(f"{BIG},{SMALL}[4-7]")
    gpus = shared(one, two)
    one.phase = Phase.READY
    assert (
        gpus.taken(two) == "host/deepseek-v3.2-0 uses its GPUs 4, 5, 6, 7; put that to sleep or stop it first"
    )
    for action in ("wake", "resume", "restart"):
        with pytest.raises(Conflict, match="uses its GPUs"):
            gpus.check(two, action, 1)
    gpus.check(one, "resume", 1)  # its own
    one.phase = Phase.ASLEEP_1
    gpus.check(two, "resume", 1)


def test_a_sleeper_goes_deeper_only_while_its_gpus_are_free() -> None:
    """From level 1 to 2 an engine wakes first."""
    one, two = planned(f"{BIG},{SMALL}[4-7]")
    gpus = shared(one, two)
    one.phase, two.phase = Phase.READY, Phase.ASLEEP_1
    gpus.check(two, "sleep", 1)
    with pytest.raises(Conflict, match="uses its GPUs"):
        gpus.check(two, "sleep", 2)
    two.phase = Phase.ASLEEP_2
    gpus.check(two, "sleep", 2)
    one.phase, two.phase = Phase.STOPPED, Phase.ASLEEP_1
    gpus.check(two, "sleep", 2)


def test_models_on_gpus_of_their_own_do_not_meet() -> None:
    one, two = planned(f"{SMALL}[0-3],qwen3.5-397b[4-7]")
    one.phase = Phase.READY
    assert shared(one, two).taken(two) == ""


def test_no_more_weights_sleep_at_level_1_than_memory_holds() -> None:
    one, two = planned(f"{SMALL}[0-3],qwen3.5-397b[4-7]")
    one.phase, two.phase = Phase.READY, Phase.ASLEEP_1
    held = 1.05 * (two.plan.profile.weights_gb or two.plan.model.weights_gb)
    needs = 1.05 * (one.plan.profile.weights_gb or one.plan.model.weights_gb)
    shared(one, two, memory_gb=held + needs + 1.0).check(one, "sleep", 1)
    tight = shared(one, two, memory_gb=held + needs - 1.0)
    with pytest.raises(Conflict, match="put it to sleep at level 2, or stop it"):
        tight.check(one, "sleep", 1)
    tight.check(one, "sleep", 2)
    two.phase, two.going_to = Phase.SETTLING, 1  # it is going to hold as much
    with pytest.raises(Conflict, match="put it to sleep at level 2, or stop it"):
        tight.check(one, "sleep", 1)
    two.going_to = 2
    tight.check(one, "sleep", 1)
    shared(one, two).check(one, "sleep", 1)  # not known
    one.phase = Phase.ASLEEP_1
    tight.check(one, "sleep", 2)  # it holds less then


def test_kv_caches_in_host_memory_leave_less_for_weights() -> None:
    one, two = planned(f"{SMALL}[0-3],qwen3.5-397b[4-7]")
    one.phase = Phase.READY
    needs = 1.05 * (one.plan.profile.weights_gb or one.plan.model.weights_gb)
    tier = msgspec.structs.replace(two.plan.profile, kv_offload=KvOffload(100.0))
    two.plan = msgspec.structs.replace(two.plan, profile=tier)
    enough = needs + 100 * 2**30 / 1e9
    shared(one, two, memory_gb=enough + 1.0).check(one, "sleep", 1)
    tight = shared(one, two, memory_gb=enough - 1.0)
    with pytest.raises(Conflict, match=f"of the {needs - 1.0:.0f} GB that the host has for them"):
        tight.check(one, "sleep", 1)
    assert shared(one, two).memory_gb == 0.0, "not known"


def test_the_parts_of_a_host_add_up_to_no_more_than_its_gpus() -> None:
    one, two = planned(f"{BIG},{SMALL}[4-7]")
    gpus = shared(one, two)
    assert (gpus.share(one), gpus.share(two)) == (Fraction(1, 2), Fraction(1, 4))
    one.phase = Phase.READY
    assert (gpus.share(one), gpus.share(two)) == (Fraction(1), Fraction(0))
    assert shared(one).share(one) == Fraction(1)


def test_a_simulated_host_has_the_memory_of_its_kind() -> None:
    assert host_memory_gb(CATALOG, KIND, simulated=True) == CATALOG.hosts[KIND].ram_gb.value
    assert host_memory_gb(CATALOG, "local-cpu", simulated=True) == 0.0
    assert host_memory_gb(CATALOG, KIND, simulated=False) > 0.0
