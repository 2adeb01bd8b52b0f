"""Exact knowledge stays in step with the agent: gaps are noticed, and old prompts take nothing from new ones."""

import pytest

from scheduler.core.fleet import Fleet
from scheduler.core.placement import ActivePlacement
from scheduler.core.prefix import RESYNC_S, ExactPrefixes
from scheduler.core.prefix_index import PrefixIndex
from scheduler.wire import PlaceRequest, Released
from tests.support.scheduling import beat, replica, request
from workers.wire import KvDelta, ReplicaStatus

NAME = "host/r0"
CHAIN = list(range(1, 11))
"""A prompt of ten blocks of 100 tokens."""
EXACT = replica(NAME, prefix_kind="tokens")


def prompt() -> PlaceRequest:
    return request(blocks=list(CHAIN), prompt_tokens=1000, output_tokens=20, block_tokens=100)


def fleet_of(status: ReplicaStatus = EXACT) -> Fleet:
    made = Fleet()
    made.heartbeat(beat(status), 0.0)
    return made


def known(fleet: Fleet) -> int:
    return fleet.best_hit(prompt())


def test_missing_deltas_are_asked_for_once_and_again_when_nothing_comes() -> None:
    fleet = fleet_of()
    fleet.kv_events(KvDelta(NAME, "boot-1", 1, stored=CHAIN[:4], cleared=True))
    fleet.kv_events(KvDelta(NAME, "boot-1", 2, stored=CHAIN[4:6]))
    assert not fleet.needs_resync(NAME, 1.0)
    fleet.kv_events(KvDelta(NAME, "boot-1", 4, stored=CHAIN[7:8]))
    assert known(fleet) == 600, "nobody is worse off until everything is here"
    assert [fleet.needs_resync(NAME, at) for at in (1.0, 1.1)] == [True, False]
    fleet.kv_events(KvDelta(NAME, "boot-1", 5, stored=CHAIN[8:9]))
    assert [fleet.needs_resync(NAME, at) for at in (1.2, 1.0 + RESYNC_S)] == [False, True]
    fleet.kv_events(KvDelta(NAME, "boot-1", 6, stored=CHAIN[:5], cleared=True))
    fleet.kv_events(KvDelta(NAME, "boot-1", 7, stored=CHAIN[5:9]))
    assert known(fleet) == 900
    assert not fleet.needs_resync(NAME, 100.0)
    fleet.kv_events(KvDelta(NAME, "boot-1", 9))
    assert fleet.needs_resync(NAME, 100.0), "another gap is asked for at once"


def test_what_was_said_to_an_earlier_belief_is_asked_for() -> None:
    """The scheduler drops a replica that was silent; its agent has said everything on this connection already."""
    fleet = fleet_of()
    fleet.kv_events(KvDelta(NAME, "boot-1", 1, stored=CHAIN, cleared=True))
    fleet.forget_silent(60.0, 30.0)
    assert not fleet.needs_resync(NAME, 60.0)
    fleet.heartbeat(beat(EXACT), 61.0)
    asked = [fleet.needs_resync(NAME, 61.0 + step) for step in (0.0, RESYNC_S - 0.1, RESYNC_S)]
    assert asked == [False, False, True], "it may be about to say so"
    fleet.heartbeat(beat(replica(NAME, prefix_kind="tokens", boot_id="boot-2")), 70.0)
    assert not fleet.needs_resync(NAME, 70.0)
    fleet.kv_events(KvDelta(NAME, "boot-2", 3, stored=CHAIN))
    assert fleet.needs_resync(NAME, 70.1), "it goes on from what we do not know"


def test_a_mirror_is_told_nothing_and_asks_for_nothing() -> None:
    assert not fleet_of(replica(NAME)).needs_resync(NAME, 1e6)


def test_a_prompt_of_an_earlier_belief_takes_nothing_from_a_later_one() -> None:
    fleet = fleet_of()
    old, new = (
        ActivePlacement("api", "t", asked.model, NAME, "boot-1", 1000, 0, 20, 0, False, at, blocks=asked.blocks,
             block_tokens=100)
        for asked, at in ((prompt(), 0.0), (prompt(), 61.0))
    )  # fmt: skip
    fleet.on_open(old)
    fleet.forget_silent(60.0, 30.0)
    fleet.heartbeat(beat(EXACT), 61.0)
    fleet.on_open(new)
    fleet.on_close(old, Released("r", NAME), 62.0)
    assert known(fleet) == 1000, "the later prompt still brings it"
    fleet.on_close(new, Released("r", NAME), 62.0)
    assert known(fleet) == 0


@pytest.mark.parametrize("how", ["prefilled", "given_up", "failed"])
def test_prompts_that_were_on_their_way_to_a_cleared_cache_withdraw_nothing(how: str) -> None:
    index = PrefixIndex()
    exact = ExactPrefixes(index, 1, 10_000, 100, grace_s=1.0)
    old, new = list(CHAIN), list(CHAIN)
    exact.on_route(old, 100, 0.0)
    exact.clear()
    assert (len(index), len(exact)) == (0, 0)
    exact.on_route(new, 100, 1.0)
    if how == "prefilled":
        exact.on_prefill(old, 1.0)
    elif how == "given_up":
        exact.on_abandon(old, 0, 1.0, 1.0)
    else:
        exact.on_failure(old, False, 1.0)
    exact.trim(5.0)
    assert len(index) == len(CHAIN), "the later prompt still brings it"
    exact.on_prefill(new, 5.0)
    exact.trim(6.0)
    assert (len(index), len(exact)) == (0, 0)


def test_a_cache_that_the_engine_cleared_still_gets_what_is_on_its_way() -> None:
    index = PrefixIndex()
    exact = ExactPrefixes(index, 1, 10_000, 100, grace_s=1.0)
    blocks = list(CHAIN)
    exact.apply(KvDelta(NAME, "boot-1", 1, stored=[50], cleared=True))
    for _ in range(2):
        exact.on_route(blocks, 100, 0.0)
    exact.apply(KvDelta(NAME, "boot-1", 2, cleared=True))
    assert len(index) == len(CHAIN)
    exact.on_abandon(blocks, 0, 1.0, 1.0)
    assert len(index) == len(CHAIN), "one of two prompts is still on its way"
    exact.on_prefill(blocks, 1.0)
    exact.on_prefill(blocks, 1.0)
    exact.trim(2.0)
    assert (len(index), len(exact)) == (0, 0)


@pytest.mark.parametrize("failed", [False, True])
def test_a_prompt_announced_after_its_first_token_is_not_believed_for_ever(failed: bool) -> None:
    fleet = fleet_of()
    asked = prompt()
    entry = ActivePlacement("api", "t", asked.model, NAME, "boot-1", 1000, 0, 20, 5, True, 0.0, blocks=asked.blocks,
                 block_tokens=100)  # fmt: skip
    fleet.on_open(entry)
    assert known(fleet) == 1000
    fleet.on_close(entry, Released("r", NAME, 1000, 0, 20, failed), 1.0)
    fleet.heartbeat(beat(EXACT), 60.0)
    assert known(fleet) == 0
