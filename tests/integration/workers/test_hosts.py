"""Hosts through PostgreSQL, DigitalOcean's own client and the fake cloud's HTTP: one life, faults, dry run, people."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import psutil
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from typer.testing import CliRunner

from admin import hosts, models, scaling
from admin.actor import Actor
from admin.host_costs import host_costs
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from core.money import usd_to_pico
from core.settings import Settings
from jobs import retention
from jobs.hosts import configured, reconcile_hosts, run_pass
from jobs.work import schedule
from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.faults import Fault
from tests.support.fake_droplets import TOKEN
from tests.support.host_cloud import cloud_settings as settings
from tests.support.processes import gone
from tests.support.waiting import until
from workers.host_acceptances import store_acceptance
from workers.host_credentials import join, read_credentials
from workers.join_token import parse_token
from workers.providers.ceilings import Ceilings
from workers.providers.intents import IntentState, Overtaken
from workers.providers.interface import CallResult, HostRequest, Outcome, Prices
from workers.providers.local import LocalProcesses
from workers.providers.reconciler import Reconciler
from workers.providers.store import DatabaseIntents, prune_events, read_intents
from workers.wire import AcceptanceReport

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
FINANCE = Actor(kind="cli", id="f", label="f", role="finance")
MODEL = "penstock/tiny"
GROUP = {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x1-80gb", "model": MODEL}


@pytest.fixture(autouse=True)
async def offered(database: Database) -> None:
    await models.add_model(database, ADMIN, name=MODEL)


async def want(database: Database, count: int) -> hosts.DesiredView:
    return await hosts.set_desired(database, ADMIN, **GROUP, count=count, reason="test")


async def states(database: Database) -> list[str]:
    return [one.state for one in await hosts.list_intents(database, ADMIN, ended=True)]


async def test_a_droplet_is_told_how_to_join_with_a_token_that_works_once(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    await scaling.set_scaling(database, ADMIN, model=MODEL, profile="lora")
    await want(database, 1)
    await reconcile_hosts(database, settings(url))
    await reconcile_hosts(database, settings(url, host_schedulers="10.0.0.2:8010"))
    [droplet] = fake.alive()
    assert 'PENSTOCK_SCHEDULERS="10.0.0.2:8010"' in droplet.user_data
    assert f'PENSTOCK_MODEL="{MODEL}"' in droplet.user_data
    assert 'PENSTOCK_PROFILE="lora"' in droplet.user_data
    assert 'PENSTOCK_REPLICAS="1"' in droplet.user_data
    assert 'PENSTOCK_HOST_KIND="gpu-h100x1-80gb"' in droplet.user_data
    found = re.search(r"pj_[A-Za-z0-9_-]{43}", droplet.user_data)
    assert found is not None
    token = parse_token(found[0], "user data")
    await reconcile_hosts(database, settings(url))
    [host] = await hosts.list_hosts(database, ADMIN)
    assert host.joining == "invited"
    async with database.system() as connection:
        assert await join(connection, droplet.name, token.hash, b"secret") == ""
        assert "was used already" in await join(connection, droplet.name, token.hash, b"other")
        assert "is not one for host other" in await join(connection, "other", token.hash, b"other")
    [host] = await hosts.list_hosts(database, ADMIN)
    assert host.joining == "own secret"
    store = DatabaseIntents(database)
    [intent] = await store.load("digitalocean", ())
    ended = msgspec.structs.replace(intent, state=IntentState.ENDED, ended_at=await store.now())
    await store.save(intent, ended)
    async with database.system() as connection:
        assert not (await read_credentials(connection))[droplet.name].holds, "its secret ends with the host"


async def test_a_create_that_timed_out_after_succeeding_is_found_billed_and_destroyed(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    assert await reconcile_hosts(database, here) == 0
    assert await states(database) == ["written"]
    fake.faults.add(Fault.CREATE_CUT_AFTER)
    fake.faults.hidden_after_error_s = 0
    assert await reconcile_hosts(database, here) == 1
    assert await states(database) == ["called"]
    assert await reconcile_hosts(database, here) == 0
    assert await states(database) == ["exists"]
    [host] = await hosts.list_hosts(database, ADMIN)
    [droplet] = fake.alive()
    assert (host.name, host.status, host.usd_per_hour) == (droplet.name, "running", "3.39")
    assert droplet.tags == ["penstock-test", droplet.name]
    [desired] = await hosts.list_desired(database, FINANCE)
    assert (desired.desired, desired.running, desired.coming) == (1, 1, 0)
    await want(database, 0)
    assert await reconcile_hosts(database, here) == 1
    await reconcile_hosts(database, here)
    assert await states(database) == ["ended"]
    assert fake.alive() == []
    [after] = await hosts.list_hosts(database, ADMIN, ended=True)
    cents = fake.ledger.cents(int(time.time()))
    assert after.cost_usd == after.no_agent_usd == f"0.{cents:02d}"
    events = await hosts.list_events(database, FINANCE, name=host.name)
    assert [(one.call, one.outcome, one.status) for one in events] == [
        ("destroy", "ok", 204),
        ("create", "unknown", 0),
    ]
    assert events[0].usd_per_hour == "3.39"
    assert [call.operation for call in fake.calls].count("create") == 1


async def test_the_client_sends_a_create_once_whatever_the_answer(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """pydo's own retries would send it four times after a 500 or a 429 with retry-after."""
    fake, url = cloud
    provider = configured(settings(url))["digitalocean"]()
    for fault in (Fault.CREATE_ERROR_AFTER, Fault.CREATE_ERROR_BEFORE, Fault.CREATE_CUT_AFTER, Fault.BURST):
        before = len(fake.calls)
        fake.faults.add(fault)
        await provider.create(HostRequest("test-0123456789ab", "nyc2", "gpu-h100x1-80gb"))
        assert [call.operation for call in fake.calls[before:]] == ["create"], fault
    await provider.close()


async def test_no_pass_while_another_runs_and_none_before_a_429s_wait_is_over(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    async with database.system() as held:
        await held.execute(
            text("SELECT pg_advisory_xact_lock(hashtext('penstock_hosts'), hashtext('digitalocean'))")
        )
        await reconcile_hosts(database, here)
    assert fake.calls == []
    fake.faults.add(Fault.BURST)
    await reconcile_hosts(database, here)
    assert [call.status for call in fake.calls] == [429]
    await reconcile_hosts(database, here)
    assert len(fake.calls) == 1
    [event] = await hosts.list_events(database, ADMIN, reads=True)
    assert (event.call, event.outcome, event.status) == ("account", "throttled", 429)


async def test_a_host_of_another_image_is_replaced_and_an_image_that_fails_is_given_up(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url, digitalocean_image="first")
    fake.faults.hidden_s = 0
    await want(database, 1)
    for _ in range(3):
        await reconcile_hosts(database, here)
    [before] = await hosts.list_hosts(database, ADMIN)
    assert (before.image, [one.image for one in fake.alive()]) == ("first", ["first"])

    second = {**GROUP, "image": "second", "surge": False, "reason": "driver"}
    assert (await hosts.set_image(database, ADMIN, **second)).outdated == 1

    async def images() -> list[str]:
        await reconcile_hosts(database, here)
        return [one.image for one in fake.alive()]

    await until(lambda: _is(images, ["second"]))
    await reconcile_hosts(database, here)  # which sees it
    ended = await hosts.list_intents(database, ADMIN, ended=True)
    assert {one.why for one in ended} == {"", "its image is not second"}

    await hosts.set_image(database, ADMIN, **{**second, "image": "bad", "surge": True})
    store = DatabaseIntents(database)
    now = await store.now()
    [intent] = [one for one in await store.load("digitalocean", ()) if one.state is IntentState.EXISTS]
    await store.save(intent, msgspec.structs.replace(intent, image="bad", failures=2, failed_at=now))
    await reconcile_hosts(database, here)
    [group] = await hosts.list_desired(database, ADMIN)
    assert (group.image, group.surge, group.outdated) == ("second", True, 1)
    [event] = [one for one in await hosts.list_events(database, ADMIN) if one.call == "replace"]
    assert (
        event.detail
        == f"the image bad of gpu-h100x1-80gb in nyc2 {MODEL} is given up: its first hosts failed"
    )
    async with database.read() as connection:
        found = await connection.execute(
            text("SELECT object_id, reason FROM audit_log WHERE action = 'hosts.give_up_image'")
        )
    assert [tuple(row) for row in found] == [
        (f"digitalocean/nyc2/gpu-h100x1-80gb/{MODEL}", "the first hosts of the image bad failed")
    ]


async def _is(read: Callable[[], Awaitable[object]], wanted: object) -> bool:
    return await read() == wanted


async def test_a_dry_run_writes_down_and_calls_nothing_once_an_hour(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    fake.create("test-stray", "gpu-h100x1-80gb", "nyc2", ["penstock-test"])
    await want(database, 2)
    for _ in range(2):
        assert await reconcile_hosts(database, settings(url, hosts_dry_run=True)) == 0
    assert await states(database) == []
    assert {call.operation for call in fake.calls} == {"account", "list"}
    events = await hosts.list_events(database, ADMIN)
    assert sorted((one.call, one.outcome, one.detail) for one in events) == [
        ("create", "dry_run", f"gpu-h100x1-80gb in nyc2 {MODEL}"),
        ("destroy", "dry_run", "test-stray: no intent: it is destroyed"),
    ]


async def test_what_a_person_changes_while_a_create_runs_stays_beside_its_result(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """The result is stored on what the intent has become; a change of an intent that is not as it was read is not."""
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    await reconcile_hosts(database, here)
    store = DatabaseIntents(database)
    [before] = await store.load("digitalocean", [])
    at = datetime.now(UTC) + timedelta(hours=2)
    provider = configured(here)["digitalocean"]()
    create = provider.create

    async def told(request: HostRequest) -> CallResult:
        await hosts.note_reclaim(database, ADMIN, name=request.name, at=at, reason="mail")
        return await create(request)

    provider.create = told  # type: ignore[method-assign]
    await run_pass(database, here, provider)
    await provider.close()
    [stored] = await store.load("digitalocean", [])
    [droplet] = fake.alive()
    assert (stored.state, stored.provider_id, stored.reclaim_at) == ("called", str(droplet.droplet_id), at)
    with pytest.raises(Overtaken):
        await store.save(before, msgspec.structs.replace(before, calls=7), CallResult("create", Outcome.OK))
    assert await store.load("digitalocean", []) == [stored]
    assert len(await hosts.list_events(database, ADMIN)) == 1


async def test_two_passes_at_once_create_a_host_once(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """A pass whose lock was lost goes on beside the next one."""
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    await reconcile_hosts(database, here)
    provider = configured(here)["digitalocean"]()
    prices = provider.prices

    async def meanwhile(kinds: Collection[str]) -> Prices:
        provider.prices = prices  # type: ignore[method-assign]
        other = Reconciler(
            provider, DatabaseIntents(database), fleet="test", new_id=uuid7, ceilings=Ceilings(9, 10**15)
        )
        assert (await other.run()).calls == 1
        return await prices(kinds)

    provider.prices = meanwhile  # type: ignore[method-assign]
    await run_pass(database, here, provider)
    await provider.close()
    assert len(fake.alive()) == 1
    assert [call.operation for call in fake.calls].count("create") == 1


async def test_notices_of_reclaims(database: Database, cloud: tuple[FakeCloud, str]) -> None:
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    for _ in range(3):
        await reconcile_hosts(database, here)
    [host] = await hosts.list_hosts(database, ADMIN)
    at = datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(PermissionDenied):
        await hosts.note_reclaim(database, FINANCE, name=host.name, at=at, reason="x")
    with pytest.raises(NotFound, match="nobody"):
        await hosts.note_reclaim(database, ADMIN, name="nobody", at=at, reason="x")
    with pytest.raises(InvalidRequest, match="time zone"):
        await hosts.note_reclaim(database, ADMIN, name=host.name, at=at.replace(tzinfo=None), reason="x")
    for wrong in (datetime.now(UTC), datetime.now(UTC) + timedelta(days=8)):
        with pytest.raises(InvalidRequest, match="at most 7 days ahead"):
            await hosts.note_reclaim(database, ADMIN, name=host.name, at=wrong, reason="x")
    told = await hosts.note_reclaim(database, ADMIN, name=host.name, at=at, reason="notice by e-mail")
    assert told.reclaim_at == at
    for _ in range(3):
        await reconcile_hosts(database, here)
    assert len(fake.alive()) == 2
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE host_intents SET reclaim_at = now() WHERE reclaim_at IS NOT NULL")
        )
    for _ in range(2):
        await reconcile_hosts(database, here)
    assert [one.name for one in fake.alive()] != [host.name]
    assert len(fake.alive()) == 1
    with pytest.raises(Conflict, match="has ended"):
        await hosts.note_reclaim(database, ADMIN, name=host.name, at=at, reason="x")
    async with database.read() as connection:
        audit = list(await connection.scalars(text("SELECT action FROM audit_log ORDER BY at, id")))
    assert audit == ["model.add", "hosts.set_desired", "hosts.note_reclaim"]


async def test_wrong_wishes_are_refused(database: Database) -> None:
    await models.add_model(database, ADMIN, name="llama-3.3-70b")
    for wrong, param in (
        ({"provider": "aws"}, "provider"),
        ({"count": -1}, "count"),
        ({"count": 1_025}, "count"),
        ({"region": ""}, "region"),
        ({"kind": "x" * 101}, "kind"),
        ({"model": "llama-3.3-70b"}, "kind"),  # it needs two GPUs
    ):
        with pytest.raises(InvalidRequest) as caught:
            await hosts.set_desired(database, ADMIN, **{**GROUP, "count": 1, "reason": "x", **wrong})  # type: ignore[arg-type]
        assert caught.value.param == param
    with pytest.raises(NotFound, match="no model 'nope'"):
        await hosts.set_desired(database, ADMIN, **GROUP | {"model": "nope"}, count=1, reason="x")
    with pytest.raises(PermissionDenied):
        await hosts.set_desired(database, FINANCE, **GROUP, count=1, reason="x")
    with pytest.raises(InvalidRequest, match="limit"):
        await hosts.list_events(database, ADMIN, limit=0)


async def test_a_silent_host_is_replaced_when_a_scheduler_has_listened_for_long(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    await want(database, 1)
    for _ in range(3):
        await reconcile_hosts(database, here)
    [droplet] = fake.alive()

    async def heard(last_seen: str, serving_since: str, renewed_at: str = "now()") -> list[str]:
        """The states of all intents after a pass in which this was known."""
        async with database.engine.begin() as connection:
            await connection.exec_driver_sql(
                "INSERT INTO hosts (host_id, host_kind, region, gpus, first_seen, last_seen) VALUES "
                f"('{droplet.name}', 'k', 'r', 1, now() - interval '2 hours', now() - interval '{last_seen}') "
                "ON CONFLICT (host_id) DO UPDATE SET last_seen = excluded.last_seen"
            )
            await connection.exec_driver_sql(  # it has served: one that never does is replaced for that
                "INSERT INTO model_seconds (host_id, boot_id, hour, model, state, seconds) VALUES "
                f"('{droplet.name}', 'b', date_trunc('hour', now()), 'm', 'READY', 60) ON CONFLICT DO NOTHING"
            )
            await connection.exec_driver_sql(
                f"UPDATE scheduler_lease SET owner = 'a', renewed_at = {renewed_at}, "
                f"serving_since = now() - interval '{serving_since}'"
            )
        await reconcile_hosts(database, here)
        return [one.why for one in await hosts.list_intents(database, ADMIN) if not one.wanted]

    assert await heard("1 minute", "2 hours") == []
    assert await heard("1 hour", "29 minutes") == [], "the scheduler has not listened for long enough"
    assert await heard("1 hour", "2 hours", "now() - interval '1 minute'") == [], "no scheduler listens"
    why = "its agent has been silent for 30 minutes, though it runs"
    assert await heard("1 hour", "2 hours") == [why]
    assert await heard("1 hour", "2 hours") == [why]
    told = await hosts.list_events(database, FINANCE, name=droplet.name)
    assert [one.detail for one in told if one.call == "replace"] == [why]
    async with database.system() as connection:
        rows = await connection.execute(
            text("SELECT object_id, reason FROM audit_log WHERE action = 'hosts.replace'")
        )
        assert [tuple(row) for row in rows] == [(droplet.name, why)]
    [desired] = await hosts.list_desired(database, FINANCE)
    assert (desired.desired, desired.running + desired.coming) == (1, 1), "another one takes its place"
    assert droplet in fake.alive(), "it is drained first"


async def test_costs_of_a_month_by_kind(database: Database, cloud: tuple[FakeCloud, str]) -> None:
    """One host over the end of a month, in which it joined after ten minutes; its agent ended a minute before it."""
    store = DatabaseIntents(database)
    await want(database, 1)
    await reconcile_hosts(database, settings(cloud[1]))
    [bare] = await store.load("digitalocean", [])
    start = datetime(2026, 10, 31, 23, 30, tzinfo=UTC)
    lived = msgspec.structs.replace(
        bare,
        provider_id="7",
        created_at=start,
        usd_pico_per_hour=usd_to_pico("3.39"),
        billed=True,
        running_at=start,
    )
    await store.save(bare, lived)
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE host_intents SET state = 'ended', wanted = false, ended_at = :end"),
            {"end": start + timedelta(hours=1)},
        )
        await connection.execute(
            text(
                "INSERT INTO hosts (host_id, host_kind, region, gpus, first_seen, last_seen) "
                "VALUES ('sim-' || :name, 'k', 'r', 1, :joined, :joined), ('byself', 'k', 'r', 1, now(), now())"
            ),
            {"name": bare.name, "joined": start + timedelta(minutes=10)},
        )
        for hour, seconds in ((start.replace(minute=0), 20 * 60), (start + timedelta(minutes=30), 29 * 60)):
            await connection.execute(
                text("INSERT INTO host_seconds VALUES ('sim-' || :name, 'b', :hour, 'serving', :seconds)"),
                {"name": bare.name, "hour": hour, "seconds": seconds},
            )
    november = datetime(2026, 11, 1, tzinfo=UTC)
    october = datetime(2026, 10, 1, tzinfo=UTC)
    december = datetime(2026, 12, 1, tzinfo=UTC)
    [first] = await host_costs(database, FINANCE, start=october, end=november)
    [second] = await host_costs(database, FINANCE, start=november, end=december)
    assert (first.hosts, first.cost_usd, first.no_agent_usd) == (1, "1.70", "0.566666666667")
    assert (second.hosts, second.cost_usd, second.no_agent_usd) == (1, "1.69", "0.056333333333")
    assert await host_costs(database, FINANCE, start=december, end=december + timedelta(days=31)) == []
    [static] = await hosts.list_hosts(database, FINANCE)
    assert (static.provider, static.name) == ("static", "byself")


async def test_a_host_is_refused_since_the_first_of_its_last_refusals(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    await want(database, 1)
    await reconcile_hosts(database, settings(cloud[1]))
    store = DatabaseIntents(database)
    [intent] = await store.load("digitalocean", [])
    assert intent.refused_since is None

    async def checked(verdict: Literal["accepted", "refused"], minute: int) -> None:
        async with database.system() as connection:
            await store_acceptance(connection, intent.name, AcceptanceReport(verdict, minute * 60_000))
            await connection.execute(
                text("UPDATE host_acceptances SET stored_at = :at WHERE checked_at = :at"),
                {"at": at(minute)},
            )

    def at(minute: int) -> datetime:
        return datetime.fromtimestamp(minute * 60, UTC)

    async def refused_since() -> datetime | None:
        [found] = await store.load("digitalocean", [])
        return found.refused_since

    await checked("refused", 1)
    await checked("accepted", 2)
    assert await refused_since() is None
    await checked("refused", 3)
    await checked("refused", 4)
    assert await refused_since() == at(3)
    async with database.system() as connection:
        assert await retention.prune(connection) == 3  # all of 1970 but the newest
    assert await refused_since() == at(4)


async def test_old_events_of_lists_are_pruned_and_those_of_hosts_kept(database: Database) -> None:
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO host_events (at, provider, intent_id, call, outcome, status, detail) VALUES "
                "(now() - interval '8 days', 'p', NULL, 'list', 'ok', 200, ''), "
                "(now() - interval '6 days', 'p', NULL, 'list', 'ok', 200, ''), "
                "(now() - interval '99 days', 'p', gen_random_uuid(), 'create', 'ok', 202, '')"
            )
        )
        assert await prune_events(connection, 100) == 1


async def test_hosts_on_this_machine(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes come, one that dies is replaced, all go; a later run of the provider knows them by their files."""
    sleeper = [
        sys.executable,
        "-c",
        "import os, time; print(os.environ['PENSTOCK_DATA_DIR'], flush=True); time.sleep(600)",
    ]

    def provider() -> LocalProcesses:
        return LocalProcesses(tmp_path / "hosts", sleeper, {}, lambda: datetime.now(UTC))

    async def settle() -> list[str]:
        await run_pass(database, Settings(local_hosts=True), provider())
        return sorted(host.name for host in (await provider().list_hosts()).hosts)

    group = {"provider": "local", "region": "here", "kind": "local-cpu"}
    await hosts.set_desired(database, ADMIN, **group, count=2, reason="test")
    await settle()
    names = await settle()
    assert len(names) == 2
    assert all(name.startswith("local-") for name in names)
    assert (tmp_path / "hosts" / names[0] / "host-id").read_text().strip() == names[0]
    again = await provider().create(HostRequest(names[0], "here", "local-cpu"))
    assert again.host is not None
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 2.0)  # the clock was set
    assert sorted(host.name for host in (await provider().list_hosts()).hosts) == names
    pids = [
        json.loads((tmp_path / "hosts" / name / "host.json").read_text())["process"]["pid"] for name in names
    ]
    psutil.Process(pids[0]).kill()
    await until(lambda: gone(pids[0]))
    await settle()
    replaced = await settle()
    assert len(replaced) == 2
    assert names[0] not in replaced
    await hosts.set_desired(database, ADMIN, **group, count=0, reason="test")
    await settle()
    await until(lambda: gone(pids[1]))
    assert await settle() == []
    assert {one.cost_usd for one in await hosts.list_hosts(database, ADMIN, ended=True)} == {"0.00"}
    assert await states(database) == ["ended"] * 3


def test_a_token_alone_sets_nothing_up_and_a_file_may_hold_it(tmp_path: Path) -> None:
    assert configured(settings("http://127.0.0.1:1", fleet="")) == {}
    assert configured(settings("http://127.0.0.1:1", digitalocean_token=SecretStr(""))) == {}
    missing = settings("http://127.0.0.1:1", digitalocean_token_file=tmp_path / "none")
    with pytest.raises(InvalidRequest, match="PENSTOCK_DIGITALOCEAN_TOKEN_FILE"):
        configured(missing)["digitalocean"]()
    (tmp_path / "token").write_text("dop_v1_x\n")
    found = configured(
        settings(
            "http://127.0.0.1:1",
            digitalocean_token=SecretStr(""),
            digitalocean_token_file=tmp_path / "token",
        )
    )
    assert list(found) == ["digitalocean"]
    assert "penstock.reconcile_hosts" in [job.name for job in schedule(Settings())]


async def test_the_command_line(
    database: Database, cloud: tuple[FakeCloud, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, url = cloud
    monkeypatch.setenv("DATABASE_URL", database.url)

    async def ask(*arguments: str) -> object:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["hosts", *arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    place = ("digitalocean", "nyc2", "gpu-h100x1-80gb")
    wanted = await ask("set-desired", *place, "1", "--model", MODEL, "--reason", "launch")
    assert isinstance(wanted, dict)
    assert (wanted["desired"], wanted["running"]) == (1, 0)
    told = await ask("set-image", *place, "77", "--model", MODEL, "--no-surge", "--reason", "driver")
    assert isinstance(told, dict)
    assert (told["image"], told["surge"]) == ("77", False)
    for _ in range(3):
        await reconcile_hosts(database, settings(url))
    [host] = await ask("list")  # type: ignore[misc]
    assert host["image"] == "77"
    assert host["cost_usd"] == "0.06"
    [intent] = await ask("intents")  # type: ignore[misc]
    assert (intent["name"], intent["calls"]) == (host["name"], 1)
    [event] = await ask("events", "--host", host["name"])  # type: ignore[misc]
    assert event["outcome"] == "ok"
    [row] = await ask("desired")  # type: ignore[misc]
    assert row["running"] == 1
    soon = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)
    told = await ask("reclaim", host["name"], "--at", soon.isoformat(), "--reason", "mail")
    assert isinstance(told, dict)
    assert datetime.fromisoformat(told["reclaim_at"]) == soon
    for at in (["--at", soon.isoformat()[:-6]], []):
        bad = await asyncio.to_thread(
            CliRunner().invoke, app, ["hosts", "reclaim", host["name"], *at, "--reason", "x"]
        )
        assert (bad.exit_code, bad.output.count("\n")) == (2, 1)
    month = datetime.now(UTC).strftime("%Y-%m")
    [cost] = await ask("costs", "--month", month)  # type: ignore[misc]
    assert cost["cost_usd"] == "0.06"
    assert TOKEN not in json.dumps([await ask("list"), await ask("events", "--reads")])
    async with database.read() as connection:
        assert len(await read_intents(connection, ended=True, limit=10)) == 1
    assert len(fake.alive()) == 1
