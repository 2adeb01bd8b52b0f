"""Single rules of the decision on hosts, and of what a host costs."""

import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from core.money import PICO_PER_CENT, usd_to_pico
from workers.providers.ceilings import Ceilings, hold_to
from workers.providers.costs import billed_pico, host_cost_pico
from workers.providers.decide import (
    DESTROYED_AFTER,
    FIRST_PAUSE,
    FIT_WITHIN,
    GONE_AFTER,
    JOIN_WITHIN,
    LONGEST_PAUSE,
    REFUSED_AFTER,
    RUN_WITHIN,
    SILENT_WITHIN,
    START_WITHIN,
    UNCHECKED_AFTER,
    Observed,
    decide,
    pause,
)
from workers.providers.intents import (
    DRAIN_WITHIN,
    Act,
    Add,
    Adopt,
    Create,
    Destroy,
    End,
    Intent,
    IntentState,
    Missed,
    Retire,
    Saw,
    after_create,
    after_destroy,
    before_create,
    noted,
)
from workers.providers.interface import CallResult, DesiredHosts, HostGroup, ObservedHost, Outcome, Prices

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
GROUP = HostGroup("digitalocean", "nyc2", "gpu-h100x1-80gb", "m")
PRICE = usd_to_pico("3.39")


def intent(number: int, **fields: object) -> Intent:
    bare = Intent(
        intent_id=UUID(int=number),
        provider=GROUP.provider,
        region=GROUP.region,
        kind=GROUP.kind,
        model=GROUP.model,
        name=f"host-{number}",
        requested_at=NOW - timedelta(hours=1) + timedelta(seconds=number),
    )
    return msgspec.structs.replace(bare, **fields)


def existing(number: int, **fields: object) -> Intent:
    facts = {
        "state": IntentState.EXISTS,
        "provider_id": str(number),
        "status": "running",
        "status_since": NOW - timedelta(minutes=50),
        "running_at": NOW - timedelta(minutes=50),
        "joined_at": NOW - timedelta(minutes=45),
        "ran": True,
        "created_at": NOW - timedelta(minutes=55),
        "usd_pico_per_hour": PRICE,
        "billed": True,
    }
    return intent(number, **(facts | fields))


def shown(*numbers: int, **fields: object) -> Observed:
    hosts = [
        ObservedHost(
            str(n), f"host-{n}", GROUP.kind, GROUP.region, "running", NOW - timedelta(minutes=55), PRICE
        )
        for n in numbers
    ]
    return Observed(NOW, tuple(hosts), True, records=True, **fields)  # type: ignore[arg-type]


def acts(count: int, intents: list[Intent], observed: Observed, now: datetime = NOW) -> list[Act]:
    return decide([DesiredHosts(GROUP, count)], intents, observed, now)


def test_missing_hosts_are_written_down_before_any_call() -> None:
    assert acts(2, [], shown()) == [Add(GROUP), Add(GROUP)]
    assert acts(2, [intent(1), intent(2)], shown()) == [Create(UUID(int=1)), Create(UUID(int=2))]


def test_an_incomplete_list_lets_nothing_be_called_or_concluded() -> None:
    partial = Observed(NOW, (), complete=False)
    gone = existing(3, wanted=False)
    assert acts(3, [intent(1), existing(2), gone], partial) == [Add(GROUP)]


def test_surplus_is_taken_from_what_is_not_there_yet_then_from_the_newest() -> None:
    hosts = [existing(1), existing(2), intent(3, state=IntentState.CALLED, called_at=NOW), intent(4)]
    retired = [act.intent_id.int for act in acts(1, hosts, shown(1, 2)) if isinstance(act, Retire)]
    assert retired == [4, 3, 2]


def test_a_notice_of_reclaim_brings_a_replacement_at_once_and_ends_in_a_destroy() -> None:
    told = existing(1, reclaim_at=NOW + timedelta(hours=2))
    assert acts(1, [told], shown(1)) == [Add(GROUP)]
    later = NOW + timedelta(hours=2)
    assert acts(1, [told, existing(2)], shown(1, 2), later) == [
        Retire(UUID(int=1), "taken back by its provider", drained=True),
        Destroy(UUID(int=1)),
    ]


def test_a_host_that_may_run_engines_is_drained_before_it_is_destroyed_whatever_made_it_one_too_many() -> (
    None
):
    """As after a cancelled notice, when its replacement serves already."""
    [retire] = acts(1, [existing(1), existing(2)], shown(1, 2))
    assert retire == Retire(UUID(int=2), "not desired any more")
    drains = noted(existing(2), retire, NOW)
    assert drains.drain_until == NOW + DRAIN_WITHIN
    assert acts(1, [existing(1), drains], shown(1, 2)) == []
    assert acts(1, [existing(1), drains], shown(1, 2), NOW + DRAIN_WITHIN) == [Destroy(UUID(int=2))]
    emptied = msgspec.structs.replace(drains, drain_until=None)
    assert acts(1, [existing(1), emptied], shown(1, 2)) == [Destroy(UUID(int=2))]
    assert noted(existing(2, joined_at=None), retire, NOW).drain_until is None


def test_a_host_that_is_taken_back_ends_early_when_others_have_loaded_or_none_is_desired() -> None:
    told = existing(1, reclaim_at=NOW + timedelta(hours=2))
    retire = Retire(UUID(int=1), "its provider takes it back, and it is not needed until then")
    fresh = existing(2, fit_at=NOW - timedelta(minutes=29))
    assert acts(1, [told, fresh], shown(1, 2)) == []
    assert acts(1, [told, existing(2, fit_at=NOW - timedelta(minutes=30))], shown(1, 2)) == [retire]
    assert acts(0, [told], shown(1)) == [retire]
    later = existing(3, reclaim_at=NOW + timedelta(hours=3))
    assert [act for act in acts(1, [told, later], shown(1, 3)) if isinstance(act, Retire)] == [retire]


def test_an_orphan_is_adopted_and_destroyed_later_and_strangers_are_left_alone() -> None:
    observed = shown(7)
    assert acts(0, [], observed) == [Adopt(observed.hosts[0], "no intent: it is destroyed", "host-7")]
    stranger = msgspec.structs.replace(observed.hosts[0], tagged=False)
    assert acts(0, [], Observed(NOW, (stranger,), True)) == []


def test_a_destroy_waits_for_its_time_and_is_called_again() -> None:
    waiting = existing(1, wanted=False, next_at=NOW + timedelta(seconds=1))
    assert acts(0, [waiting], shown(1)) == []
    assert acts(0, [waiting], shown(1), NOW + timedelta(seconds=1)) == [Destroy(UUID(int=1))]


def test_a_host_without_a_record_of_its_end_ends_when_it_was_destroyed_or_first_missing() -> None:
    since = NOW - GONE_AFTER
    assert acts(1, [existing(1)], shown()) == [Missed(UUID(int=1))]
    young = existing(1, missing_since=since + timedelta(seconds=1))
    assert acts(1, [young], shown()) == []
    old = existing(1, missing_since=since)
    assert acts(1, [old], shown())[0] == End(UUID(int=1), since, "it is not shown any more")
    asked = NOW - timedelta(minutes=9)
    destroyed = existing(1, wanted=False, destroy_at=asked, missing_since=NOW - DESTROYED_AFTER)
    assert acts(0, [destroyed], shown())[0] == End(UUID(int=1), asked, "it is not shown any more")
    unread = msgspec.structs.replace(shown(), records=False)
    assert acts(1, [old], unread) == []


def test_a_host_that_does_not_start_is_replaced_and_counts_as_a_failure() -> None:
    stuck = existing(1, status="starting", status_since=NOW - START_WITHIN, running_at=None, joined_at=None)
    observed = shown(1)
    still = msgspec.structs.replace(
        observed, hosts=(msgspec.structs.replace(observed.hosts[0], status="starting"),)
    )
    retire, add, destroy = acts(1, [stuck], still)
    assert retire == Retire(UUID(int=1), "starting for 30 minutes", failed=True)
    assert (add, destroy) == (Add(GROUP), Destroy(UUID(int=1)))


def test_a_kind_that_failed_pauses_then_is_tried_with_one_host() -> None:
    failed = intent(1, failures=3, failed_at=NOW - 4 * FIRST_PAUSE + timedelta(seconds=1))
    assert acts(3, [failed, intent(2), intent(3)], shown()) == []
    failed = msgspec.structs.replace(failed, failed_at=NOW - 4 * FIRST_PAUSE)
    assert acts(3, [failed, intent(2), intent(3)], shown()) == [Create(UUID(int=1))]
    trying = intent(2, state=IntentState.CALLED, called_at=NOW)
    assert acts(3, [failed, trying, intent(3)], shown()) == []
    succeeded = existing(4, joined_at=NOW, fit_at=NOW)
    assert acts(4, [failed, intent(2), intent(3), succeeded], shown(4)) == [
        Create(UUID(int=n)) for n in (1, 2, 3)
    ]
    assert [pause(n) for n in (1, 2, 50)] == [FIRST_PAUSE, 2 * FIRST_PAUSE, LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("outcome", "state", "failures"),
    [
        (Outcome.REFUSED, IntentState.WRITTEN, 1),
        (Outcome.ABSENT, IntentState.WRITTEN, 1),
        (Outcome.THROTTLED, IntentState.WRITTEN, 0),
        (Outcome.UNKNOWN, IntentState.CALLED, 0),
    ],
)
def test_only_a_refusal_proves_that_a_create_made_nothing(
    outcome: Outcome, state: IntentState, failures: int
) -> None:
    called = before_create(intent(1), NOW)
    assert (called.state, called.called_at, called.calls) == (IntentState.CALLED, NOW, 1)
    after = after_create(called, CallResult("create", outcome), NOW)
    assert (after.state, after.failures) == (state, failures)


def test_a_destroy_that_was_agreed_to_is_no_end_and_is_dated_once() -> None:
    first = after_destroy(existing(1, wanted=False), CallResult("destroy", Outcome.OK), NOW)
    again = after_destroy(first, CallResult("destroy", Outcome.OK), NOW + timedelta(minutes=1))
    assert (again.state, again.destroy_at, again.next_at) == (
        IntentState.EXISTS,
        NOW,
        NOW + timedelta(minutes=2),
    )


def test_a_host_costs_seconds_at_least_sixty_in_whole_cents() -> None:
    assert billed_pico(PRICE, NOW, NOW + timedelta(hours=1)) == 339 * PICO_PER_CENT
    assert billed_pico(PRICE, NOW, NOW + timedelta(seconds=3)) == 6 * PICO_PER_CENT  # 60 s are 5.65 cents
    assert billed_pico(usd_to_pico("0.00893"), NOW, NOW + timedelta(seconds=3)) == PICO_PER_CENT
    assert (
        billed_pico(usd_to_pico("1.80"), NOW, NOW + timedelta(seconds=90)) == 5 * PICO_PER_CENT
    )  # 4.5 cents
    assert billed_pico(0, NOW, NOW + timedelta(hours=9)) == 0


def test_periods_of_a_host_add_up_and_nothing_is_charged_outside_of_its_life() -> None:
    end = NOW + timedelta(seconds=5_000)
    host = existing(1, created_at=NOW, state=IntentState.ENDED, ended_at=end, wanted=False)
    day = timedelta(days=1)
    whole = host_cost_pico(host, None, NOW + day)
    cuts = [NOW + timedelta(seconds=n) for n in (1, 1_234, 4_321)]
    edges = [NOW - day, *cuts, NOW + day]
    parts = [host_cost_pico(host, start, stop) for start, stop in itertools.pairwise(edges)]
    assert sum(parts) == whole == billed_pico(PRICE, NOW, end)
    assert host_cost_pico(host, NOW + day, NOW + 2 * day) == host_cost_pico(host, NOW - day, NOW) == 0
    assert host_cost_pico(msgspec.structs.replace(host, billed=False), None, end) == 0


def test_a_host_whose_agent_never_joins_is_replaced_and_counts_as_a_failure() -> None:
    silent = existing(1, running_at=NOW - JOIN_WITHIN, joined_at=None)
    retire, add, destroy = acts(1, [silent], shown(1))
    assert retire == Retire(
        UUID(int=1), "its agent sent no heartbeat within 30 minutes", failed=True, drained=True
    )
    assert (add, destroy) == (Add(GROUP), Destroy(UUID(int=1)))
    young = existing(1, running_at=NOW - JOIN_WITHIN + timedelta(seconds=1), joined_at=None)
    assert acts(1, [young], shown(1)) == []
    away = existing(1, running_at=NOW - JOIN_WITHIN, joined_at=None, missing_since=NOW)
    assert acts(1, [away], shown()) == []


def test_hosts_that_run_and_never_join_do_not_end_the_pause_of_their_kind() -> None:
    failed = [
        existing(n, state=IntentState.ENDED, wanted=False, joined_at=None, failures=1, failed_at=NOW)
        for n in (1, 2, 3)
    ]
    runs = existing(4, running_at=NOW, joined_at=None)
    assert acts(2, [*failed, runs, intent(5)], shown(4), NOW + 4 * FIRST_PAUSE) == []
    joined = msgspec.structs.replace(runs, joined_at=NOW + FIRST_PAUSE)
    soon = NOW + 4 * FIRST_PAUSE
    assert acts(2, [*failed, joined, intent(5)], shown(4), soon) == []  # its checks may still refuse it
    fit = msgspec.structs.replace(joined, fit_at=soon)
    assert acts(2, [*failed, fit, intent(5)], shown(4), soon) == [Create(UUID(int=5))]
    unchecked = NOW + FIRST_PAUSE + UNCHECKED_AFTER
    assert acts(2, [*failed, joined, intent(5)], shown(4), unchecked) == [Create(UUID(int=5))]
    idle = msgspec.structs.replace(joined, ran=False)
    assert acts(2, [*failed, idle, intent(5)], shown(4), unchecked) == []  # it comes to no replica


def test_a_host_that_joined_and_comes_to_no_replica_is_replaced() -> None:
    """As one whose agent ends and is started again for ever."""
    idle = existing(1, joined_at=NOW - RUN_WITHIN, ran=False)
    retire, add, destroy = acts(1, [idle], shown(1))
    why = "its agent reported neither checks nor a replica within 45 minutes"
    assert retire == Retire(UUID(int=1), why, failed=True, drained=True)
    assert (add, destroy) == (Add(GROUP), Destroy(UUID(int=1)))
    second = existing(2, joined_at=NOW - RUN_WITHIN, ran=False)
    retired = [act for act in acts(2, [idle, second], shown(1, 2)) if isinstance(act, Retire)]
    assert retired == [retire]
    kept: list[dict[str, object]] = [
        {"ran": True},
        {"fit_at": NOW - RUN_WITHIN},
        {"joined_at": NOW - RUN_WITHIN + timedelta(seconds=1)},
        {"refused_since": NOW},  # its checks have their own time
    ]
    for facts in kept:
        assert acts(1, [msgspec.structs.replace(idle, **facts)], shown(1)) == []
    assert acts(1, [msgspec.structs.replace(idle, missing_since=NOW)], shown()) == []


def test_unfit_hosts_of_a_kind_are_replaced_one_at_a_time() -> None:
    silent = [existing(n, running_at=NOW - JOIN_WITHIN, joined_at=None) for n in (1, 2)]
    refused = existing(3, refused_since=NOW - FIT_WITHIN)
    retired = [act for act in acts(3, [*silent, refused], shown(1, 2, 3)) if isinstance(act, Retire)]
    assert retired == [
        Retire(UUID(int=1), "its agent sent no heartbeat within 30 minutes", failed=True, drained=True)
    ]
    coming = existing(4, running_at=NOW, joined_at=None)
    assert acts(4, [*silent, refused, coming], shown(1, 2, 3, 4)) == []
    fit = existing(4, joined_at=NOW, fit_at=NOW)
    assert len(acts(4, [*silent, refused, fit], shown(1, 2, 3, 4))) == 3  # retire, add, destroy
    other = existing(5, kind="gpu-b300x8-2304gb-spot", running_at=NOW, joined_at=None)
    assert isinstance(acts(1, [silent[0], other], shown(1, 5))[0], Retire)


SILENT = "its agent has been silent for 30 minutes, though it runs"


def test_a_host_whose_agent_falls_silent_is_drained_and_replaced() -> None:
    silent = existing(1, fit_at=NOW - timedelta(hours=2), silent_since=NOW - SILENT_WITHIN)
    assert acts(1, [silent], shown(1)) == [Retire(UUID(int=1), SILENT, failed=True), Add(GROUP)]
    retired = noted(silent, Retire(UUID(int=1), SILENT, failed=True), NOW)
    assert (retired.drain_until, retired.failures) == (NOW + DRAIN_WITHIN, 1)
    later = NOW + DRAIN_WITHIN
    assert acts(0, [retired], shown(1), later - timedelta(seconds=1)) == []
    assert acts(0, [retired], shown(1), later) == [Destroy(UUID(int=1))]


@pytest.mark.parametrize(
    "facts",
    [
        {"silent_since": NOW - SILENT_WITHIN + timedelta(seconds=1)},
        {"silent_since": NOW - SILENT_WITHIN, "reclaim_at": NOW + timedelta(hours=1)},
        {"silent_since": None},
    ],
    ids=["soon", "taken back", "heard"],
)
def test_a_host_that_is_heard_or_silent_for_a_moment_stays(facts: dict[str, object]) -> None:
    assert acts(0 if "reclaim_at" in facts else 1, [existing(1, **facts)], shown(1))[:1] in (
        [],
        [Retire(UUID(int=1), "its provider takes it back, and it is not needed until then")],
    )


def test_a_silent_host_that_its_provider_does_not_show_as_running_is_no_silent_host() -> None:
    silent = existing(1, silent_since=NOW - SILENT_WITHIN)
    assert acts(1, [silent], shown()) == [Missed(UUID(int=1))]
    unsure = msgspec.structs.replace(shown(1), complete=False)
    assert acts(1, [silent], unsure) == []
    off = msgspec.structs.replace(shown(1).hosts[0], status="off")
    assert [type(act) for act in acts(1, [silent], msgspec.structs.replace(shown(1), hosts=(off,)))] == [Saw]


def test_silent_hosts_of_a_model_are_replaced_one_at_a_time() -> None:
    older = NOW - 2 * SILENT_WITHIN
    silent = [existing(n, silent_since=older + timedelta(seconds=n), fit_at=older) for n in (1, 2)]
    first = Retire(UUID(int=1), SILENT, failed=True)
    other = existing(3, model="b", silent_since=older, fit_at=older)
    desired = [DesiredHosts(GROUP, 2), DesiredHosts(other.group, 1)]
    made = decide(desired, [*silent, other], shown(1, 2, 3), NOW)
    assert [act for act in made if isinstance(act, Retire)] == [
        first,
        Retire(UUID(int=3), SILENT, failed=True),
    ]
    retired = noted(silent[0], first, NOW)
    coming = existing(4, running_at=NOW, joined_at=None)
    for known in ([retired, silent[1], existing(4, fit_at=NOW)], [silent[1], coming]):
        numbers = [one.intent_id.int for one in known]
        assert not [act for act in acts(2, known, shown(*numbers)) if isinstance(act, Retire)]
    serves = existing(4, fit_at=NOW)
    assert acts(2, [silent[1], serves], shown(2, 4))[0] == Retire(UUID(int=2), SILENT, failed=True)


def test_hosts_of_before_the_rule_may_stay_without_an_agent_that_is_known() -> None:
    old = existing(1, running_at=NOW - JOIN_WITHIN, joined_at=None, must_join=False)
    assert acts(1, [old], shown(1)) == []


def test_an_unfit_host_is_given_up_before_a_newer_one_that_serves() -> None:
    unfit = existing(1, requested_at=NOW - timedelta(days=2), refused_since=NOW)
    serves = existing(2, requested_at=NOW - timedelta(days=1), fit_at=NOW)
    assert acts(1, [unfit, serves], shown(1, 2))[0] == Retire(UUID(int=1), "not desired any more")


def test_a_host_that_its_checks_refuse_is_replaced_and_counts_as_a_failure() -> None:
    unfit = existing(1, refused_since=NOW - FIT_WITHIN)
    retire, add, destroy = acts(1, [unfit], shown(1))
    assert retire == Retire(
        UUID(int=1), "its checks have refused it for 15 minutes", failed=True, drained=True
    )
    assert (add, destroy) == (Add(GROUP), Destroy(UUID(int=1)))
    recent = existing(1, refused_since=NOW - FIT_WITHIN + timedelta(seconds=1))
    assert acts(1, [recent], shown(1)) == []


def test_refused_hosts_that_joined_do_not_end_the_pause_of_their_kind() -> None:
    ended = {"state": IntentState.ENDED, "wanted": False, "failures": 1}
    unfit = [
        existing(n, **ended, joined_at=NOW - timedelta(minutes=20 - n), failed_at=NOW, refused_since=NOW)
        for n in (1, 2, 3)
    ]
    older = existing(4, **ended, joined_at=None, failed_at=NOW - timedelta(minutes=18))
    waits = [*unfit, older, intent(5)]
    assert acts(1, waits, shown(), NOW + 4 * FIRST_PAUSE) == []
    assert acts(1, waits, shown(), NOW + 8 * FIRST_PAUSE) == [Create(UUID(int=5))]


def test_without_the_records_of_ends_a_host_ends_after_an_hour() -> None:
    refused = msgspec.structs.replace(shown(), records=False, refused=True)
    recent = existing(1, missing_since=NOW - REFUSED_AFTER + timedelta(seconds=1))
    assert acts(1, [recent], refused) == []
    old = existing(1, missing_since=NOW - REFUSED_AFTER)
    assert acts(1, [old], refused)[0] == End(UUID(int=1), NOW - REFUSED_AFTER, "it is not shown any more")
    accepted = intent(1, state=IntentState.CALLED, called_at=NOW - REFUSED_AFTER, provider_id="1")
    assert acts(1, [accepted], refused)[0] == End(
        UUID(int=1), NOW, "it was accepted and never appeared", failed=True
    )


def test_an_adopted_host_gets_a_name_of_its_own() -> None:
    observed = shown(7, 8)
    twin = msgspec.structs.replace(observed.hosts[1], name="host-7")
    both = msgspec.structs.replace(observed, hosts=(observed.hosts[0], twin))
    assert [act.name for act in acts(0, [], both) if isinstance(act, Adopt)] == ["host-7", "host-7.8"]
    ended = existing(1, provider_id="99", name="host-7", state=IntentState.ENDED, wanted=False)
    assert [act.name for act in acts(0, [ended], shown(7)) if isinstance(act, Adopt)] == ["host-7.7"]


PRICES = Prices({GROUP.kind: PRICE}, (), complete=True)


def held(ceilings: Ceilings, intents: list[Intent], prices: Prices = PRICES) -> tuple[list[int], list[str]]:
    creates: list[Act] = [Create(one.intent_id) for one in intents if one.state is IntentState.WRITTEN]
    kept, reasons = hold_to(ceilings, creates, intents, prices, NOW)
    return [act.intent_id.int for act in kept if isinstance(act, Create)], reasons


def test_a_ceiling_of_hosts_counts_those_that_start_and_end() -> None:
    ending = existing(1, wanted=False)
    coming = intent(2, state=IntentState.CALLED, called_at=NOW)
    ended = existing(3, state=IntentState.ENDED, wanted=False, ended_at=NOW)
    intents = [ending, coming, ended, intent(4), intent(5)]
    rich = usd_to_pico("1000")
    assert held(Ceilings(3, rich), intents) == ([4], ["there are 3 hosts, and PENSTOCK_HOSTS_MAX is 3"])
    assert held(Ceilings(4, rich), intents) == ([4, 5], [])
    assert held(Ceilings(0, rich), [intent(4)])[0] == []


def test_a_ceiling_of_spend_uses_the_prices_of_the_hosts_and_of_the_list() -> None:
    cheap = existing(1, usd_pico_per_hour=usd_to_pico("1.00"))
    intents = [cheap, intent(2), intent(3)]
    created, reasons = held(Ceilings(16, usd_to_pico("4.39")), intents)
    assert created == [2]
    assert reasons == [
        "hosts cost 4.39 USD per hour and one of gpu-h100x1-80gb costs 3.39: more than "
        "PENSTOCK_HOSTS_MAX_USD_PER_HOUR, 4.39"
    ]
    assert held(Ceilings(16, usd_to_pico("4.38")), intents)[0] == []
    found = Adopt(shown(9).hosts[0], "x", "host-9")
    kept, _ = hold_to(Ceilings(16, usd_to_pico("4.39")), [found, Create(UUID(int=2))], intents, PRICES, NOW)
    assert kept == [found]


def test_a_host_without_a_known_price_is_not_created() -> None:
    created, reasons = held(Ceilings(16, usd_to_pico("100")), [intent(1)], Prices({}, (), complete=False))
    assert created == []
    assert reasons == [
        "the price of gpu-h100x1-80gb is not known, so PENSTOCK_HOSTS_MAX_USD_PER_HOUR cannot be kept"
    ]


def test_nothing_is_created_while_the_price_of_a_host_that_may_exist_is_unknown() -> None:
    lost = intent(1, kind="gpu-b300x8-2304gb-spot", state=IntentState.CALLED, called_at=NOW)
    created, reasons = held(Ceilings(16, usd_to_pico("100")), [lost, intent(2)])
    assert created == []
    assert "the price of gpu-b300x8-2304gb-spot is not known" in reasons[0]
