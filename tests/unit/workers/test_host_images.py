"""Hosts of another image than their group's are replaced one at a time, as far as a rollout allows; an image that fails
is given up."""

import msgspec
import pytest

from core.money import usd_to_pico
from tests.support.host_play import FLEET, GROUPS, Play
from workers.providers.ceilings import Ceilings
from workers.providers.intents import Intent, IntentState
from workers.providers.interface import ImageRollout

GROUP = GROUPS[0]
COUNT = 3
EVERY_S = 60
A_HOST_S = 3600
"""Longer than one host takes: until it serves, 30 minutes of service, and the drain of the old one."""


class ImagePlay(Play):
    """A group of COUNT hosts that serve; hosts of the image `bad` never join."""

    def __init__(self) -> None:
        super().__init__()
        self.desire(GROUP, COUNT)
        self.most = self.fewest = COUNT
        """Hosts of the group that ran, and that were wanted and served."""
        self.run(60, EVERY_S)
        assert len(self.images) == COUNT

    def join(self) -> None:
        super().join()
        for intent in list(self.store.intents.values()):
            if intent.image == "bad":
                self.store.intents[intent.intent_id] = msgspec.structs.replace(
                    intent, joined_at=None, fit_at=None, first_fit_at=None
                )

    @property
    def images(self) -> list[str]:
        """Images of the group's droplets that run."""
        return [one.image for one in self.cloud.alive()]

    @property
    def serving(self) -> list[Intent]:
        return [one for one in self.store.intents.values() if one.wanted and one.joined_at]

    def roll(self, most: int, *, surge: bool = True, gives_room: bool = False) -> None:
        """At most `most` hosts are made from the image `new` from now on; 0 = it is rolled back."""
        self.store.roll_image(GROUP, ImageRollout("new", most, surge, gives_room))

    def watch(self, hosts: int) -> None:
        """The time that `hosts` replacements take, looking after each pass."""
        self.most, self.fewest = len(self.images), len(self.serving)
        for _ in range(hosts * A_HOST_S // EVERY_S):
            self.run(1, EVERY_S)
            self.most = max(self.most, len(self.images))
            self.fewest = min(self.fewest, len(self.serving))

    @property
    def image(self) -> str:
        """The group's image."""
        [row] = self.store.wanted
        return row.image


@pytest.mark.parametrize(("surge", "most", "fewest"), [(True, COUNT + 1, COUNT), (False, COUNT, COUNT - 1)])
def test_hosts_move_to_an_image_one_at_a_time(surge: bool, most: int, fewest: int) -> None:
    play = ImagePlay()
    assert set(play.images) == {"gpu-h100x1-base"}
    play.store.set_image(GROUP, "new", surge=surge)
    play.watch(COUNT + 1)
    assert play.images == ["new"] * COUNT
    assert (play.most, play.fewest) == (most, fewest)
    assert not [one for one in play.store.intents.values() if one.failures]
    before = dict(play.cloud.droplets)
    play.watch(1)
    assert play.cloud.droplets == before, "nothing is left to replace"


def test_the_image_of_before_brings_the_hosts_back() -> None:
    play = ImagePlay()
    play.store.set_image(GROUP, "one")
    play.watch(COUNT + 1)
    play.store.set_image(GROUP, "two")
    play.watch(1)
    assert {"one", "two"} == set(play.images)
    play.store.set_image(GROUP, "one")
    play.watch(COUNT)
    assert play.images == ["one"] * COUNT
    assert play.fewest == COUNT


def test_without_an_image_no_host_is_replaced() -> None:
    play = ImagePlay()
    play.store.set_image(GROUP, "one")
    play.run(3, EVERY_S)
    play.store.set_image(GROUP, "")
    play.watch(2)
    assert set(play.images) == {"gpu-h100x1-base"}


@pytest.mark.parametrize("surge", [True, False])
def test_an_image_that_fails_is_given_up_for_the_one_of_before(surge: bool) -> None:
    play = ImagePlay()
    play.store.set_image(GROUP, "good")
    play.watch(COUNT + 1)
    play.store.set_image(GROUP, "bad", surge=surge)
    play.watch(COUNT + 2)
    assert play.image == "good"
    assert play.images == ["good"] * COUNT
    assert play.fewest == (COUNT if surge else COUNT - 1), "only the first host was at risk"
    assert play.counts["GiveUpImage"] == 1
    tried = [one for one in play.store.intents.values() if one.image == "bad"]
    assert 2 <= len(tried) <= 3
    assert {one.state for one in tried} == {IntentState.ENDED}
    told = [result.detail for _, result in play.store.events if result.call == "replace"]
    assert any("the image bad of gpu-h100x1-80gb in nyc2 a is given up" in line for line in told)

    play.store.set_image(GROUP, "bad", surge=surge)
    play.run(10, EVERY_S)
    assert play.image == "bad", "failures of before it was set again do not count"


def test_a_host_whose_image_is_not_known_is_one_of_another_image() -> None:
    play = ImagePlay()
    for intent in list(play.store.intents.values()):
        play.store.intents[intent.intent_id] = msgspec.structs.replace(intent, image="")
    play.run(1)
    assert {one.image for one in play.store.intents.values()} == {"gpu-h100x1-base"}, "its provider tells"


ALL = 1024
OLD = "gpu-h100x1-base"


@pytest.mark.parametrize(
    ("surge", "canary", "most", "fewest"),
    [
        (True, ["new", *[OLD] * COUNT], COUNT + 1, COUNT),
        (False, ["new", *[OLD] * (COUNT - 1)], COUNT, COUNT - 1),
    ],
)
def test_a_canary_stays_as_small_as_it_is_and_a_promoted_image_replaces_the_rest(
    surge: bool, canary: list[str], most: int, fewest: int
) -> None:
    play = ImagePlay()
    play.roll(1, surge=surge)
    play.watch(4)
    assert sorted(play.images) == sorted(canary)
    assert (play.most, play.fewest) == (most, fewest)
    play.roll(ALL, surge=surge)
    play.watch(COUNT + 1)
    assert play.images == ["new"] * COUNT
    assert play.fewest >= fewest
    play.store.roll_image(GROUP, None)
    play.store.set_image(GROUP, "new")
    play.watch(1)
    assert play.images == ["new"] * COUNT


@pytest.mark.parametrize(
    ("surge", "most", "fewest"), [(True, 1, COUNT), (False, 1, COUNT - 1), (True, 2, COUNT)]
)
def test_a_roll_back_destroys_the_hosts_of_the_image_alone(surge: bool, most: int, fewest: int) -> None:
    play = ImagePlay()
    play.roll(most, surge=surge)
    play.watch(most + 2)
    assert play.images.count("new") == most
    old = {one.droplet_id for one in play.cloud.alive() if one.image == OLD}
    play.roll(0, surge=surge)
    if surge and most == 1:
        play.run(1, EVERY_S)
        [leaving] = [one for one in play.store.intents.values() if one.image == "new"]
        assert not leaving.wanted, "the host beside the usual number goes at once"
    play.watch(most + 1)
    assert play.images == [OLD] * COUNT
    assert old <= {one.droplet_id for one in play.cloud.alive()}
    assert play.fewest >= fewest
    play.store.roll_image(GROUP, None)
    play.watch(1)
    assert play.images == [OLD] * COUNT


def test_hosts_that_the_plan_adds_during_a_canary_get_the_image_of_before() -> None:
    play = ImagePlay()
    play.roll(1)
    play.watch(2)
    play.desire(GROUP, COUNT + 2)
    play.watch(1)
    assert sorted(play.images) == sorted(["new", *[OLD] * (COUNT + 1)])
    play.desire(GROUP, 1)
    play.watch(1)
    assert sorted(play.images) == [OLD, "new"], "both stay to be compared"
    play.desire(GROUP, 0)
    play.run(30, EVERY_S)
    assert play.images == []


def test_on_a_full_pool_a_host_leaves_first_where_one_may_be_missing() -> None:
    play = ImagePlay()
    play.ceilings = Ceilings(COUNT, usd_to_pico("10000"))
    play.use_fleet(FLEET)
    play.roll(1)
    play.watch(1)
    assert play.images == [OLD] * COUNT, "none may be missing"
    play.roll(1, gives_room=True)
    play.watch(2)
    assert sorted(play.images) == sorted(["new", *[OLD] * (COUNT - 1)])
    assert (play.most, play.fewest) == (COUNT, COUNT - 1)
    play.roll(ALL, gives_room=True)
    play.watch(COUNT + 1)
    assert play.images == ["new"] * COUNT
    assert (play.most, play.fewest) == (COUNT, COUNT - 1)


def test_a_canary_that_fails_is_tried_again_and_takes_no_other_host() -> None:
    play = ImagePlay()
    play.store.roll_image(GROUP, ImageRollout("bad", 1, True, True))
    play.watch(4)
    assert play.images.count(OLD) == COUNT
    assert play.fewest == COUNT
    assert play.counts["GiveUpImage"] == 0, "the scheduler decides that"
    assert len([one for one in play.store.intents.values() if one.image == "bad" and one.failures]) >= 2
