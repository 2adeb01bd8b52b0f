"""From the plan to hosts that several models share: one group, all of their limits, and equal parts of the cost."""

import msgspec
import pytest

from core.money import PICO_PER_USD
from tests.unit.workers.test_acting import KIND, LIMITS, NOW, PLACES, PRICE, RICH, host, results
from workers.acting.decide import Decision, Money, Situation, decide_hosts
from workers.acting.plan import Mode, PlannedCreation, PlannedModel, PlannedRemoval, StoredPlan
from workers.providers.intents import Intent
from workers.providers.interface import DesiredHosts, HostGroup, models_of
from workers.scaling import ScalingLimits

SHARES = "a,b[0-3]"
NYC = HostGroup("digitalocean", "nyc2", KIND, SHARES)
OWN = HostGroup("digitalocean", "nyc2", KIND, "a")
SHARED = msgspec.structs.replace(LIMITS, shares=SHARES)


def decided(
    plan: StoredPlan,
    intents: list[Intent],
    *,
    money: Money = RICH,
    a: ScalingLimits | None = SHARED,
    b: ScalingLimits | None = SHARED,
    groups: tuple[HostGroup, ...] = (NYC,),
) -> Decision:
    """Of hosts of the plan's groups."""
    counts = {group: sum(one.group == group for one in intents) for group in groups}
    return decide_hosts(
        Situation(
            now=NOW,
            plan=plan,
            desired=[DesiredHosts(group, count, "plan") for group, count in counts.items()],
            intents=intents,
            places=PLACES,
            providers=frozenset({"digitalocean"}),
            own=frozenset(),
            limits={name: each for name, each in (("a", a), ("b", b)) if each is not None},
            money=money,
            mode=Mode.ON,
        )
    )


def create(model: str = "a", known: tuple[str, ...] = ()) -> StoredPlan:
    return StoredPlan(create_shared=(PlannedCreation(KIND, model, 1, "load", shares=SHARES),), known=known)


def destroy(awake: dict[str, int]) -> StoredPlan:
    models = tuple(PlannedModel(name, count) for name, count in awake.items())
    return StoredPlan(models, destroy=(PlannedRemoval("host-1", "idle", True),), known=("host-1",))


def test_the_models_of_a_group() -> None:
    assert (models_of(""), models_of("m"), models_of("org/a, b[0-3],c[7]")) == (
        (),
        ("m",),
        ("org/a", "b", "c"),
    )


def test_a_shared_host_is_created_once_whichever_model_asks() -> None:
    assert decided(create(), []).desired == {NYC: 1}
    assert decided(create("a"), [host(1, NYC)]).desired == {}, "the plan did not know of it yet"
    assert decided(create("b"), [host(1, NYC)]).desired == {}
    assert decided(create("b", ("host-1",)), [host(1, NYC)]).desired == {NYC: 2}
    assert decided(create("a"), [host(1, OWN)], groups=(NYC, OWN)).desired == {NYC: 1}, "that is a's own"


@pytest.mark.parametrize("left_out", ["off", "no limits"])
def test_the_plan_acts_on_shared_hosts_where_it_does_for_all_their_models(left_out: str) -> None:
    b = msgspec.structs.replace(SHARED, acting=Mode.OFF) if left_out == "off" else None
    assert decided(create(), [], b=b) == Decision({}, [], [])
    assert decided(destroy({"a": 1}), [host(1, NYC)], b=b) == Decision({}, [], [])
    dry = msgspec.structs.replace(SHARED, acting=Mode.DRY_RUN)
    assert results(decided(create(), [], b=dry)) == [("create", "dry-run")]


def test_a_model_that_shares_no_more_or_with_others_gets_no_host_by_an_earlier_plan() -> None:
    decision = decided(create(), [], a=LIMITS)
    assert results(decision) == [("create", "refused")]
    assert "does not share its hosts with the same models any more" in decision.acts[0].detail


def test_a_shared_host_stays_while_one_of_its_models_is_below_its_minimum() -> None:
    least = msgspec.structs.replace(SHARED, min_awake=1)
    assert results(decided(destroy({"a": 1, "b": 0}), [host(1, NYC)], b=least)) == [("destroy", "refused")]
    gone = decided(destroy({"a": 1, "b": 1}), [host(1, NYC)], b=least)
    assert [one.name for one, _ in gone.retired] == ["host-1"]


def test_each_model_pays_an_equal_part_of_the_month() -> None:
    """Two hours of a host of 4 USD are needed for a creation; 10 were spent on shared hosts, 3 on hosts of `a`."""
    money = msgspec.structs.replace(RICH, spent={SHARES: 10 * PICO_PER_USD, "a": 3 * PICO_PER_USD})

    def results_with(a: float, b: float) -> list[tuple[str, str]]:
        limits = [
            msgspec.structs.replace(SHARED, budget_usd_pico_per_month=int(usd * PICO_PER_USD))
            for usd in (a, b)
        ]
        return results(decided(create(), [], money=money, a=limits[0], b=limits[1]))

    assert results_with(a=12.0, b=9.0) == [("create", "done")]
    assert results_with(a=11.9, b=9.0) == [("create", "refused")]
    assert results_with(a=12.0, b=8.9) == [("create", "refused")], "the other model pays, too"


def test_a_shared_host_goes_for_the_budget_of_any_of_its_models() -> None:
    """Its hour costs each 2 USD."""
    money = msgspec.structs.replace(RICH, spent={SHARES: 2 * PRICE})

    def retired(usd: float, least: int = 0) -> list[str]:
        limits = msgspec.structs.replace(
            SHARED, min_awake=least, budget_usd_pico_per_month=int(usd * PICO_PER_USD)
        )
        plan = StoredPlan((PlannedModel("a", 1), PlannedModel("b", 1)), known=("host-1",))
        return [one.name for one, _ in decided(plan, [host(1, NYC)], money=money, b=limits).retired]

    assert retired(6.0) == []
    assert retired(5.9) == ["host-1"]
    assert retired(5.9, least=1) == []
