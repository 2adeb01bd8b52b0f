"""Hosts join with one-time tokens and report with secrets of their own; engine keys reach API processes alone."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from pydantic import SecretStr
from sqlalchemy import text
from typer.testing import CliRunner

from admin import host_joining
from admin.actor import Actor
from cli.main import app
from core.addresses import Address
from core.clock import SystemClock
from core.db import Database
from core.errors import InvalidRequest, NotFound
from core.private_tls import new_authority
from core.settings import Settings
from jobs.hosts import _join_token
from scheduler.client import SchedulerClient
from scheduler.door import Door
from scheduler.host_admission import HostAdmission
from scheduler.service import SchedulerService
from tests.support.scheduling import TOKEN, beat, replica, request
from tests.support.waiting import until
from workers import host_credentials
from workers.host_reporting import HostReporting
from workers.join_token import parse_token, secret_hash
from workers.joining import ask, join
from workers.kv_events_feed import KvOutbox
from workers.own_credentials import AgentCredentials
from workers.scheduler_link import Connect, SchedulerLink, open_plain
from workers.wire import AgentHello, AgentRotation, CommandResult, Heartbeat, ReplicaCommand

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
HOST = "b300-1"
AUTHORITY = new_authority(b"password", datetime(2026, 11, 28, tzinfo=UTC), "Penstock host").certificate


@asynccontextmanager
async def platform(pg_url: str) -> AsyncIterator[tuple[Door, SchedulerService, HostAdmission]]:
    own_pool = Database(pg_url)
    hosts = HostAdmission(own_pool, "remote")
    door = Door("127.0.0.1", 0, TOKEN, hosts)
    await hosts.start()
    await door.start()
    service = SchedulerService(door, clock=SystemClock(), rng=random.Random(1))
    service.start()
    try:
        yield door, service, hosts
    finally:
        await door.close()
        await service.close()
        await hosts.close()
        await own_pool.close()


async def invited(database: Database, host: str = HOST, valid: timedelta = timedelta(hours=1)) -> str:
    return (await host_joining.invite(database, ADMIN, host=host, valid=valid, reason="test")).token


def credentials(directory: Path, token: str = "", host: str = HOST) -> AgentCredentials:
    return AgentCredentials(Settings(data_dir=directory, join_token=SecretStr(token)), host)


class Rounds:
    """Stands for the pauses of `join`, and ends it at the first when `end` is set."""

    def __init__(self, *, end: bool = True) -> None:
        self.seen: list[float] = []
        self.end = end

    async def __call__(self, seconds: float) -> None:
        self.seen.append(seconds)
        if self.end:
            raise TimeoutError("it was refused")


async def refused(door: Door, own: AgentCredentials, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with pytest.raises(TimeoutError, match="it was refused"):
        await join(own, [Address("127.0.0.1", door.port)], open_plain, Rounds())
    return caplog.text


@asynccontextmanager
async def reporting(
    door: Door,
    own: AgentCredentials,
    heartbeat: Heartbeat,
    *,
    at: Address | None = None,
    connect: Connect = open_plain,
) -> AsyncIterator[SchedulerLink]:
    async def execute(command: ReplicaCommand) -> CommandResult:
        return CommandResult(command.command_id, True)

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0.01)

    addresses = [at or Address("127.0.0.1", door.port)]
    link = SchedulerLink(
        addresses,
        own.token,
        HOST,
        heartbeat=lambda: heartbeat,
        execute=execute,
        outbox=KvOutbox(),
        run="one",
        joined=own.joined,
        engine_key=own.stated_engine_key,
        engine_authority=AUTHORITY,
        connect=connect,
        pause=pause,
    )
    task = asyncio.create_task(HostReporting(own, addresses, connect, link, pause).run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def watcher(door: Door, *, takes_keys: bool) -> AsyncIterator[SchedulerClient]:
    made = SchedulerClient(
        [Address("127.0.0.1", door.port)],
        TOKEN,
        name="api",
        clock=SystemClock(),
        rng=random.Random(2),
        takes_keys=takes_keys,
    )
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_a_host_joins_once_and_its_engine_key_reaches_api_processes_alone(
    pg_url: str, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        platform(pg_url) as (door, _, _),
        watcher(door, takes_keys=True) as api,
        watcher(door, takes_keys=False) as console,
    ):
        token = await invited(database)
        own = credentials(tmp_path, token)
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        again = credentials(tmp_path)
        assert (again.token, again.engine_key, again.join_token) == (own.token, own.engine_key, None)
        assert (tmp_path / "host-credentials.json").stat().st_mode & 0o777 == 0o600
        async with reporting(door, again, beat(replica(f"{HOST}/r0"))):
            await until(lambda: api.snapshot().replicas and console.snapshot().replicas)
            placement = await api.place(request())
            assert placement.engine_key == own.engine_key
            assert placement.engine_authority == AUTHORITY
            assert len(own.engine_key) == 43
            assert not console._engines
            assert own.engine_key not in repr(console.snapshot())
        other = credentials(tmp_path / "thief", token)
        assert "was used already" in await refused(door, other, caplog)


async def test_a_token_is_for_its_host_and_time_and_its_answer_may_be_lost(
    pg_url: str, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(pg_url) as (door, _, _):
        token = await invited(database)
        assert "is not one for host b300-2" in await refused(
            door, credentials(tmp_path / "2", token, "b300-2"), caplog
        )
        own = credentials(tmp_path / "1", token)
        # The scheduler wrote it down, and the agent died before the answer came.
        async with database.system() as connection:
            hashed, secret = own.join_token.hash, secret_hash(own.token)
            assert await host_credentials.join(connection, HOST, hashed, secret) == ""
        restarted = credentials(tmp_path / "1", token)
        await join(restarted, [Address("127.0.0.1", door.port)], open_plain)
        assert restarted.join_token is None
        late = await invited(database, "b300-3")
        async with database.engine.begin() as connection:
            await connection.execute(
                text("UPDATE host_credentials SET join_expires_at = now() - interval '1 s'")
            )
        assert "has expired" in await refused(door, credentials(tmp_path / "3", late, "b300-3"), caplog)


async def test_a_revoked_host_is_turned_away_and_may_be_invited_again(
    pg_url: str, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(pg_url) as (door, _, _):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        async with reporting(door, own, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: link.connected)
            await host_joining.revoke(database, ADMIN, host=HOST, reason="test")
            await until(lambda: not link.connected)
            await until(lambda: "does not hold" in caplog.text)
            assert not link.connected
        with pytest.raises(NotFound, match="neither a secret nor a join token"):
            await host_joining.revoke(database, ADMIN, host=HOST, reason="test")
        anew = credentials(tmp_path, await invited(database))
        assert anew.engine_key == own.engine_key, "engines that run keep their key"
        await join(anew, [Address("127.0.0.1", door.port)], open_plain)
        assert anew.token != own.token
        async with reporting(door, anew, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: link.connected)


async def end_overlap(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE host_credentials SET previous_until = now() - interval '1 s'"))


async def test_a_secret_is_replaced_while_the_host_reports(
    pg_url: str, database: Database, tmp_path: Path
) -> None:
    async with platform(pg_url) as (door, service, hosts):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        first = own.token
        async with reporting(door, own, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: link.connected)
            rotated = await host_joining.rotate(
                database, ADMIN, host=HOST, overlap=timedelta(hours=1), reason="quarter"
            )
            assert rotated.overlap_s == 3600
            await until(lambda: own.token != first and not hosts.rotates(HOST))
            shown = {session.secret_hash for session in door.sessions}
            await until(lambda: {each.secret_hash for each in door.sessions} == {secret_hash(own.token)})
            assert shown <= {secret_hash(first), secret_hash(own.token)}
            assert hosts.holds(HOST, secret_hash(first)), "until its overlap ends"
            [one] = await host_joining.list_invitations(database, ADMIN)
            assert one.rotated_at is not None
            assert one.previous_until is not None
            assert not one.rotates
            await end_overlap(database)
            await until(lambda: not hosts.holds(HOST, secret_hash(first)))
            await until(lambda: link.connected)
            assert service.state.fleet.replicas, "requests reach its replicas all the time"
        assert credentials(tmp_path).token == own.token


@pytest.mark.parametrize("late", [False, True])
async def test_the_answer_to_a_rotation_may_be_lost(
    pg_url: str, database: Database, tmp_path: Path, late: bool
) -> None:
    async with platform(pg_url) as (door, _, hosts):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        await host_joining.rotate(database, ADMIN, host=HOST, overlap=timedelta(hours=1), reason="test")
        own.make_next()
        async with database.system() as connection:
            hashes = secret_hash(own.token), secret_hash(own.next_secret)
            assert await host_credentials.rotate(connection, HOST, *hashes) == ""
        if late:
            await end_overlap(database)
        await until(lambda: hosts.holds(HOST, hashes[0]) is not late and hosts.holds(HOST, hashes[1]))
        restarted = credentials(tmp_path)
        async with reporting(door, restarted, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: restarted.token == own.next_secret and link.connected)


async def test_a_secret_is_replaced_when_an_admin_asks_and_by_its_host_alone(
    pg_url: str, database: Database, tmp_path: Path
) -> None:
    async with platform(pg_url) as (door, _, _):
        at = [Address("127.0.0.1", door.port)]
        own = credentials(tmp_path, await invited(database))
        await join(own, at, open_plain)
        new = secret_hash("another")
        assert "was asked for" in await ask(AgentRotation(own.token, HOST, new), at, open_plain)
        await host_joining.rotate(database, ADMIN, host=HOST, overlap=timedelta(hours=1), reason="test")
        assert "does not hold" in await ask(AgentRotation("a guess", HOST, new), at, open_plain)
        assert "does not hold" in await ask(AgentRotation(own.token, "b300-2", new), at, open_plain)
        assert "wrong form" in await ask(AgentRotation(own.token, HOST, b"short"), at, open_plain)
        assert not await ask(AgentRotation(own.token, HOST, new), at, open_plain)
        # What was replaced replaces nothing.
        await host_joining.rotate(database, ADMIN, host=HOST, overlap=timedelta(hours=1), reason="test")
        assert "another one already" in await ask(
            AgentRotation(own.token, HOST, secret_hash("third")), at, open_plain
        )


async def test_a_token_that_does_not_work_leaves_the_secret_that_does(
    pg_url: str, database: Database, tmp_path: Path
) -> None:
    async with platform(pg_url) as (door, _, _):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        mistaken = credentials(tmp_path, await invited(database, "b300-2"))
        async with reporting(door, mistaken, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: link.connected)
            assert mistaken.token == own.token
        assert credentials(tmp_path).token == own.token


async def test_the_host_of_a_create_whose_answer_was_lost_may_join_instead(
    pg_url: str, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(pg_url) as (door, _, _):
        settings = Settings()
        first = await _join_token(database, settings, HOST)
        second = await _join_token(database, settings, HOST)
        own = credentials(tmp_path / "1", first)
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        assert "is not one for host" in await refused(door, credentials(tmp_path / "2", second), caplog)
        # An admin's invitation ends the earlier ones.
        third = await _join_token(database, settings, "b300-2")
        await invited(database, "b300-2")
        assert "is not one for host" in await refused(
            door, credentials(tmp_path / "3", third, "b300-2"), caplog
        )


async def test_a_host_that_has_joined_is_admitted_while_postgresql_is_away(
    pg_url: str, database: Database, tmp_path: Path
) -> None:
    async with platform(pg_url) as (door, _, hosts):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        away = Database("postgresql://nowhere:x@127.0.0.1:1/none")
        hosts._database = hosts._secrets._database = away
        with pytest.raises(OSError):  # noqa: PT011 - whatever the network says
            await hosts._secrets.refresh()
        async with reporting(door, own, beat(replica(f"{HOST}/r0"))) as link:
            await until(lambda: link.connected)


async def test_a_host_reports_itself_and_no_other(pg_url: str, database: Database, tmp_path: Path) -> None:
    async with platform(pg_url) as (door, service, _):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        lies = beat(replica("b300-2/r0"), replica(f"sim-{HOST}/r1"), replica(f"{HOST}/r0"))
        async with reporting(door, own, lies):
            await until(lambda: service.state.fleet.replicas)
            assert set(service.state.fleet.replicas) == {f"{HOST}/r0", f"sim-{HOST}/r1"}
            [host] = service._hosts.views(0.0)
            assert host.host_id == HOST


async def test_a_host_whose_engines_authority_is_no_certificate_is_turned_away(
    pg_url: str, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform(pg_url) as (door, _, hosts):
        own = credentials(tmp_path, await invited(database))
        await join(own, [Address("127.0.0.1", door.port)], open_plain)
        hello = AgentHello(own.token, HOST, joined=True, engine_key=own.engine_key)
        for authority in (b"nothing", AUTHORITY + b"more", AUTHORITY.replace(b"M", b"-")):
            hello.engine_authority = authority
            assert "is no certificate" in hosts.fault(hello)
        hello.engine_authority = AUTHORITY
        assert not hosts.fault(hello)


def test_the_internal_token_admits_agents_of_this_machine(pg_url: str) -> None:
    def fault(required: str, peer: str) -> str:
        return HostAdmission(Database(pg_url), required).shared_fault(peer)

    assert not fault("remote", "127.0.0.1")
    assert not fault("remote", "::ffff:127.0.0.1")
    assert "10.0.0.5 needs a secret of its own" in fault("remote", "10.0.0.5")
    assert "needs a secret of its own" in fault("remote", "an unknown address")
    assert not fault("never", "10.0.0.5")
    assert fault("always", "127.0.0.1")


def test_the_commands_print_a_token_once_and_take_the_right_away(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)

    def penstock(*words: str) -> Result:
        return CliRunner().invoke(app, ["hosts", *words, "--reason", "test", "--json"])

    answer = json.loads(penstock("invite", HOST, "--for", "30m").stdout)
    assert parse_token(answer["token"], "the answer").hash
    assert penstock("invite", HOST, "--for", "soon").exit_code == 2
    assert "has no secret of its own" in penstock("rotate", HOST).stderr
    assert penstock("rotate", HOST, "--overlap", "30d").exit_code == 2
    assert json.loads(penstock("revoke", HOST).stdout) == {"host": HOST}
    assert penstock("revoke", HOST).exit_code == 2


async def test_names_and_times_of_invitations_are_checked(database: Database) -> None:
    for host, valid, message in (
        ("a/b", timedelta(hours=1), "letters, digits"),
        ("sim-a", timedelta(hours=1), "begins with 'sim-'"),
        ("a", timedelta(), "more than nothing"),
        ("a", timedelta(days=31), "at most 30 days"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await invited(database, host, valid)
