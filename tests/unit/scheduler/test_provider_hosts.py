"""Intents as the autoscaler takes them: hosts in creation, kinds that fail, hosts that leave."""

from datetime import timedelta

import pytest

from scheduler.provider_hosts import LOAD_WITHIN, RECLAIM_DRAIN, Departure, ProviderHosts
from tests.unit.workers.test_acting import KIND, NOW, NYC, PLACES, TOR, host, written
from workers.providers.intents import Intent, IntentState


def hosts(*intents: Intent, **fields: object) -> ProviderHosts:
    return ProviderHosts(NOW, intents, **fields)  # type: ignore[arg-type]


def coming(known: ProviderHosts, *ids: str) -> list[str]:
    return [each.host_id for each in known.creating(set(ids))]


def test_a_host_is_in_creation_from_its_intent_until_it_had_time_to_load() -> None:
    assert coming(hosts(written(1))) == ["host-1"]
    joined = host(2, joined_at=NOW - LOAD_WITHIN + timedelta(seconds=1))
    assert coming(hosts(joined), "host-2") == ["host-2"]
    assert coming(hosts(joined), "sim-host-2") == ["sim-host-2"]
    assert coming(hosts(host(3))) == []  # joined long ago, and silent
    assert coming(hosts(written(4, wanted=False))) == []
    assert coming(hosts(written(5, reclaim_at=NOW))) == []
    [found] = hosts(written(6)).creating(set())
    assert (found.kind, found.model, found.since_s) == (KIND, "m", 60.0)


def test_a_kind_fails_in_a_region_or_wherever_it_may_be_created() -> None:
    there = written(1, failures=2, failed_at=NOW - timedelta(seconds=10))
    [in_nyc2] = hosts(there).failures(PLACES)
    assert (in_nyc2.kind, in_nyc2.count, in_nyc2.since_s, in_nyc2.region) == (KIND, 2, 10.0, "nyc2")
    assert coming(hosts(there)) == []  # it waits: the plan counts with the other region
    also = written(2, TOR, failures=5, failed_at=NOW - timedelta(seconds=1))
    found = {row.region: row for row in hosts(there, also).failures(PLACES)}
    assert {region: row.count for region, row in found.items()} == {"nyc2": 2, "tor1": 5, "": 2}
    assert found[""].since_s == 10.0  # nyc2 is tried first
    left = hosts(there, also, host(3, NYC, fit_at=NOW)).failures(PLACES)
    assert [row.region for row in left] == ["tor1"]


def test_hosts_are_found_by_the_id_of_their_heartbeats() -> None:
    known = hosts(
        host(1), host(2, wanted=False), host(3, TOR), host(4, state=IntentState.ENDED, wanted=False),
        persons=frozenset({TOR}),
    )  # fmt: skip
    assert known.may_destroy("host-1")
    assert known.may_destroy("sim-host-1")
    assert not known.may_destroy("host-2")
    assert not known.may_destroy("host-3")
    assert not known.may_destroy("static-1")
    assert known.is_leaving("sim-host-2")
    assert not known.is_leaving("static-1")
    assert [one.name for one in known.wanted] == ["host-1", "host-3"]


def test_a_host_that_its_provider_takes_back_counts_no_more_and_is_drained_shortly_before() -> None:
    later, soon = NOW + RECLAIM_DRAIN + timedelta(seconds=1), NOW + RECLAIM_DRAIN
    known = hosts(host(1, reclaim_at=later), host(2, reclaim_at=soon), host(3))
    assert [name for name in ("host-1", "host-2", "host-3") if known.is_leaving(name)] == ["host-1", "host-2"]
    assert known.counted == ["host-3"]
    assert known.departure("host-1") is known.departure("host-3") is known.departure("static-1") is None
    why = f"its provider takes its host back at {soon.isoformat()}"
    assert known.departure("sim-host-2") == Departure(
        why, RECLAIM_DRAIN.total_seconds(), by_notice=True, replaced=True
    )


def test_a_host_that_is_not_wanted_is_drained_until_it_may_be_destroyed() -> None:
    drains = host(1, wanted=False, why="w", drain_until=NOW + timedelta(seconds=9))
    assert hosts(drains).departure("host-1") == Departure("its host is destroyed: w", 9.0)
    assert hosts(drains, host(2)).departure("host-1") == Departure(
        "its host is destroyed: w", 9.0, replaced=True
    )
    assert hosts(host(1, wanted=False)).departure("host-1") is None


@pytest.mark.parametrize(
    ("going", "stays", "replaced"),
    [("m", "a,m", True), ("a,m", "m[0-3],b", True), ("m", "a,b", False), ("", "", True)],
)
def test_a_host_is_replaced_by_one_that_has_any_of_its_models(going: str, stays: str, replaced: bool) -> None:
    leaving = host(1, model=going, wanted=False, why="w", drain_until=NOW + timedelta(seconds=9))
    departure = hosts(leaving, host(2, model=stays)).departure("host-1")
    assert departure is not None
    assert departure.replaced is replaced
