"""Each tier is held to its own targets: which batches it may join, when it is late, and what the others keep to."""

import random

import pytest

from scheduler.core.config import PolicyConfig
from scheduler.core.fair_queue import FairQueue
from scheduler.core.fleet import Fleet
from scheduler.core.flow import QueuedRequest
from scheduler.core.placement import ActivePlacement
from scheduler.core.policy import Choice, place_vectorised
from scheduler.core.rules import BANDS, QueueRules, band_index
from scheduler.core.state import SchedulerState
from tests.support.scheduling import MODEL, beat, replica, request
from workers.wire import Targets, TierTargets

FIXED = PolicyConfig(slack_step=0.0, itl_slack=1.0)
"""Without a learnt share of the target."""
TIERED = Targets(2.0, 0.03, priority=TierTargets(1.0, 0.02), batch=TierTargets(60.0, 0.06))
"""Of a replica whose step takes 10 ms and 1 ms for each sequence: room for 9, 19 and 49."""


def fleet_with(targets: Targets, **running: int) -> Fleet:
    """One replica with so many running requests of each tier, all prefilled."""
    made = Fleet(FIXED)
    for _ in range(3):
        made.heartbeat(beat(replica(slots=64, kv=1_000_000, targets=targets)), 0.0)
    for tier, count in running.items():
        for _ in range(count):
            entry = ActivePlacement(
                "api", "t", MODEL, "host/r0", "boot-1", 0, 0, 0, produced=0, prefilled=True, placed_at=0.0,
                tier=tier,
            )  # fmt: skip
            made.on_open(entry)
    return made


def fits(fleet: Fleet, tier: str) -> bool:
    """Whether a request of a tier may join; the scalar and the vector policy must agree."""
    wanted = request(tier=tier)
    scalar = isinstance(fleet.place(wanted, 0.0, random.Random(0)), Choice)
    [pool] = fleet._pools.values()
    vector = isinstance(place_vectorised(wanted, pool, 0.0, random.Random(0)), Choice)
    assert scalar == vector
    return scalar


@pytest.mark.parametrize(
    ("running", "tiers"),
    [
        ({"standard": 3}, {"priority", "standard", "batch"}),
        ({"batch": 30}, {"priority", "standard", "batch"}),
        ({"batch": 60}, set()),
        ({"standard": 12}, {"priority", "standard", "batch"}),
        ({"standard": 25}, set()),
        ({"priority": 1, "standard": 12}, {"priority"}),
        ({"priority": 12}, set()),
        ({"standard": 1, "batch": 20}, {"priority", "standard"}),
    ],
)
def test_a_tier_joins_a_batch_that_keeps_the_targets_of_its_betters(
    running: dict[str, int], tiers: set[str]
) -> None:
    fleet = fleet_with(TIERED, **running)
    assert {tier for tier in BANDS if fits(fleet, tier)} == tiers


@pytest.mark.parametrize(
    ("running", "joins"), [({"standard": 12}, True), ({"priority": 1, "standard": 11}, False)]
)
def test_a_held_prompt_does_not_slow_what_a_higher_tier_is_promised(
    running: dict[str, int], joins: bool
) -> None:
    fleet = fleet_with(TIERED, **running)
    held = request(tier="standard", blocks=[1, 2, 3, 4], prompt_tokens=4_000)
    [replica] = fleet.replicas.values()
    replica.prefix.on_route(held.blocks, 1_000.0, 0.0)
    replica.prefix.on_prefill(held.blocks, 0.0)
    assert isinstance(fleet.place(held, 0.0, random.Random(0)), Choice) is joins
    [pool] = fleet._pools.values()
    assert isinstance(place_vectorised(held, pool, 0.0, random.Random(0)), Choice) is joins


def test_equal_targets_treat_every_tier_alike() -> None:
    for count in (3, 12, 25):
        fleet = fleet_with(Targets(2.0, 0.03), standard=count)
        assert len({fits(fleet, tier) for tier in BANDS}) == 1


def test_an_ended_request_binds_no_other() -> None:
    fleet = fleet_with(TIERED, standard=12)
    entry = ActivePlacement(
        "api", "t", MODEL, "host/r0", "boot-1", 0, 0, 0, produced=0, prefilled=True, placed_at=0.0,
        tier="priority",
    )  # fmt: skip
    fleet.on_open(entry)
    assert not fits(fleet, "standard")
    fleet.on_close(entry, None, 0.0)
    assert fits(fleet, "standard")


def test_a_request_is_late_by_the_target_of_its_own_tier() -> None:
    state = SchedulerState("e", 0.0, grace_s=0.0)
    for _ in range(3):
        state.heartbeat(beat(replica(targets=TIERED)), 0.0)
    state.submit("api", request("r1"), 0.0)
    waits = state.queues[MODEL].waits
    share = QueueRules().late_ttft_share
    assert waits.late_before(100.0) == pytest.approx((100.0 - share, 100.0 - 2 * share, 100.0 - 60 * share))

    queue = FairQueue(QueueRules())
    for seq, tier in enumerate(BANDS):
        queue.add(QueuedRequest("api", request(tier, tier=tier), 50.0, 999.0, seq), 50.0)
    assert [each.request.tier for each in queue.newly_late((60.0, 40.0, 60.0), 9)] == ["priority", "batch"]
    assert [each.request.tier for each in queue.newly_late((60.0, 60.0, 60.0), 9)] == ["standard"]
    assert band_index("standard") == 1
