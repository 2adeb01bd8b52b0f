"""Whose hosts they are, in PostgreSQL and on the command line; ceilings; one provider's error beside another."""

import asyncio
import json
import logging
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from typer.testing import CliRunner

from admin import host_owners, hosts
from admin.actor import Actor
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied
from jobs.hosts import STOPPED, reconcile_hosts
from sim.digitalocean.cloud import FakeCloud
from tests.support.host_cloud import cloud_settings

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
FINANCE = Actor(kind="cli", id="f", label="f", role="finance")
GROUP = {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x1-80gb"}
LOCAL = {"provider": "local", "region": "here", "kind": "local-cpu"}
TEAM = "5df3e3004a17e242b7c20ca6c9fc25b701a47ece"


async def run_hosts(database: Database, url: str, count: int) -> None:
    await hosts.set_desired(database, ADMIN, **GROUP, count=count, reason="test")
    for _ in range(3):
        await reconcile_hosts(database, cloud_settings(url))


async def states(database: Database) -> list[str]:
    return sorted(one.state for one in await hosts.list_intents(database, ADMIN, ended=True))


def stopped() -> float:
    return STOPPED.labels("digitalocean")._value.get()  # type: ignore[no-any-return]


async def test_another_fleet_stops_with_one_line_until_a_person_confirms_it(
    database: Database,
    cloud: tuple[FakeCloud, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake, url = cloud
    monkeypatch.setenv("DATABASE_URL", database.url)
    await run_hosts(database, url, 2)
    assert stopped() == 0
    other = cloud_settings(url, fleet="prod")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await reconcile_hosts(database, other) == 0
    [line] = [one.getMessage() for one in caplog.records]
    command = f"`penstock hosts adopt digitalocean --fleet prod --account {TEAM} --reason WHY`"
    assert line.startswith(
        "digitalocean: PENSTOCK_FLEET is prod, and was test. Nothing is created or destroyed."
    )
    assert line.endswith(command)
    assert stopped() == 1
    assert len(fake.alive()) == 2

    async def ask(*arguments: str) -> tuple[int, str, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["hosts", *arguments, "--json"])
        return result.exit_code, result.stdout, result.stderr

    code, out, warned = await ask("list")
    assert (code, len(json.loads(out)), warned) == (0, 2, f"penstock: warning: {line}\n")
    confirm = ("adopt", "digitalocean", "--fleet", "prod", "--account", TEAM, "--reason", "renamed")
    code, _, refusal = await ask(*confirm)
    assert (code, refusal.count("\n")) == (2, 1)
    assert f"2 hosts of fleet test in account {TEAM}, such as test-" in refusal
    assert "--leave-hosts" in refusal
    code, out, _ = await ask(*confirm, "--leave-hosts")
    assert code == 0
    assert json.loads(out)["hosts_left"] == sorted(one.name for one in fake.alive())
    assert await states(database) == ["ended", "ended"]
    await reconcile_hosts(database, other)
    assert sorted(one.name[:5] for one in fake.alive()) == [
        "test-",
        "test-",
    ]  # what was desired, was of that fleet
    await hosts.set_desired(database, ADMIN, **GROUP, count=2, reason="test")
    for _ in range(3):
        await reconcile_hosts(database, other)
    assert sorted(one.name[:5] for one in fake.alive()) == ["prod-", "prod-", "test-", "test-"]
    assert stopped() == 0
    assert (await ask("list"))[2] == ""
    async with database.read() as connection:
        [row] = (
            await connection.execute(text("SELECT * FROM audit_log WHERE action = 'hosts.adopt'"))
        ).mappings()
    assert row["reason"] == "renamed"


async def test_a_confirmation_is_asked_for_once_and_only_of_admins(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    facts = {"provider": "digitalocean", "fleet": "test", "account": TEAM, "reason": "x"}
    await run_hosts(database, url, 1)
    with pytest.raises(Conflict, match="no pass over digitalocean asks"):
        await host_owners.adopt(database, ADMIN, **facts)  # type: ignore[arg-type]
    with pytest.raises(PermissionDenied):
        await host_owners.adopt(database, FINANCE, **facts)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="creates no hosts"):
        await host_owners.adopt(database, ADMIN, **facts | {"provider": "aws"})  # type: ignore[arg-type]
    stray = fake.create("test-0123456789ab", "gpu-h100x1-80gb", "nyc2", ["penstock-test"])
    await reconcile_hosts(database, cloud_settings(url))
    [line] = await host_owners.list_notices(database, FINANCE)
    assert "this database did not create test-0123456789ab" in line
    done = await host_owners.adopt(database, ADMIN, **facts)  # type: ignore[arg-type]
    assert (done.hosts_left, await host_owners.list_notices(database, ADMIN)) == ([], [])
    await reconcile_hosts(database, cloud_settings(url))
    assert await states(database) == ["exists", "exists"]
    assert stray in fake.alive()


async def test_hosts_that_another_name_of_the_account_shows_go_on(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """A person joined a team: the account has another uuid and the same droplets."""
    fake, url = cloud
    fake.team_uuid = ""
    await run_hosts(database, url, 1)
    fake.team_uuid = TEAM
    await reconcile_hosts(database, cloud_settings(url))
    [droplet] = fake.alive()
    done = await host_owners.adopt(
        database,
        ADMIN,
        provider="digitalocean",
        fleet="test",
        account=TEAM,
        leave_hosts=True,
        reason="joined a team",
    )
    assert done.hosts_left == [droplet.name]
    for _ in range(2):
        assert await reconcile_hosts(database, cloud_settings(url)) == 0
    assert fake.alive() == [droplet]
    assert await states(database) == ["exists"]


async def test_the_database_is_known_again_and_a_copy_of_its_rows_is_not(
    database: Database, pg_url: str, cloud: tuple[FakeCloud, str]
) -> None:
    """The identity is that of the database, whatever its rows say."""
    fake, url = cloud
    await run_hosts(database, url, 1)
    async with database.system() as connection:
        await connection.execute(text("UPDATE host_providers SET database = '1-1'"))
    await hosts.set_desired(database, ADMIN, **GROUP, count=0, reason="test")
    assert await reconcile_hosts(database, cloud_settings(url)) == 0
    assert len(fake.alive()) == 1
    [line] = await host_owners.list_notices(database, ADMIN)
    assert ", and was 1-1." in line


async def test_a_create_beyond_a_ceiling_is_an_event_once_an_hour(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    await hosts.set_desired(database, ADMIN, **GROUP, count=3, reason="test")
    for _ in range(4):
        await reconcile_hosts(database, cloud_settings(url, hosts_max=1))
    assert len(fake.alive()) == 1
    events = [(one.outcome, one.detail) for one in await hosts.list_events(database, ADMIN)]
    assert events.count(("refused", "there are 1 hosts, and PENSTOCK_HOSTS_MAX is 1")) == 1
    await reconcile_hosts(database, cloud_settings(url, hosts_max_usd_per_hour=7))
    assert len(fake.alive()) == 2
    [last, *_] = [one.detail for one in await hosts.list_events(database, ADMIN) if one.outcome == "refused"]
    assert last == (
        "hosts cost 6.78 USD per hour and one of gpu-h100x1-80gb costs 3.39: more than "
        "PENSTOCK_HOSTS_MAX_USD_PER_HOUR, 7.00"
    )


async def test_a_size_without_a_list_price_has_that_of_the_books(
    database: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """Sizes of a contract are in no list of sizes."""
    _, url = cloud
    contracted = GROUP | {"kind": "gpu-b300x8-2304gb-contracted"}
    await hosts.set_desired(database, ADMIN, **contracted, count=1, reason="test")
    for _ in range(2):
        await reconcile_hosts(database, cloud_settings(url, hosts_max_usd_per_hour=63))
    [event] = [one for one in await hosts.list_events(database, ADMIN) if one.outcome == "refused"]
    assert "one of gpu-b300x8-2304gb-contracted costs 64.00" in event.detail


async def test_a_damaged_file_of_one_provider_does_not_stop_the_other(
    database: Database, cloud: tuple[FakeCloud, str], tmp_path: Path
) -> None:
    fake, url = cloud
    both = cloud_settings(url, local_hosts=True, data_dir=tmp_path)
    damaged = tmp_path / "hosts" / "local-0123456789ab" / "host.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"name": "loc')
    await hosts.set_desired(database, ADMIN, **LOCAL, count=1, reason="test")
    await run_hosts(database, url, 1)
    for _ in range(2):
        await reconcile_hosts(database, both)
    assert len(fake.alive()) == 1
    assert STOPPED.labels("local")._value.get() == 1
    reads = await hosts.list_events(database, ADMIN, reads=True)
    [detail] = {one.detail for one in reads if one.provider == "local" and one.outcome == "refused"}
    assert str(damaged) in detail
    assert "remove it" in detail
    [line] = await host_owners.list_notices(database, ADMIN)
    assert line == f"local: list was refused: {detail}. Nothing is created or destroyed"


async def test_an_error_of_one_provider_is_raised_after_the_passes_of_the_others(
    database: Database, cloud: tuple[FakeCloud, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake, url = cloud
    (tmp_path / "hosts").write_text("no directory")
    wrong = cloud_settings(url, digitalocean_token=SecretStr(""), digitalocean_token_file=tmp_path / "none")
    await hosts.set_desired(database, ADMIN, **GROUP, count=1, reason="test")
    with pytest.raises(InvalidRequest, match="PENSTOCK_DIGITALOCEAN_TOKEN_FILE"):
        await reconcile_hosts(
            database, wrong.model_copy(update={"local_hosts": True, "data_dir": tmp_path / "here"})
        )
    assert "digitalocean: the pass failed: InvalidRequest" in caplog.text
    assert STOPPED.labels("local")._value.get() == 0
    assert stopped() == 1
    assert fake.calls == []
