"""A pass with another fleet, account or database, or that meets hosts of another installation, acts on nothing."""

import msgspec
import pytest

from tests.support.host_play import GROUPS, Play
from workers.providers.intents import IntentState
from workers.providers.interface import DesiredHosts, HostGroup
from workers.providers.ownership import Claim
from workers.providers.reconciler import PassReport, Reconciler


@pytest.fixture
def play() -> Play:
    """Two hosts run."""
    play = Play()
    play.cloud.create_s = 0
    play.desire(GROUPS[0], 2)
    play.run(4)
    assert len(play.cloud.alive()) == 2
    return play


def passes(play: Play, count: int = 3) -> PassReport:
    """Passes an hour apart, in which every host that is not seen would end."""
    for _ in range(count):
        play.time.at += 3600
        report = play.pass_once()
    return report


def writes(play: Play) -> list[str]:
    return [call.operation for call in play.cloud.calls if call.operation in ("create", "destroy")]


def test_the_first_pass_writes_down_whose_hosts_they_are(play: Play) -> None:
    assert play.store.owner == Claim("test", play.cloud.team_uuid, "1-1")


def test_another_fleet_creates_and_destroys_nothing_and_says_so(play: Play) -> None:
    before = dict(play.store.intents)
    play.use_fleet("prod")
    report = passes(play)
    assert writes(play) == ["create", "create"]
    assert play.store.intents == before
    assert report.stopped == (
        "digitalocean: PENSTOCK_FLEET is prod, and was test. Nothing is created or destroyed. If no other installation "
        "uses these hosts, run `penstock hosts adopt digitalocean --fleet prod --account "
        f"{play.cloud.team_uuid} --reason WHY`"
    )
    play.use_fleet("test")
    assert passes(play, 1).complete


def test_another_account_creates_nothing(play: Play) -> None:
    play.cloud.team_uuid = ""
    play.cloud.droplets.clear()
    report = passes(play)
    assert (
        f"the account is {play.cloud.account_uuid}, and was 5df3e3004a17e242b7c20ca6c9fc25b701a47ece"
        in report.stopped
    )
    assert writes(play) == ["create", "create"]


def test_a_database_that_was_restored_elsewhere_creates_nothing(play: Play) -> None:
    play.store.database = "2-1"
    play.store.wanted = [DesiredHosts(GROUPS[0], 5)]
    assert "the database is 2-1, and was 1-1" in passes(play).stopped
    assert writes(play) == ["create", "create"]


def test_nothing_is_done_while_the_account_cannot_be_read(play: Play) -> None:
    play.cloud.denied.add("account")
    play.desire(GROUPS[0], 3)
    report = passes(play)
    assert (report.complete, report.stopped) == (False, "")
    assert writes(play) == ["create", "create"]
    assert play.store.events[-1][1].status == 403
    assert play.store.notices[-1] == (
        "digitalocean: account was refused (403): You are not authorized to perform this operation. "
        "Nothing is created or destroyed"
    )


def test_a_copy_of_the_database_beside_the_original_stops_when_the_other_creates(play: Play) -> None:
    """A copy of the files has the same identity: it is only known by hosts that it has not created."""
    original = dict(play.store.intents)
    play.desire(GROUPS[0], 3)
    play.run(3)
    third = max(play.cloud.alive(), key=lambda one: one.droplet_id)
    play.store.intents = original
    play.desire(GROUPS[0], 0)
    report = passes(play)
    assert f"this database did not create {third.name}" in report.stopped
    assert len(play.cloud.alive()) == 3
    play.store.owner = msgspec.structs.replace(play.store.owner, confirmed_at=play.time.now())
    passes(play)
    assert play.cloud.alive() == []


def test_a_new_database_does_not_take_the_hosts_of_a_fleet_that_exists(play: Play) -> None:
    play.store.intents = {}
    play.store.owner = Claim()
    assert "this database did not create test-" in passes(play).stopped
    assert play.store.owner == Claim()
    assert len(play.cloud.alive()) == 2


def test_a_host_with_our_name_and_without_our_tag_is_reported_and_left_alone(play: Play) -> None:
    named = play.cloud.create("test-0123456789ab", "gpu-h100x1-80gb", "nyc2", [])
    assert passes(play).complete
    assert play.store.notices[0].startswith(
        "digitalocean: test-0123456789ab has a name of this fleet and neither its tag nor an intent"
    )
    assert named in play.cloud.alive()


@pytest.mark.parametrize("group", GROUPS)
def test_hosts_whose_tags_were_taken_off_are_still_known(group: HostGroup) -> None:
    play = Play()
    play.cloud.create_s = 0
    play.desire(group, 1)
    play.run(4)
    [droplet] = play.cloud.alive()
    droplet.tags = []
    passes(play)
    assert play.cloud.alive() == [droplet]
    assert [one.state for one in play.store.intents.values()] == [IntentState.EXISTS]


def test_a_dry_run_writes_no_owner_down() -> None:
    play = Play()
    play.reconciler = Reconciler(
        play.hosts(), play.store, fleet="test", new_id=play.new_id, ceilings=play.ceilings, dry_run=True
    )
    assert passes(play).complete
    assert play.store.owner == Claim()


def test_parts_that_are_not_known_yet_contradict_nothing(play: Play) -> None:
    play.store.owner = Claim(fleet="test")
    assert passes(play, 1).complete
    assert play.store.owner == Claim("test", play.cloud.team_uuid, "1-1")
