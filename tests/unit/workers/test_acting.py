"""From the autoscaler's plan to desired hosts: single rules, and properties over random plans and providers."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.money import PICO_PER_USD
from workers.acting.contracts import Contracts, HostContract, RunningHost
from workers.acting.decide import CALL_WITHIN, GIVEN_UP, Decision, Money, Situation, decide_hosts
from workers.acting.places import Place, Places, parse_places
from workers.acting.plan import (
    Mode,
    PlannedCreation,
    PlannedModel,
    PlannedRemoval,
    StoredPlan,
    mode_of,
)
from workers.providers.ceilings import Ceilings
from workers.providers.intents import Intent, IntentState
from workers.providers.interface import DesiredHosts, HostGroup
from workers.scaling import KindReplicas, RegionReplicas, ScalingLimits

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
KIND, OTHER, OWN = "gpu-h100x1-80gb", "gpu-h200x1-141gb", "local-cpu"
NYC, TOR = HostGroup("digitalocean", "nyc2", KIND, "m"), HostGroup("digitalocean", "tor1", KIND, "m")
PRICE = 4 * PICO_PER_USD
PLACES = parse_places("*=digitalocean/nyc2,digitalocean/tor1")
LIMITS = ScalingLimits(0, 8, None, (KIND, OTHER, OWN))
RICH = Money(
    Ceilings(100, 1_000 * PICO_PER_USD),
    {("digitalocean", kind): PRICE for kind in (KIND, OTHER, OWN)},
    {},
)
NO_CONTRACTS = Contracts()


def contract(count: int = 1, region: str = "", ends_at: datetime | None = None) -> HostContract:
    """One for hosts of KIND that has run for a day."""
    return HostContract(
        UUID(int=77), KIND, region, count, NOW - timedelta(days=1), ends_at, 3 * PICO_PER_USD, "17"
    )


def host(number: int, group: HostGroup = NYC, **fields: object) -> Intent:
    """A host that runs and serves."""
    bare = Intent(
        intent_id=UUID(int=number),
        provider=group.provider,
        region=group.region,
        kind=group.kind,
        model=group.model,
        name=f"host-{number}",
        requested_at=NOW - timedelta(hours=1),
        state=IntentState.EXISTS,
        status="running",
        provider_id=str(number),
        joined_at=NOW - timedelta(minutes=50),
        fit_at=NOW - timedelta(minutes=45),
        usd_pico_per_hour=PRICE,
        billed=True,
    )
    return msgspec.structs.replace(bare, **fields)


def written(number: int, group: HostGroup = NYC, **fields: object) -> Intent:
    """A host that was not created yet."""
    facts = {
        "state": IntentState.WRITTEN,
        "provider_id": None,
        "joined_at": None,
        "fit_at": None,
        "usd_pico_per_hour": None,
        "billed": False,
        "requested_at": NOW - timedelta(minutes=1),
    }
    return host(number, group, **(facts | fields))


def create(count: int = 1, kind: str = KIND, known: tuple[str, ...] = ()) -> StoredPlan:
    return StoredPlan(
        models=(PlannedModel("m", 3),),
        create=(PlannedCreation(kind, "m", count, "more load"),),
        known=known,
    )


def destroy(*names: str, awake: int = 3, drained: bool = True) -> StoredPlan:
    return StoredPlan(
        models=(PlannedModel("m", awake),),
        destroy=tuple(PlannedRemoval(name, "idle", drained) for name in names),
        known=names,
    )


def decided(
    plan: StoredPlan,
    intents: list[Intent] | None = None,
    desired: list[DesiredHosts] | None = None,
    *,
    limits: ScalingLimits | None = LIMITS,
    money: Money = RICH,
    mode: Mode = Mode.ON,
    places: Places = PLACES,
    providers: frozenset[str] = frozenset({"digitalocean"}),
    contracts: Contracts = NO_CONTRACTS,
) -> Decision:
    return decide_hosts(
        Situation(
            now=NOW,
            plan=plan,
            desired=desired or [],
            intents=intents or [],
            places=places,
            providers=providers,
            own=frozenset({OWN}),
            contracts=contracts,
            limits={} if limits is None else {"m": limits},
            money=money,
            mode=mode,
        )
    )


def results(decision: Decision) -> list[tuple[str, str]]:
    return [(act.act, act.result) for act in decision.acts]


def details(decision: Decision) -> str:
    return " | ".join(act.detail for act in decision.acts)


def test_a_creation_is_desired_beside_the_hosts_that_the_plan_knew() -> None:
    plan = create(2, known=("host-1",))
    decision = decided(plan, [host(1)], [DesiredHosts(NYC, 1, "plan")])
    assert decision.desired == {NYC: 3}
    assert [(act.target, act.reason, act.model) for act in decision.acts] == [
        ("digitalocean/nyc2/gpu-h100x1-80gb", "more load", "m")
    ] * 2
    # Read again, whether a pass has written the intents meanwhile or not, the same plan asks for nothing.
    again = [DesiredHosts(NYC, 3, "plan")]
    assert decided(plan, [host(1)], again) == Decision({}, [], [])
    assert decided(plan, [host(1), written(2), written(3)], again) == Decision({}, [], [])


def test_a_host_that_is_taken_back_keeps_no_other_from_being_created() -> None:
    taken = host(1, reclaim_at=NOW + timedelta(hours=2))
    # The pass replaces it: before that, and after, the plan's host is the one that is desired already.
    assert decided(create(1), [taken], [DesiredHosts(NYC, 1, "plan")]).desired == {}
    more = create(1, known=("host-2",))
    assert decided(more, [taken, host(2)], [DesiredHosts(NYC, 1, "plan")]).desired == {NYC: 2}
    # Where its replacement was given up, the plan creates one.
    assert decided(create(1), [taken], [DesiredHosts(NYC, 0, "plan")]).desired == {NYC: 1}


def test_a_host_that_is_taken_back_costs_until_then() -> None:
    taken = host(1, reclaim_at=NOW + timedelta(hours=2))
    full = msgspec.structs.replace(RICH, ceilings=Ceilings(3, 1_000 * PICO_PER_USD))
    more = create(2, known=("host-2",))
    decision = decided(more, [taken, host(2)], [DesiredHosts(NYC, 1, "plan")], money=full)
    assert results(decision) == [("create", "done"), ("create", "refused")]
    assert "there are 3 hosts" in details(decision)


def test_a_host_is_destroyed_by_name_when_nothing_runs_on_it() -> None:
    hosts, desired = [host(1), host(2)], [DesiredHosts(NYC, 2, "plan")]
    assert decided(destroy("host-1", drained=False), hosts, desired) == Decision({}, [], [])
    decision = decided(destroy("host-1"), hosts, desired)
    assert decision.desired == {NYC: 1}
    assert [(intent.name, why) for intent, why in decision.retired] == [
        ("host-1", "the autoscaler's plan: idle")
    ]
    gone = msgspec.structs.replace(hosts[0], wanted=False)
    assert decided(destroy("host-1"), [gone, hosts[1]], [DesiredHosts(NYC, 1, "plan")]).retired == []


def test_no_host_is_destroyed_below_the_minimum_or_of_the_operators_own() -> None:
    limits = msgspec.structs.replace(LIMITS, min_awake=2)
    rows = [DesiredHosts(NYC, 1, "plan")]
    kept = decided(destroy("host-1", awake=1), [host(1)], rows, limits=limits)
    assert (kept.retired, results(kept)) == ([], [("destroy", "refused")])
    assert "at least 2" in details(kept)
    own = HostGroup("digitalocean", "nyc2", OWN, "m")
    paid = decided(destroy("host-1"), [host(1, own)], [DesiredHosts(own, 1, "plan")])
    assert (paid.retired, results(paid)) == ([], [("destroy", "refused")])


def test_a_persons_group_is_left_alone_until_it_expires() -> None:
    person = [DesiredHosts(NYC, 1)]
    assert decided(destroy("host-1"), [host(1)], person).retired == []
    # The next region is used, and the person's hosts count.
    assert decided(create(known=("host-1",)), [host(1)], person).desired == {TOR: 1}
    # One that is desired and not there yet counts for the plan, too.
    assert decided(create(), [], person) == Decision({}, [], [])
    nyc = parse_places("*=digitalocean/nyc2")
    only = decided(create(known=("host-1",)), [host(1)], person, places=nyc)
    assert results(only) == [("create", "refused")]
    assert "a person decides" in details(only)
    until = NOW + timedelta(seconds=1)
    assert decided(destroy("host-1"), [host(1)], [DesiredHosts(NYC, 1, "person", until)]).desired == {}
    expired = [DesiredHosts(NYC, 1, "person", NOW)]
    assert decided(StoredPlan(), [host(1)], expired).desired == {NYC: 1}
    assert decided(destroy("host-1"), [host(1)], expired).desired == {NYC: 0}


def test_the_next_region_is_tried_while_one_fails() -> None:
    failed = written(1, failures=1, failed_at=NOW - timedelta(seconds=5))
    decision = decided(create(), [failed], [DesiredHosts(NYC, 1, "plan")])
    assert decision.retired == [(failed, GIVEN_UP)]
    assert decision.desired == {NYC: 0, TOR: 1}
    there = written(2, TOR, failures=2, failed_at=NOW - timedelta(seconds=5))
    rows = [DesiredHosts(NYC, 1, "plan"), DesiredHosts(TOR, 1, "plan")]
    nowhere = decided(create(), [failed, there], rows)
    assert nowhere.desired == {NYC: 0, TOR: 0}
    assert "nyc2: 1 creations failed, next attempt in 25 s" in details(nowhere)
    assert "tor1: 2 creations failed, next attempt in 55 s" in details(nowhere)
    # After the pause one host is tried at a time.
    past = host(
        1, state=IntentState.ENDED, wanted=False, ended_at=NOW, failures=1,
        failed_at=NOW - timedelta(minutes=2), joined_at=None, fit_at=None,
    )  # fmt: skip
    only = parse_places("*=digitalocean/nyc2")
    trial = decided(create(3), [past], places=only)
    assert (trial.desired, results(trial)) == ({NYC: 1}, [("create", "done"), ("create", "refused")])


def test_a_host_that_cannot_be_called_is_given_up_in_time() -> None:
    rows = [DesiredHosts(NYC, 1, "plan")]
    assert decided(StoredPlan(), [written(1)], rows).retired == []
    late = written(1, requested_at=NOW - CALL_WITHIN)
    assert decided(StoredPlan(), [late], rows).retired == [(late, GIVEN_UP)]
    assert decided(StoredPlan(), [late], [DesiredHosts(NYC, 1)]).retired == []


@pytest.mark.parametrize(
    ("limits", "money", "places", "words"),
    [
        (msgspec.structs.replace(LIMITS, host_kinds=(OTHER,)), RICH, PLACES, "not allowed for it any more"),
        (LIMITS, RICH, Places(), "PENSTOCK_HOST_PLACES names no provider"),
        (LIMITS, RICH, parse_places("*=local/here"), "local/here: the provider is not set up"),
        (LIMITS, msgspec.structs.replace(RICH, prices={}), PLACES, "the price of gpu-h100x1-80gb is not known"),
        (LIMITS, msgspec.structs.replace(RICH, ceilings=Ceilings(1, 10**18)), PLACES, "PENSTOCK_HOSTS_MAX is 1"),
        (
            LIMITS,
            msgspec.structs.replace(RICH, ceilings=Ceilings(9, 7 * PICO_PER_USD)),
            PLACES,
            "more than PENSTOCK_HOSTS_MAX_USD_PER_HOUR, 7.00",
        ),
        (
            msgspec.structs.replace(LIMITS, budget_usd_pico_per_month=107 * PICO_PER_USD),
            msgspec.structs.replace(RICH, spent={"m": 100 * PICO_PER_USD}),
            PLACES,
            "the month's budget of m is 107.00 USD: 100.00 are spent",
        ),
        (
            LIMITS,
            msgspec.structs.replace(RICH, spent={"x": 100 * PICO_PER_USD}, month_budget=107 * PICO_PER_USD),
            PLACES,
            "the month's budget of the platform is 107.00 USD",
        ),
    ],
)  # fmt: skip
def test_a_creation_is_refused_with_the_reason(
    limits: ScalingLimits, money: Money, places: Places, words: str
) -> None:
    """One host runs, which costs 4 dollars per hour, as the next one does."""
    rows = [DesiredHosts(NYC, 1, "plan")]
    decision = decided(create(known=("host-1",)), [host(1)], rows, limits=limits, money=money, places=places)
    assert (decision.desired, results(decision)) == ({}, [("create", "refused")])
    assert words in details(decision)


def over(
    spent_usd: int, *, budget: int | None = None, platform: int | None = None, least: int = 0
) -> dict[str, object]:
    limits = msgspec.structs.replace(
        LIMITS, min_awake=least, budget_usd_pico_per_month=budget and budget * PICO_PER_USD
    )
    money = msgspec.structs.replace(
        RICH, spent={"m": spent_usd * PICO_PER_USD}, month_budget=platform and platform * PICO_PER_USD
    )
    return {"limits": limits, "money": money}


def test_hosts_for_whose_next_hour_the_budget_of_the_month_has_no_room_are_retired_the_newest_first() -> None:
    hosts = [host(number, requested_at=NOW - timedelta(hours=5 - number)) for number in (1, 2, 3)]
    rows, plan = [DesiredHosts(NYC, 3, "plan")], StoredPlan((PlannedModel("m", 3),))
    assert decided(plan, hosts, rows, **over(88, budget=100)).retired == []
    for given_ in (over(92, budget=100), over(92, platform=100)):
        decision = decided(plan, hosts, rows, **given_)
        assert [intent.name for intent, _ in decision.retired] == ["host-3"]
        assert decision.desired == {NYC: 2}
        assert "are spent, and the next hour would cost 12.00" in decision.acts[0].reason
    spent = decided(plan, hosts, rows, **over(101, budget=100))
    assert [intent.name for intent, _ in spent.retired] == ["host-3", "host-2", "host-1"]
    dry = decided(plan, hosts, rows, mode=Mode.DRY_RUN, **over(99, budget=100))
    assert (dry.retired, set(results(dry))) == ([], {("destroy", "dry-run")})
    assert decided(plan, hosts, rows, mode=Mode.OFF, **over(99, budget=100)) == Decision({}, [], [])
    # A host that leaves already is not made up for by another one.
    leaving = [*hosts[:2], msgspec.structs.replace(hosts[2], wanted=False)]
    left = decided(plan, leaving, [DesiredHosts(NYC, 2, "plan")], **over(92, budget=100))
    assert left.retired == []


def test_the_minimum_persons_and_the_operators_own_hosts_stay_beyond_the_budget() -> None:
    rows, plan = [DesiredHosts(NYC, 3, "plan")], StoredPlan((PlannedModel("m", 6),))
    hosts = [host(number) for number in (1, 2, 3)]  # two replicas each
    decision = decided(plan, hosts, rows, **over(101, budget=100, least=3))
    assert [intent.name for intent, _ in decision.retired] == ["host-3"]
    assert ("destroy", "refused") in results(decision)
    assert "at least 3 replicas have to be awake, and without it 2 would be" in details(decision)
    persons = decided(plan, hosts, [DesiredHosts(NYC, 3)], **over(101, budget=100))
    assert (persons.retired, set(results(persons))) == ([], {("destroy", "refused")})
    own = HostGroup("digitalocean", "nyc2", OWN, "m")
    paid = decided(plan, [host(1, own)], [DesiredHosts(own, 1, "plan")], **over(101, budget=100))
    assert paid == Decision({}, [], [])


def test_hosts_under_a_contract_are_kept_and_count_for_no_budget() -> None:
    """The oldest is covered, whatever the plan says; the younger one of its kind is an ordinary host."""
    one = Contracts((contract(ends_at=NOW + timedelta(days=30)),))
    rows = [DesiredHosts(NYC, 2, "plan")]
    hosts = [host(1), host(2, requested_at=NOW - timedelta(minutes=30))]
    decision = decided(destroy("host-1", "host-2"), hosts, rows, contracts=one)
    assert [intent.name for intent, _ in decision.retired] == ["host-2"]
    assert (
        "it is paid for by contract 00000000-0000-0000-0000-00000000004d until 2026-12-28 12:00 UTC"
        in details(decision)
    )
    plan = StoredPlan((PlannedModel("m", 2),))
    # 95 are spent of 100: the next hour of one host at 4 has room, that of two has not.
    kept = decided(plan, hosts, rows, contracts=one, **over(95, budget=100))
    assert kept == Decision({}, [], [])
    assert [name.name for name, _ in decided(plan, hosts, rows, **over(95, budget=100)).retired] == ["host-2"]
    gone = decided(plan, hosts, rows, contracts=one, **over(101, budget=100))
    assert [name.name for name, _ in gone.retired] == ["host-2"], "not the covered one"


@pytest.mark.parametrize(
    ("running", "created"),
    [
        (Contracts((contract(2),)), 1),
        (Contracts((contract(3),)), 2),
        (Contracts((contract(3, "tor1"),)), 0),
        (Contracts((contract(3, "nyc2"),)), 2),
        (Contracts((contract(2),), (RunningHost("rack-1", KIND, "home", NOW - timedelta(days=9)),)), 0),
        (Contracts(), 0),
    ],
    ids=["one-free", "two-free", "elsewhere", "here", "a-joined-host-holds-it", "none"],
)
def test_hosts_are_created_for_a_contract_although_a_budget_is_spent(
    running: Contracts, created: int
) -> None:
    nyc = parse_places("*=digitalocean/nyc2")
    decision = decided(
        create(3, known=("host-1",)),
        [host(1)],
        [DesiredHosts(NYC, 1, "plan")],
        places=nyc,
        contracts=running,
        **over(99, budget=100, least=1),
    )
    assert [result for act, result in results(decision) if act == "create"].count("done") == created
    assert decision.desired == ({NYC: 1 + created} if created else {})
    # A host that a person does not want any more leaves its place to others.
    left = msgspec.structs.replace(host(9), wanted=False, requested_at=NOW - timedelta(days=2))
    again = decided(
        create(1, known=("host-1",)),
        [left, host(1)],
        [DesiredHosts(NYC, 1, "plan")],
        places=nyc,
        contracts=Contracts((contract(2),)),
        **over(90, budget=100),
    )
    assert results(again) == [("create", "done")]


def test_the_price_of_a_contract_stands_in_for_one_that_is_not_known() -> None:
    unpriced = msgspec.structs.replace(RICH, prices={})
    covered = decided(create(), money=unpriced, contracts=Contracts((contract(),)))
    assert covered.desired == {NYC: 1}
    low = msgspec.structs.replace(unpriced, ceilings=Ceilings(100, 2 * PICO_PER_USD))
    refused = decided(create(), money=low, contracts=Contracts((contract(),)))
    assert "one more 3.00: more than PENSTOCK_HOSTS_MAX_USD_PER_HOUR" in details(refused)


@pytest.mark.parametrize(
    "other",
    [
        {"fit_at": None, "refused_since": NOW},
        {"fit_at": None},  # its agent joined, and neither checks nor a replica were reported
        {"reclaim_at": NOW + timedelta(minutes=4)},
        {"joined_at": None, "fit_at": None, "status": "new"},
    ],
)
def test_the_only_host_that_serves_is_not_the_one_that_goes_for_the_budget(other: dict[str, object]) -> None:
    rows, plan = [DesiredHosts(NYC, 2, "plan")], StoredPlan((PlannedModel("m", 1),))
    hosts = [host(1, **other), host(2, requested_at=NOW - timedelta(minutes=30))]
    decision = decided(plan, hosts, rows, **over(101, budget=100, least=1))
    assert [intent.name for intent, _ in decision.retired] == ["host-1"]
    assert [(act.target, act.result) for act in decision.acts] == [("host-1", "done"), ("host-2", "refused")]


def test_replicas_on_hosts_that_joined_by_themselves_count_for_the_minimum() -> None:
    rows, plan = [DesiredHosts(NYC, 1, "plan")], StoredPlan((PlannedModel("m", 5),))
    decision = decided(plan, [host(1)], rows, **over(101, budget=100, least=0))
    assert [intent.name for intent, _ in decision.retired] == ["host-1"]


def test_no_host_is_created_that_the_same_budget_would_soon_stop() -> None:
    plan = create()
    assert results(decided(plan, **over(91, budget=100))) == [("create", "done")]
    assert results(decided(plan, **over(93, budget=100))) == [("create", "refused")]


def test_the_next_provider_is_tried_where_one_is_at_its_ceiling() -> None:
    prices = {(provider, KIND): PRICE for provider in ("digitalocean", "local")}
    full = Money(Ceilings(1, 10**18), prices, {})
    both = frozenset({"digitalocean", "local"})
    places = parse_places("*=digitalocean/nyc2,local/here")
    rows = [DesiredHosts(NYC, 1, "plan")]
    plan = create(known=("host-1",))
    decision = decided(plan, [host(1)], rows, money=full, places=places, providers=both)
    assert decision.desired == {HostGroup("local", "here", KIND, "m"): 1}
    nowhere = decided(
        create(2, known=("host-1",)), [host(1)], rows, money=full, places=places, providers=both
    )
    assert results(nowhere) == [("create", "done"), ("create", "refused")]
    assert "digitalocean/nyc2: there are 1 hosts" in details(nowhere)
    assert "local/here: there are 1 hosts" in details(nowhere)


def test_modes() -> None:
    rows, hosts = [DesiredHosts(NYC, 1, "plan")], [host(1)]
    both = msgspec.structs.replace(
        create(known=("host-1",)), destroy=destroy("host-1", drained=False).destroy
    )
    off = decided(both, hosts, rows, mode=Mode.OFF)
    assert off == Decision({}, [], [])
    dry = decided(both, hosts, rows, mode=Mode.DRY_RUN)
    assert (dry.desired, dry.retired) == ({}, [])
    assert results(dry) == [("destroy", "dry-run"), ("create", "dry-run")]
    assert decided(both, hosts, rows, limits=None) == Decision({}, [], [])
    assert mode_of(Mode.ON, None, has_limits=True) is Mode.ON
    assert mode_of(Mode.ON, Mode.DRY_RUN, has_limits=True) is Mode.DRY_RUN
    assert mode_of(Mode.DRY_RUN, Mode.ON, has_limits=True) is Mode.DRY_RUN
    assert mode_of(Mode.OFF, Mode.ON, has_limits=True) is Mode.OFF
    assert mode_of(Mode.ON, Mode.ON, has_limits=False) is Mode.OFF


def test_places_by_kind() -> None:
    places = parse_places(" a = digitalocean/nyc2 , local/here ; *=local/there;")
    assert places.of("a") == (Place("digitalocean", "nyc2"), Place("local", "here"))
    assert places.of("b") == (Place("local", "there"),)
    assert parse_places("").of("a") == ()
    for wrong in ("a", "a=", "=local/here", "a=local", "a=local/x;a=local/y", "a=local/x,"):
        with pytest.raises(InvalidRequest, match="PENSTOCK_HOST_PLACES has"):
            parse_places(wrong)


class Pool:
    """Rows and intents, with a pass that writes and calls intents as `fates` say."""

    def __init__(self, fates: list[int]) -> None:
        self.rows: dict[HostGroup, DesiredHosts] = {}
        self.intents: dict[str, Intent] = {}
        self.fates = fates
        self.made = 0

    def situation(self, plan: StoredPlan, budget: int) -> Situation:
        return Situation(
            now=NOW,
            plan=plan,
            desired=list(self.rows.values()),
            intents=list(self.intents.values()),
            places=PLACES,
            providers=frozenset({"digitalocean"}),
            own=frozenset(),
            limits={"m": ScalingLimits(1, 8, None, (KIND,), None, budget)},
            money=RICH,
            mode=Mode.ON,
        )

    def apply(self, decision: Decision) -> None:
        for group, count in decision.desired.items():
            self.rows[group] = DesiredHosts(group, count, "plan")
        for intent, why in decision.retired:
            self.intents[intent.name] = msgspec.structs.replace(intent, wanted=False, why=why)

    def reconcile(self) -> None:
        """Write missing intents; each is called, refused or left as its fate says."""
        for group, row in self.rows.items():
            held = [one for one in self.intents.values() if one.wanted and one.group == group]
            for _ in range(row.count - len(held)):
                self.made += 1
                fate = self.fates[self.made % len(self.fates)]
                one = written(1_000 + self.made, group)
                if fate == 1:
                    one = host(1_000 + self.made, group)
                elif fate == 2:
                    one = written(1_000 + self.made, group, failures=1, failed_at=NOW)
                self.intents[one.name] = one

    @property
    def wanted(self) -> list[Intent]:
        return [one for one in self.intents.values() if one.wanted]


@given(
    fates=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    looks=st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12
    ),
    budget_hosts=st.integers(0, 6),
    pinned=st.one_of(st.none(), st.integers(0, 3)),
)
def test_random_plans_and_providers(
    fates: list[int], looks: list[tuple[int, bool, bool, int]], budget_hosts: int, pinned: int | None
) -> None:
    """No plan creates more than it asks for, however often it is read; budget, minimum and persons are respected."""
    pool = Pool(fates)
    if pinned is not None:
        pool.rows[NYC] = DesiredHosts(NYC, pinned)
        pool.reconcile()
    budget = budget_hosts * PRICE
    for count, removes, reconciles, awake in looks:
        known = tuple(sorted(one.name for one in pool.wanted))
        removed = [one.name for one in pool.wanted if one.state is IntentState.EXISTS][:1] if removes else []
        plan = StoredPlan(
            (PlannedModel("m", awake),),
            (PlannedCreation(KIND, "m", count, "load"),) if count else (),
            tuple(PlannedRemoval(name, "idle", drained=True) for name in removed),
            known,
        )
        owed = {group: row.count for group, row in pool.rows.items()}
        before = max(len(known), sum(owed.values()))
        for _ in range(3):  # the same plan is read three times
            decision = decide_hosts(pool.situation(plan, budget))
            if awake < 1:
                assert all(why == GIVEN_UP for _, why in decision.retired)
            for intent, why in decision.retired:
                assert why == GIVEN_UP or intent.name in removed or "budget" in why
            created = sum(act.act == "create" and act.result == "done" for act in decision.acts)
            pool.apply(decision)
            rows = sum(row.count for row in pool.rows.values())
            if created:
                assert max(rows, len(pool.wanted)) * PRICE <= budget
            if pinned is not None:
                assert pool.rows[NYC] == DesiredHosts(NYC, pinned)
                assert all(one.group != NYC for one, _ in decision.retired)
            if reconciles:
                pool.reconcile()
            assert max(rows, len(pool.wanted)) <= before + count


def planned(*rows: tuple[int, tuple[str, ...]], known: tuple[str, ...] = ()) -> StoredPlan:
    create = [PlannedCreation(KIND, "m", count, "load", regions) for count, regions in rows]
    anywhere = tuple(row for row in create if not row.regions)
    there = tuple(row for row in create if row.regions)
    return StoredPlan((PlannedModel("m", 3),), anywhere, known=known, create_there=there)


def test_hosts_for_a_region_are_created_there_and_count_for_no_other() -> None:
    assert decided(planned((1, ("tor1",)))).desired == {TOR: 1}
    here = [host(1), host(2)], [DesiredHosts(NYC, 2, "plan")]
    assert decided(planned((1, ("tor1",)), known=("host-1", "host-2")), *here).desired == {TOR: 1}
    both = planned((1, ()), (1, ("tor1",)), known=("host-1", "host-2"))
    assert decided(both, *here).desired == {NYC: 3, TOR: 1}
    # The same plan again, after its hosts were written down.
    later = (
        [*here[0], written(3), written(4, TOR)],
        [DesiredHosts(NYC, 3, "plan"), DesiredHosts(TOR, 1, "plan")],
    )
    assert decided(both, *later).desired == {}
    assert decided(both, [*here[0], written(4, TOR)], [*here[1], DesiredHosts(TOR, 1, "plan")]).desired == {
        NYC: 3
    }


def test_a_budget_that_is_used_up_keeps_the_minimum_of_a_region() -> None:
    limits = msgspec.structs.replace(
        LIMITS, budget_usd_pico_per_month=0, regions=(RegionReplicas("tor1", 1, 4),)
    )
    hosts = [host(1, TOR), host(2), host(3)]
    groups = [DesiredHosts(NYC, 2, "plan"), DesiredHosts(TOR, 1, "plan")]
    decision = decided(StoredPlan((PlannedModel("m", 3),)), hosts, groups, limits=limits)
    assert {one.name for one, _ in decision.retired} == {"host-2", "host-3"}
    assert "at least 1 replicas have to be awake in tor1" in details(decision)


def test_a_budget_that_is_used_up_keeps_the_minimum_of_a_kind() -> None:
    limits = msgspec.structs.replace(LIMITS, budget_usd_pico_per_month=0, kinds=(KindReplicas(OTHER, 1, 4),))
    other = msgspec.structs.replace(NYC, kind=OTHER)
    hosts = [host(1, other), host(2), host(3)]
    groups = [DesiredHosts(NYC, 2, "plan"), DesiredHosts(other, 1, "plan")]
    decision = decided(StoredPlan((PlannedModel("m", 3),)), hosts, groups, limits=limits)
    assert {one.name for one, _ in decision.retired} == {"host-2", "host-3"}
    assert f"at least 1 replicas have to be awake on hosts of kind {OTHER}" in details(decision)


def test_a_region_in_which_no_host_can_be_created_gets_none_elsewhere() -> None:
    refused = decided(
        planned((1, ("tor1",)), (1, ())), places=Places({KIND: (Place("digitalocean", "nyc2"),)})
    )
    assert refused.desired == {NYC: 1}
    assert results(refused) == [("create", "refused"), ("create", "done")]
    assert f"names no provider for hosts of kind {KIND} in tor1" in details(refused)
    failed = written(1, TOR, failures=1, failed_at=NOW, wanted=False)
    waits = decided(planned((1, ("tor1",)), (2, ())), [failed])
    assert waits.desired.get(NYC) == 2
    assert "tor1: 1 creations failed, next attempt in 30 s" in details(waits)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([(), ("tor1",), ("nyc2",), ("nyc2", "tor1")])),
        max_size=4,
    ),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_whatever_is_planned_for_regions_every_host_is_created_once_where_it_may_be(
    rows: list[tuple[int, tuple[str, ...]]], in_nyc: int, in_tor: int
) -> None:
    intents = [host(number + 1, NYC if number < in_nyc else TOR) for number in range(in_nyc + in_tor)]
    desired = [DesiredHosts(NYC, in_nyc, "plan"), DesiredHosts(TOR, in_tor, "plan")]
    asked = {regions: count for count, regions in rows}
    known = tuple(one.name for one in intents)
    plan = planned(*((count, regions) for regions, count in asked.items()), known=known)
    decision = decided(plan, intents, desired)
    new = {group.region: count for group, count in decision.desired.items()}
    nyc, tor = new.get("nyc2", in_nyc) - in_nyc, new.get("tor1", in_tor) - in_tor
    assert nyc + tor == sum(asked.values())
    assert nyc >= asked.get(("nyc2",), 0)
    assert tor >= asked.get(("tor1",), 0)
    again = [DesiredHosts(group, count, "plan") for group, count in decision.desired.items()]
    kept = [row for row in desired if row.group not in decision.desired]
    assert decided(plan, intents, [*again, *kept]).desired == {}
