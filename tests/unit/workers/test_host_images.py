"""Hosts of another image than their group's are replaced one at a time; an image that fails is given up."""

import msgspec
import pytest

from tests.support.host_play import GROUPS, Play
from workers.providers.intents import Intent, IntentState

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
