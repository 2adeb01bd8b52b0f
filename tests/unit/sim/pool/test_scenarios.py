"""Failure modes that routers shipped: ours has none of them, and whoever has one is found out."""

import math

import pytest

from core.errors import InvalidRequest
from sim.pool.contract import Record
from sim.pool.registry import Variant
from sim.pool.scenarios.figures import shares, ttft
from sim.pool.scenarios.registry import SCENARIOS, SEEDS, judge, scenario
from sim.pool.scenarios.report import markdown
from sim.pool.scenarios.scenario import at_least, at_most, worst
from sim.pool.scenarios.shipped import SHIPPED, policy_of
from sim.pool.scenarios.traffic import make_request

BITES = [(name, policy) for name, each in SCENARIOS.items() for policy in each.must_fail]
NAMED_IN_NOTES = {
    "shared-system-prompt", "tie-starvation", "stale-herd", "smallest-tree-spiral", "long-prompt-one-token",
    "kv-saturation", "affinity-collapse", "burst-pile-up", "unbounded-trie", "dead-backend", "scale-down-hot-cache",
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_ours_passes(name: str) -> None:
    verdict = judge(SCENARIOS[name])
    assert verdict.ok, [finding.text for finding in verdict.findings if not finding.ok]


@pytest.mark.parametrize(("name", "policy"), BITES)
def test_whoever_has_the_fault_fails(name: str, policy: str) -> None:
    """With one of the seeds that ours passes with; the first that does is enough, since the worst seed counts."""
    assert any(not judge(SCENARIOS[name], policy, [seed]).ok for seed in SEEDS)


def test_every_known_failure_mode_is_there_and_each_bites_somebody() -> None:
    assert SCENARIOS.keys() >= NAMED_IN_NOTES
    assert all(each.must_fail and each.about for each in SCENARIOS.values())
    assert SHIPPED.keys() <= {policy for each in SCENARIOS.values() for policy in each.must_fail}


def test_the_same_seed_gives_the_same_figures() -> None:
    played = SCENARIOS["tie-starvation"]
    ours = policy_of("penstock", Variant())
    assert played.findings(ours, 4) == played.findings(ours, 4)
    assert played.setup(4).requests != played.setup(5).requests


def test_a_finding_says_what_it_is_and_nothing_known_is_never_good() -> None:
    share = at_most("requests on one replica", 0.314, 0.45, "%")
    assert share.ok
    assert share.text == "requests on one replica: 31 % (at most 45 %)"
    assert at_least("TTFT", 1.25, 2.0, "s").text == "TTFT: 1.2 s (at least 2 s)"
    assert at_most("blocks", 1_234_567, 10).text == "blocks: 1,234,567 (at most 10)"
    assert at_most("TTFT", math.inf, 2.0, "s").text == "TTFT: never (at most 2 s)"
    assert not at_most("x", math.nan, 1.0).ok
    assert not at_least("x", math.nan, 1.0).ok


def test_of_several_seeds_the_worst_counts() -> None:
    runs = [
        [at_most("a", 1.0, 5.0), at_least("b", 9.0, 5.0)],
        [at_most("a", 6.0, 5.0), at_least("b", 4.0, 5.0)],
    ]
    assert [finding.value for finding in worst(runs)] == [6.0, 4.0]
    nothing_known = [[at_most("a", 1.0, 5.0)], [at_most("a", math.nan, 5.0)], [at_most("a", 2.0, 5.0)]]
    assert not worst(nothing_known)[0].ok


def test_who_never_got_a_first_token_waits_for_ever() -> None:
    served = Record(make_request(1.0, "t", 100, 10, 1), 0, "r0", first_token_at=3.0)
    lost = Record(make_request(1.0, "t", 100, 10, 2), 0)
    assert ttft([served, lost], 0.0) == 2.0
    assert ttft([served, lost], 0.99) == math.inf
    assert shares([served, lost], 2) == [1.0, 0.0]


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="shared-system-prompt"):
        scenario("no-such")
    with pytest.raises(InvalidRequest, match="longest_match"):
        judge(SCENARIOS["tie-starvation"], "no-such")


def test_the_page_has_a_row_for_each_with_the_figures_that_fail() -> None:
    played = SCENARIOS["tie-starvation"]
    page = markdown(
        {played.name: [judge(played, policy, seeds=(1,)) for policy in ("penstock", "first_of_equals")]},
        "Played today.",
    )
    assert "do not edit. Played today." in page
    (row,) = [line for line in page.splitlines() if line.startswith("| tie-starvation |")]
    assert "at least 10 %" in row
    assert "**" not in row.split("|")[4]
    assert "`first_of_equals`: **0 %**, **62 %**" in row
    assert "fewest requests, ties to the first in the list" in page
