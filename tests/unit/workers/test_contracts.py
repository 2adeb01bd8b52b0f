"""Which hosts contracts cover."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from workers.acting.contracts import Contracts, HostContract, RunningHost, assign, covering

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def contract(number: int, count: int, kind: str = "a", region: str = "") -> HostContract:
    return HostContract(UUID(int=number), kind, region, count, NOW - HOUR, NOW + HOUR, 1, "17")


def host(name: str, hours: int, kind: str = "a", region: str = "Nyc") -> RunningHost:
    return RunningHost(name, kind, region, NOW - hours * HOUR)


def test_the_oldest_hosts_are_covered_those_of_the_region_first() -> None:
    anywhere, nyc = contract(1, 1), contract(2, 1, region="nyc")
    hosts = (host("young", 1), host("old", 3), host("tor", 2, region="tor"), host("other", 9, "b"))
    found = Contracts((anywhere, nyc), hosts)
    assert found.assigned == {"old": nyc, "tor": anywhere}
    assert found.free == {}
    assert Contracts((anywhere, contract(2, 3, region="nyc")), hosts[2:]).free == {("a", "nyc"): 3}
    assert covering(found.assigned, "sim-old") is nyc
    assert covering(found.assigned, "young") is None


def test_a_contract_runs_from_its_first_hour_until_its_last_has_passed() -> None:
    one = contract(1, 1)
    assert [one.runs(NOW + hours * HOUR) for hours in (-2, -1, 0, 1)] == [False, True, True, False]
    assert one.words == "contract 00000000-0000-0000-0000-000000000001 until 2026-11-28 13:00 UTC"


_REGIONS = st.sampled_from(["x", "y", ""])
_KINDS = st.sampled_from(["a", "b"])
_CONTRACTS = st.lists(st.tuples(st.integers(1, 3), _KINDS, _REGIONS), max_size=5)
_HOSTS = st.lists(st.tuples(st.integers(0, 9), _KINDS, st.sampled_from(["x", "y", "z"])), max_size=10)


@given(agreed=_CONTRACTS, seen=_HOSTS)
def test_no_contract_covers_more_than_it_has_and_none_that_could_cover_more_does_not(
    agreed: list[tuple[int, str, str]], seen: list[tuple[int, str, str]]
) -> None:
    contracts = [contract(number, *row) for number, row in enumerate(agreed)]
    hosts = [host(f"h{number}", *row) for number, row in enumerate(seen)]
    found = assign(contracts, hosts)
    used = Counter(one.contract_id for one in found.values())
    for one in hosts:
        fits = [each for each in contracts if each.kind == one.kind and each.region in ("", one.region)]
        if one.name in found:
            assert found[one.name] in fits
        else:
            assert all(used[each.contract_id] == each.count for each in fits)
    assert all(used[one.contract_id] <= one.count for one in contracts)
    # A host that comes later takes nobody's place.
    more = assign(contracts, [*hosts, RunningHost("new", "a", "x", NOW)])
    assert more | found == more
