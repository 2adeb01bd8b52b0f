"""Rollouts of images: what the scheduler decides of the hosts, and how replicas are told apart and compared."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from admin.rollouts import ANSWER_BOUNDS
from core.db import Database
from scheduler.core.image_rollout import SEEN_WITHIN_S, ImageHost, ImageHosts, ImageSituation, decide_image
from scheduler.core.rollout import Member, Verdict
from scheduler.core.state import SchedulerState
from scheduler.image_answers import FIRST_PAUSE_S
from scheduler.image_hosts import failures_in_a_row
from scheduler.rollout_store import RolloutStore
from scheduler.rollouts import SETTLE_S, RolloutRunner
from tests.support.clock import ManualClock
from tests.support.scheduling import MODEL, beat, replica
from workers.acting.plan import PoolAct
from workers.engine_sleep import Proof
from workers.engine_spec import EngineSpec
from workers.providers.intents import Intent
from workers.replica_states import Phase
from workers.rollouts import ImageChange, Progress, Rollout, RolloutState, RolloutUpdate, Strategy
from workers.wire import CommandResult, ReplicaCommand, ReplicaState

NOW = datetime(2026, 11, 28, tzinfo=UTC)
OLD_HOSTS = tuple(ImageHost(f"old-{n}", new=False, wanted=True) for n in range(2))
NEW_HOST = ImageHost("new-0", new=True, wanted=True)
SERVES = Member("new-0/m-0", "", ReplicaState.READY, phase=Phase.READY, ready_s=60.0)
CANARY, PROGRESSING, BACK = RolloutState.CANARY, RolloutState.PROGRESSING, RolloutState.ROLLING_BACK


def situation(
    state: RolloutState = CANARY, *hosts: ImageHost, member: Member | None = SERVES, **facts: Any
) -> ImageSituation:
    """Two hosts are desired; the new one has one replica."""
    seen = ImageHosts(2, hosts or (*OLD_HOSTS, NEW_HOST))
    given = {"seen": seen, "verdict": Verdict(), "strategy": Strategy(canary_percent=10), **facts}
    return ImageSituation(state, canaries=1, members={NEW_HOST.name: [member] if member else []}, **given)


def failed(count: int) -> ImageHosts:
    return ImageHosts(2, OLD_HOSTS, count, "new-1: its checks have refused it for 15 minutes")


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (
            situation(seen=failed(2)),
            "2 hosts of the image failed; the last one: new-1: its checks have refused it",
        ),
        (
            situation(member=msgspec.structs.replace(SERVES, phase=Phase.UNFIT, detail="no GPU")),
            "new-0/m-0 is not fit to serve: no GPU",
        ),
        (
            situation(member=msgspec.structs.replace(SERVES, failures=2, detail="exit 1")),
            "new-0/m-0 failed 2 times: exit 1",
        ),
        (situation(verdict=Verdict("it is slow")), "the new image is worse: it is slow"),
        (situation(PROGRESSING, verdict=Verdict("it is slow")), "the new image is worse: it is slow"),
        (situation(seen=ImageHosts(0)), "no hosts of the group are desired any more"),
        (situation(state_s=90_000.0), "the canary was not promoted within 86400 s"),
        (
            situation(CANARY, *OLD_HOSTS, stalled_s=1_801.0),
            "no progress for 1800 s: no host of the image was created",
        ),
        (situation(member=None, stalled_s=1_801.0), "no progress for 1800 s: new-0 does not serve"),
        (
            situation(seen=failed(1), stalled_s=1_801.0),
            "no progress for 1800 s: new-1: its checks have refused it",
        ),
        (situation(PROGRESSING, stalled_s=1_801.0), "no progress for 1800 s"),
    ],
)
def test_what_ends_a_rollout_rolls_it_back_with_its_reason(now: ImageSituation, reason: str) -> None:
    found = decide_image(now)
    assert found.state is BACK
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    "now",
    [
        situation(seen=failed(1)),
        situation(stalled_s=1_801.0),  # its host serves, so it waits for an admin
        situation(stalled_s=1_801.0, verdict=Verdict(enough=True)),
        situation(strategy=Strategy(canary_percent=10, promote_after_s=60.0), state_s=61.0),
        situation(strategy=Strategy(canary_percent=10, promote_after_s=60.0), verdict=Verdict(enough=True)),
        situation(
            strategy=Strategy(canary_percent=10, promote_after_s=60.0),
            state_s=61.0,
            verdict=Verdict(enough=True),
            member=msgspec.structs.replace(SERVES, ready_s=1.0),
        ),
    ],
)
def test_a_canary_waits(now: ImageSituation) -> None:
    assert decide_image(now).state is CANARY


def test_a_canary_without_a_regression_is_promoted_by_rule() -> None:
    rule = Strategy(canary_percent=10, promote_after_s=60.0)
    found = decide_image(situation(strategy=rule, state_s=61.0, verdict=Verdict(enough=True)))
    assert (found.state, found.reason) == (PROGRESSING, "promoted by rule: no regression within 60 s")


def test_it_is_promoted_when_all_hosts_have_the_image_and_serve() -> None:
    second, rests = ImageHost("new-1", new=True, wanted=True), Member("r", "", ReplicaState.STOPPED)
    leaving = msgspec.structs.replace(OLD_HOSTS[0], wanted=False)
    now = situation(PROGRESSING, NEW_HOST, second, leaving)
    now.members["new-1"] = [msgspec.structs.replace(SERVES, name="new-1/m-0"), rests]
    assert decide_image(now).state is RolloutState.PROMOTED
    now.members["new-1"] = [Member("new-1/m-0", "", ReplicaState.LOADING)]
    assert decide_image(now).state is PROGRESSING
    assert decide_image(situation(PROGRESSING, NEW_HOST)).state is PROGRESSING, "another one is desired"
    assert decide_image(situation(PROGRESSING, OLD_HOSTS[0], NEW_HOST)).state is PROGRESSING


def test_a_roll_back_ends_when_no_host_of_the_image_stays_or_names_those_that_do() -> None:
    gone = msgspec.structs.replace(NEW_HOST, wanted=False)
    assert decide_image(situation(BACK, *OLD_HOSTS, gone, state_s=1.0)).state is BACK
    assert (
        decide_image(situation(BACK, *OLD_HOSTS, gone, state_s=SEEN_WITHIN_S)).state
        is RolloutState.ROLLED_BACK
    )
    assert decide_image(situation(BACK, state_s=60.0)).state is BACK
    late = decide_image(situation(BACK, state_s=60.0, stalled_s=1_801.0))
    assert late.state is RolloutState.ROLLED_BACK
    assert late.reason.startswith("new-0 could not be replaced in time; `penstock hosts set-image`")
    assert decide_image(situation(RolloutState.PROMOTED)).state is RolloutState.PROMOTED


def test_only_failures_since_a_host_of_the_image_was_last_fit_count() -> None:
    def at(minute: int) -> datetime:
        return NOW.replace(minute=minute)

    def host(minute: int | None = None, fit: int | None = None) -> Intent:
        failed_at, first_fit_at = (None if each is None else at(each) for each in (minute, fit))
        return Intent(
            intent_id=uuid4(),
            provider="digitalocean",
            region="nyc2",
            kind="k",
            model=MODEL,
            name="h",
            requested_at=NOW,
            failed_at=failed_at,
            first_fit_at=first_fit_at,
        )

    first, last = host(5), host(25)
    assert failures_in_a_row([first, host(), last], at(1)) == [first, last]
    assert failures_in_a_row([first, last], at(10)) == [last]
    assert failures_in_a_row([first, host(fit=15), last], at(1)) == [last]
    assert failures_in_a_row([], at(1)) == []


class World:
    """A scheduler with a host of the old image and one of the new, each with one replica."""

    def __init__(self, **strategy: object) -> None:
        self.clock = ManualClock()
        self.store = RolloutStore(Database("postgresql://penstock@127.0.0.1:1/none"), 1)
        self.acts: list[PoolAct] = []
        self.commands: list[ReplicaCommand] = []
        self.state = SchedulerState("epoch", 0.0)
        self.runner = RolloutRunner(self.store, self.acts.append, self.clock.monotonic)
        self.runner.connect(
            lambda runner, command: self.commands.append(command),
            lambda agent: False,
            lambda agent: f"sim-{agent}",
        )
        quick: dict[str, Any] = {"min_ready_s": 0.0, "canary_percent": 10, **ANSWER_BOUNDS} | strategy
        image = ImageChange("digitalocean", "nyc2", "k", "", "77")
        self.rollout = Rollout(
            uuid4(), MODEL, EngineSpec(), EngineSpec(), Strategy(**quick), CANARY, "driver", NOW, NOW, None, Progress(),
            image=image,
        )  # fmt: skip
        self.store.active = {MODEL: self.rollout}
        hosts = (ImageHost("old", new=False, wanted=True), ImageHost("new", new=True, wanted=True))
        self.store.image_hosts = {MODEL: ImageHosts(1, hosts)}
        self.clock.advance(2 * SETTLE_S)

    def look(self, version: str = "") -> list[ReplicaCommand]:
        """The commands that follow from a look."""
        self.clock.advance(1.0)
        for host in ("old", "new", "other"):
            row = replica(
                f"{host}/m",
                version=version,
                boot_id=f"boot-{host}",
                deploys=True,
                phase="ready",
                phase_s=60.0,
            )
            beaten = msgspec.structs.replace(beat(row, agent=host), host_id=f"sim-{host}")
            self.state.heartbeat(beaten, self.clock.monotonic())
            self.runner.comparison.on_heartbeat(beaten, lambda name: 0, self.clock.monotonic())
        before = len(self.commands)
        self.runner.run(self.state)
        return self.commands[before:]

    @property
    def update(self) -> RolloutUpdate:
        return self.store._updates[MODEL]

    def answer(self, command: ReplicaCommand, *tokens: str, ok: bool = True) -> None:
        proofs = msgspec.json.encode([Proof(tokens, (-0.1,) * len(tokens))] if tokens else []).decode()
        self.runner.send(CommandResult(command.command_id, ok, proofs))


def test_replicas_on_hosts_of_the_new_image_are_the_canary() -> None:
    world = World()
    world.look()
    progress = world.update.progress
    assert (progress.wanted, progress.replicas, progress.updated, progress.available) == (1, 2, 1, 2)
    assert progress.new is not None
    assert progress.old is not None
    assert (progress.old.version, progress.new.version) == ("image of the settings", "image 77")
    canary = world.state.fleet._pools[MODEL].canary
    assert canary is not None
    assert {host: canary.track_of_replica("", host) for host in ("old", "new", "other")} == {
        "old": "stable", "new": "canary", "other": "stable"
    }  # fmt: skip
    assert world.runner.is_canary(MODEL)
    world.store.active = {MODEL: msgspec.structs.replace(world.rollout, state=PROGRESSING)}
    assert world.runner.is_canary(MODEL), "the plan may wake replicas while hosts are replaced"


def test_nothing_is_decided_before_the_hosts_are_read() -> None:
    world = World()
    world.store.image_hosts = {}
    assert world.look() == []
    assert MODEL not in world.store._updates


def test_what_the_hosts_say_ends_the_rollout_and_is_in_the_timeline() -> None:
    world = World()
    seen = world.store.image_hosts[MODEL]
    world.store.image_hosts = {MODEL: msgspec.structs.replace(seen, failures=2, why="new-1: refused")}
    world.look()
    assert world.update.state is BACK
    assert [(act.target, act.act) for act in world.acts] == [("image 77", "rolling_back")]


def test_a_new_hosts_replica_gets_the_promoted_version_during_a_rollout_of_an_image() -> None:
    world = World()
    world.store.deployed = {MODEL: EngineSpec(engine_version="0.33.0")}
    assert {command.action for command in world.look()} == {"answers", "deploy"}


def test_answers_are_compared_across_hosts_and_others_end_the_rollout() -> None:
    world = World()
    asked = {command.replica_id: command for command in world.look()}
    assert {(name, command.action) for name, command in asked.items()} == {
        ("old/m", "answers"),
        ("new/m", "answers"),
    }
    assert world.look() == []
    world.answer(asked["new/m"], "a", "b")
    world.answer(asked["old/m"], "a", "b")
    assert world.look() == []
    assert world.update.state is CANARY
    figures = world.update.progress.new
    assert figures is not None
    assert (figures.agreement, figures.logprob_distance) == (1.0, 0.0)

    other = World()
    asked = {command.replica_id: command for command in other.look()}
    other.answer(asked["old/m"], "a", "b")
    other.answer(asked["new/m"], "a", "c")
    other.look()
    assert other.update.state is BACK
    assert other.update.reason.startswith(
        "the new image is worse: new/m: it has not the stored greedy answer"
    )


def test_an_agent_that_gives_no_answers_is_asked_again_after_a_pause() -> None:
    world = World()
    for command in world.look():
        world.answer(command, ok=command.replica_id == "new/m")
    assert world.look() == []
    world.clock.advance(FIRST_PAUSE_S)
    assert len(world.look()) == 2
    assert world.update.state is CANARY


def test_answers_of_other_versions_are_not_compared() -> None:
    assert [command.action for command in World().look(version="0a1b2c3d")] == []
