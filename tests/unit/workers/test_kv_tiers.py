"""KV caches in host memory: a host has the memory for them, or serves nothing."""

import math

import msgspec
import pytest

from core.errors import InvalidRequest
from core.settings import Settings
from workers.catalog import KvOffload, load_catalog
from workers.kv_tiers import check_tiers, shared_memory_gb, tiers_gb
from workers.plan import ReplicaPlan, plan_sim
from workers.prepare import prepare

CATALOG = load_catalog()
TIER_GB = 220 * 2**30 / 1e9


def planned(backend: str = "native") -> tuple[ReplicaPlan, ...]:
    """The two engines of a host, each with a tier of 236 GB."""
    plan = plan_sim(CATALOG, "host", "minimax-m2.5", 0, profile_name="tp4-h100-kv")
    offload = KvOffload(220.0, backend)
    return tuple(
        msgspec.structs.replace(each, profile=msgspec.structs.replace(each.profile, kv_offload=offload))
        for each in plan.replicas
    )


def test_the_tiers_of_a_host_add_up() -> None:
    assert tiers_gb(planned()) == pytest.approx(2 * TIER_GB)
    assert tiers_gb(plan_sim(CATALOG, "host", "minimax-m2.5", 0).replicas) == 0.0


@pytest.mark.parametrize(
    ("memory_gb", "shared_gb", "message"),
    [
        (
            470.0,
            470.0,
            r"2 engines \(minimax-m2\.5:tp4-h100-kv\) need 472 GB, and this host has 470 GB of memory",
        ),
        (950.0, 470.0, "has 470 GB of /dev/shm; enlarge /dev/shm .*, or choose a profile without kv_offload"),
    ],
)
def test_tiers_that_do_not_fit_are_refused(memory_gb: float, shared_gb: float, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_tiers(planned(), memory_gb, shared_gb)


def test_what_fits_or_needs_none_is_accepted() -> None:
    check_tiers(planned(), 480.0, 480.0)
    check_tiers(planned("lmcache"), 480.0, 1.0)  # the server of LMCache has its own
    check_tiers(plan_sim(CATALOG, "host", "minimax-m2.5", 0).replicas, 0.0, 0.0)
    check_tiers(planned(), math.inf, math.inf)


async def test_a_host_without_the_memory_serves_nothing() -> None:
    def settings(replicas: int) -> Settings:
        return Settings(engine="sim", model="minimax-m2.5", profile="tp4-h100-kv", replicas=replicas)

    assert len((await prepare(settings(2), CATALOG, "host")).replicas) == 2
    with pytest.raises(
        InvalidRequest, match=r"10 engines .* need 2362 GB, and this host has 1900 GB of memory"
    ):
        await prepare(settings(10), CATALOG, "host")


def test_this_machine_has_shared_memory() -> None:
    assert shared_memory_gb() > 0.0
