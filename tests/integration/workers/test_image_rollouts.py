"""A rollout of an image through PostgreSQL, the fake cloud and the scheduler's code: promoted, refused, aborted."""

from typing import Any, Literal

import msgspec
import pytest
from sqlalchemy import text

from admin import hosts, models, rollouts
from admin.actor import Actor
from core.db import Database
from core.errors import Conflict, InvalidRequest
from jobs.hosts import reconcile_hosts
from scheduler.core.state import SchedulerState
from scheduler.rollout_store import RolloutStore
from scheduler.rollouts import SETTLE_S, RolloutRunner
from sim.digitalocean.cloud import FakeCloud
from tests.support.clock import ManualClock
from tests.support.host_cloud import cloud_settings as settings
from tests.support.scheduling import beat, replica
from workers.engine_spec import EngineSpec
from workers.wire import ReplicaCommand

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
MODEL = "penstock/tiny"
GROUP = {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x1-80gb", "model": MODEL}
CANARY = {"canary_percent": 10, "min_ready_s": 0.0}
_JOINED = text(
    "INSERT INTO hosts (host_id, host_kind, region, gpus, first_seen, last_seen) "
    "VALUES (:name, 'k', 'r', 1, now() - interval '2 hours', now())"
)
_CHECKED = text(
    "INSERT INTO host_acceptances (host_id, checked_at, stored_at, verdict, findings, figures) "
    "VALUES (:name, now(), now() - interval '40 minutes', :verdict, '[]', '{}')"
)


class Play:
    """Passes over the fake cloud, agents that are heard, and looks of a scheduler; nobody carries out commands."""

    def __init__(self, database: Database, cloud: tuple[FakeCloud, str]) -> None:
        self.database, (self.fake, url) = database, cloud
        self.fake.faults.hidden_s = 0
        self.settings = settings(url, digitalocean_image="first")
        self.clock = ManualClock()
        self.store = RolloutStore(database, 1)
        self.commands: list[ReplicaCommand] = []
        self.state = SchedulerState("epoch", 0.0)
        self.runner = RolloutRunner(self.store, lambda act: None, self.clock.monotonic)
        self.runner.connect(
            lambda runner, command: self.commands.append(command), lambda agent: False, lambda agent: agent
        )
        self.clock.advance(2 * SETTLE_S)

    async def begin(self, count: int, **strategy: Any) -> rollouts.RolloutView:
        await hosts.set_desired(self.database, ADMIN, **GROUP, count=count, reason="test")
        for _ in range(3):
            await self.turn()
        return await self.start(**strategy)

    async def start(self, image: str = "second", **strategy: Any) -> rollouts.RolloutView:
        made = await rollouts.start_rollout(
            self.database, ADMIN, model=MODEL, image=image, strategy=CANARY | strategy, reason="driver 590"
        )
        await self.write("UPDATE rollouts SET started_at = started_at - interval '3 hours'")
        return made

    async def write(self, statement: str) -> None:
        async with self.database.system() as connection:
            await connection.execute(text(statement))

    async def turn(self, bad: str = "bad") -> None:
        """A pass, in which engines end at once; hosts of the image `bad` fail their checks, others are fit."""
        await reconcile_hosts(self.database, self.settings)
        await self.write("UPDATE host_intents SET drain_until = NULL")
        await self.write(
            "UPDATE host_intents SET failed_at = now() - interval '1 hour' WHERE failed_at IS NOT NULL"
        )
        for host in await hosts.list_hosts(self.database, ADMIN):
            if host.joined_at is None and host.status == "running" and host.provider == "digitalocean":
                await self.join(host.name, "refused" if host.image == bad else "accepted")

    async def join(self, name: str, verdict: Literal["accepted", "refused"]) -> None:
        async with self.database.system() as connection:
            await connection.execute(_JOINED, {"name": name})
            await connection.execute(_CHECKED, {"name": name, "verdict": verdict})

    async def look(self) -> rollouts.RolloutView:
        """What a look of the scheduler makes of the rollout."""
        self.clock.advance(20.0)
        for host in await hosts.list_hosts(self.database, ADMIN):
            if host.joined_at is not None and host.wanted:
                row = replica(
                    f"{host.name}/tiny-0",
                    model=MODEL,
                    boot_id=host.name,
                    deploys=True,
                    phase="ready",
                    phase_s=99.0,
                )
                beaten = msgspec.structs.replace(beat(row, agent=host.name), host_id=host.name)
                self.state.heartbeat(beaten, self.clock.monotonic())
        await self.store.write()
        self.runner.run(self.state)
        await self.store.write()
        return await rollouts.last_rollout(self.database, ADMIN, model=MODEL)

    async def until(self, state: str, turns: int = 20, bad: str = "bad") -> rollouts.RolloutView:
        for _ in range(turns):
            await self.turn(bad)
            view = await self.look()
            if view.state == state:
                return view
        raise AssertionError(f"{view.state} after {turns} turns, not {state}: {view.reason}")

    @property
    def images(self) -> list[str]:
        return sorted(one.image for one in self.fake.alive())


@pytest.fixture
async def play(database: Database, cloud: tuple[FakeCloud, str]) -> Play:
    await models.add_model(database, ADMIN, name=MODEL)
    return Play(database, cloud)


async def test_a_good_image_serves_its_share_and_is_promoted_host_by_host(play: Play) -> None:
    begun = await play.begin(2)
    assert (begun.state, begun.old_version, begun.new_version) == (
        "canary",
        "image of the settings",
        "image second",
    )
    assert begun.image is not None
    assert begun.strategy.progress_deadline_s == rollouts.IMAGE_DEADLINES["progress_deadline_s"]
    for _ in range(5):
        await play.turn()
        view = await play.look()
    assert play.images == ["first", "first", "second"]
    assert (view.state, view.wanted, view.replicas, view.updated, view.available) == ("canary", 2, 3, 1, 3)
    canary = play.state.fleet._pools[MODEL].canary
    assert canary is not None
    [new] = [one.name for one in await hosts.list_hosts(play.database, ADMIN) if one.image == "second"]
    assert canary.agents == {new}
    with pytest.raises(Conflict, match="the image second of these hosts is being rolled out"):
        await hosts.set_image(play.database, ADMIN, **GROUP, image="third", reason="x")

    await hosts.set_desired(play.database, ADMIN, **GROUP, count=4, reason="demand")
    for _ in range(3):
        await play.turn()
    assert play.images == ["first", "first", "first", "second"], "a host of the plan gets the image of before"

    await rollouts.promote_rollout(play.database, ADMIN, model=MODEL, reason="good")
    ended = await play.until("promoted")
    assert ended.reason == "all 4 hosts have the new image"
    for _ in range(3):
        await play.turn()
    assert play.images == ["second"] * 4
    [group] = await hosts.list_desired(play.database, ADMIN)
    assert (group.image, group.outdated) == ("second", 0)
    assert play.store.deployed == {}, "the version of engines is as it was"
    with pytest.raises(Conflict, match="have the image second already"):
        await play.start()
    assert {command.action for command in play.commands} == {"answers"}


async def test_an_image_whose_hosts_fail_their_checks_is_rolled_back_with_the_reason(play: Play) -> None:
    await play.begin(1)
    ended = await play.until("rolled_back", bad="second")
    assert "2 hosts of the image failed; the last one: test-" in ended.reason
    assert ended.reason.endswith("its checks have refused it for 15 minutes")
    for _ in range(3):
        await play.turn()
    assert play.images == ["first"]
    [group] = await hosts.list_desired(play.database, ADMIN)
    assert group.image == ""
    tried = [one for one in await hosts.list_intents(play.database, ADMIN, ended=True) if one.failures]
    assert [one.state for one in tried] == ["ended"] * len(tried)
    assert len(tried) >= 2


async def test_an_aborted_canary_is_destroyed_and_new_hosts_have_the_image_of_before(play: Play) -> None:
    await play.begin(1)
    for _ in range(4):
        await play.turn()
        await play.look()
    assert play.images == ["first", "second"]
    [before] = [one.droplet_id for one in play.fake.alive() if one.image == "first"]
    await rollouts.abort_rollout(play.database, ADMIN, model=MODEL, reason="slow")
    ended = await play.until("rolled_back")
    assert ended.reason == "test: slow"
    await hosts.set_desired(play.database, ADMIN, **GROUP, count=2, reason="demand")
    for _ in range(4):
        await play.turn()
    assert play.images == ["first", "first"]
    assert before in {one.droplet_id for one in play.fake.alive()}, "it was left alone"


async def test_what_cannot_be_rolled_out_is_refused(play: Play) -> None:
    database = play.database

    async def begin(**given: Any) -> rollouts.RolloutView:
        facts: dict[str, Any] = {"image": "second", "reason": "x", **given}
        return await rollouts.start_rollout(database, ADMIN, model=MODEL, **facts)

    with pytest.raises(
        InvalidRequest, match=f"no hosts of digitalocean are desired for '{MODEL}'; `penstock"
    ):
        await begin()
    await play.begin(1)
    await rollouts.abort_rollout(database, ADMIN, model=MODEL, reason="x")
    with pytest.raises(Conflict, match="is being rolled out"):
        await begin()
    await play.until("rolled_back")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"image": "a b"}, "must be an id or slug"),
        ({"image": ""}, "image is empty"),
        ({"engine_version": "0.33.0"}, "changes nothing else, and engine_version was given"),
        ({"from_base": True}, "changes nothing else, and from_base was given"),
        (
            {"image": None, "host_kind": "k"},
            "host_kind chooses the hosts of an image, and no image was given",
        ),
        ({"region": "tor1"}, "are desired for 'penstock/tiny' there"),
        ({"strategy": {"max_surge": 0, "canary_percent": 10}}, "a canary would take the only host"),
    ]
    for given, problem in refused:
        with pytest.raises(InvalidRequest, match=problem):
            await begin(**given)
    with pytest.raises(Conflict, match="have the image first already"):
        await begin(image="first")
    await hosts.set_desired(database, ADMIN, **{**GROUP, "region": "tor1"}, count=1, reason="more")
    with pytest.raises(
        InvalidRequest, match=r"several groups .nyc2 gpu-h100x1-80gb, tor1 gpu-h100x1-80gb.; choose one"
    ):
        await begin()
    [host] = [one.name for one in await hosts.list_hosts(database, ADMIN) if one.region == "nyc2"]
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO model_seconds VALUES (:host, 'b', date_trunc('hour', now()), 'other', 'asleep', 1)"
            ),
            {"host": f"sim-{host}"},
        )
    with pytest.raises(Conflict, match=f"'other' runs on sim-{host}, too"):
        await begin(region="nyc2")
    await hosts.set_image(database, ADMIN, **GROUP, image="third", reason="x")
    with pytest.raises(Conflict, match="hosts are still being replaced by those of the image third"):
        await begin(region="nyc2")
    made = await begin(region="tor1", host_kind=GROUP["kind"])
    assert made.image is not None
    assert (made.image.region, made.new_spec) == ("tor1", msgspec.to_builtins(EngineSpec()))
