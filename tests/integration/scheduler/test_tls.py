"""Schedulers speak TLS to other machines: who is trusted, what is refused, certificates that change."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from pydantic import SecretStr

from admin import host_joining
from core.addresses import Address, takes_tls
from core.clock import SystemClock
from core.db import Database
from core.errors import InvalidRequest
from core.framing import pack, read_frame
from core.private_tls import CERTIFICATE_LIVES, NAME, client_context, fingerprint, issue, new_authority
from core.settings import Settings
from scheduler import sessions
from scheduler.authority import certificate, known_fingerprint, obtain, trusted
from scheduler.client import SchedulerClient
from scheduler.client_tls import ClientTls
from scheduler.door import Door
from scheduler.host_admission import HostAdmission
from scheduler.server_tls import ServerTls
from scheduler.service import SchedulerService
from tests.integration.scheduler.test_joining import ADMIN, HOST, Rounds, credentials, reporting
from tests.support.scheduling import TOKEN, beat, replica
from tests.support.waiting import until
from workers.join_token import parse_token
from workers.joining import join
from workers.own_credentials import AgentCredentials
from workers.scheduler_dialer import SchedulerDialer
from workers.scheduler_link import Untrusted
from workers.wire import AgentHello, AgentRefusal, AuthorityAnswer, AuthorityRequest


class Time:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of this test are as from another machine."""
    for module in ("core.addresses", "scheduler.door", "scheduler.host_admission"):
        monkeypatch.setattr(f"{module}.is_loopback", lambda host: False)


@asynccontextmanager
async def platform(
    database: Database, settings: Settings, now: Time
) -> AsyncIterator[tuple[Door, ServerTls]]:
    tls = ServerTls(database, settings, now)
    hosts = HostAdmission(database, "remote")
    door = Door("0.0.0.0", 0, TOKEN, hosts, tls)
    await hosts.start()
    await tls.start()
    await door.start()
    service = SchedulerService(door, clock=SystemClock(), rng=random.Random(1))
    service.start()
    try:
        yield door, tls
    finally:
        await door.close()
        await service.close()
        await tls.close()
        await hosts.close()


def settings(directory: Path, **fields: object) -> Settings:
    return Settings(data_dir=directory, internal_token=SecretStr(TOKEN)).model_copy(update=fields)


async def hello_without_tls(address: Address) -> AgentRefusal:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(pack(msgspec.msgpack.encode(AgentHello(TOKEN, "h", waits=True))))
        return msgspec.msgpack.decode(await read_frame(reader), type=AgentRefusal)
    finally:
        writer.close()


async def test_a_host_on_another_machine_joins_by_tls_alone(
    database: Database, tmp_path: Path, far: None
) -> None:
    async with platform(database, settings(tmp_path / "scheduler"), Time()) as (door, _):
        remote = Address("127.0.0.1", door.port)
        refusal = await hello_without_tls(remote)
        assert "connects without TLS" in refusal.error
        known = await known_fingerprint(database, settings(tmp_path))
        invited = await host_joining.invite(
            database, ADMIN, host=HOST, valid=timedelta(hours=1), reason="test", authority=known
        )
        assert parse_token(invited.token, "it").authority == known
        own = credentials(tmp_path / "host", invited.token)
        dialer = SchedulerDialer(Settings(data_dir=tmp_path / "host"), own)
        await join(own, [remote], dialer)
        later = credentials(tmp_path / "host")
        assert fingerprint(later.authority) == known, "kept for the next start"
        async with (
            reporting(
                door,
                later,
                beat(replica(f"{HOST}/r0")),
                at=remote,
                connect=SchedulerDialer(Settings(data_dir=tmp_path / "host"), later),
            ) as link,
            api(remote, ClientTls("remote", lambda: trusted(database, settings(tmp_path)))) as client,
        ):
            await until(lambda: link.connected and client.snapshot().replicas)


@asynccontextmanager
async def api(address: Address, tls: ClientTls) -> AsyncIterator[SchedulerClient]:
    made = SchedulerClient(
        [address], TOKEN, name="api", clock=SystemClock(), rng=random.Random(2), tls=tls, takes_keys=True
    )
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_an_impostor_gets_neither_token_nor_secret(
    database: Database, tmp_path: Path, far: None
) -> None:
    """It has a certificate for the right name, from an authority of its own."""
    async with platform(database, settings(tmp_path / "scheduler"), Time()) as (door, tls):
        remote = Address("127.0.0.1", door.port)
        other = fingerprint(new_authority(b"x", datetime.now(UTC)).certificate)
        own = credentials(tmp_path / "host", f"pj_{'a' * 43}.{other}")
        dialer = SchedulerDialer(Settings(data_dir=tmp_path / "host"), own)
        with pytest.raises(Untrusted, match="not the scheduler of the join token"):
            await dialer(remote)
        heard: list[object] = []
        door._hosts.join = heard.append  # type: ignore[method-assign,union-attr,assignment]
        with pytest.raises(TimeoutError, match="refused"):
            await join(own, [remote], dialer, Rounds())
        assert not heard
        own.trust(new_authority(b"x", datetime.now(UTC)).certificate)
        with pytest.raises(ssl.SSLError):
            await dialer(remote)
        async with api(
            remote, ClientTls("remote", lambda: given(own.authority))
        ) as client:  # nor does a client talk to it
            await until(lambda: "no TLS with the scheduler" in client.denied)
        assert tls.context is not None


async def given(content: bytes) -> bytes:
    return content


async def test_a_host_without_fingerprint_or_file_says_what_it_needs(tmp_path: Path) -> None:
    own = credentials(tmp_path, f"pj_{'a' * 43}")
    with pytest.raises(Untrusted, match="PENSTOCK_SCHEDULER_CA"):
        await SchedulerDialer(Settings(data_dir=tmp_path), own)(Address("10.0.0.5", 8010))
    broken = Settings(data_dir=tmp_path, scheduler_ca=tmp_path / "none")
    with pytest.raises(Untrusted, match="holds no certificate"):
        await SchedulerDialer(broken, own)(Address("10.0.0.5", 8010))


async def serial(address: Address, authority: bytes) -> str:
    """Of the certificate that new connections see."""
    _, writer = await asyncio.open_connection(*address, ssl=client_context(authority), server_hostname=NAME)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()


async def test_a_certificate_is_renewed_while_agents_stay_connected(
    database: Database, tmp_path: Path
) -> None:
    now = Time()
    today = now.now
    now.now = today - CERTIFICATE_LIVES / 2 - timedelta(hours=1)
    async with platform(database, settings(tmp_path), now) as (door, tls):
        local = Address("127.0.0.1", door.port)
        before = await serial(local, tls.authority)
        _, held = await asyncio.open_connection(
            *local, ssl=client_context(tls.authority), server_hostname=NAME
        )
        await tls.refresh()
        assert await serial(local, tls.authority) == before
        now.now = today
        await tls.refresh()
        assert await serial(local, tls.authority) != before
        assert not held.is_closing()
        held.close()


async def test_files_take_the_place_of_the_authority_and_are_read_again(
    database: Database, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    authority = new_authority(b"operator", now)
    ca, cert, key = (tmp_path / name for name in ("ca", "cert", "key"))
    ca.write_bytes(authority.certificate)

    def write() -> None:
        issued = issue(authority, b"operator", now)
        cert.write_bytes(issued.certificate)
        key.write_bytes(issued.key)

    write()
    here = settings(tmp_path, scheduler_ca=ca, scheduler_cert=cert, scheduler_key=key)
    async with platform(database, here, Time()) as (door, tls):
        local = Address("127.0.0.1", door.port)
        before = await serial(local, authority.certificate)
        write()
        await tls.refresh()
        assert await serial(local, authority.certificate) != before
        assert await certificate(database) is None
        assert await known_fingerprint(database, here) == fingerprint(authority.certificate)
        assert await trusted(database, here) == authority.certificate
        cert.unlink()
        await tls._attempt()
        assert await serial(local, authority.certificate), "the last one serves on"
    with pytest.raises(InvalidRequest, match="go together"):
        ServerTls(database, settings(tmp_path, scheduler_cert=cert), Time())


async def test_all_schedulers_have_one_authority_whose_key_takes_their_token(database: Database) -> None:
    now = datetime.now(UTC)
    first, second = await asyncio.gather(obtain(database, b"token", now), obtain(database, b"token", now))
    assert first.certificate == second.certificate
    assert issue(second, b"token", now).certificate
    assert b"ENCRYPTED" in first.key
    with pytest.raises(ValueError, match="password"):
        issue(first, b"another", now)


async def test_a_peer_that_says_nothing_is_left(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.accept.FIRST_BYTE_S", 0.1)
    monkeypatch.setattr(sessions, "HELLO_TIMEOUT_S", 0.1)
    async with platform(database, settings(tmp_path), Time()) as (door, tls):
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", door.port, ssl=client_context(tls.authority), server_hostname=NAME
        )
        await until(lambda: reader.at_eof() or not door.sessions)
        writer.close()


async def test_the_authority_is_shown_to_all(database: Database, tmp_path: Path) -> None:
    async with platform(database, settings(tmp_path), Time()) as (door, tls):
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(pack(msgspec.msgpack.encode(AuthorityRequest())))
        answer = msgspec.msgpack.decode(await read_frame(reader), type=AuthorityAnswer)
        assert answer.certificate == tls.authority
        writer.close()


def test_which_connections_are_by_tls() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::ffff:127.0.0.1"):
        assert not takes_tls(Address(host, 8010), "remote")
    for host in ("10.0.0.5", "scheduler", "fd00::1"):
        assert takes_tls(Address(host, 8010), "remote")
        assert not takes_tls(Address(host, 8010), "never")


def test_a_new_token_brings_a_new_trust(tmp_path: Path) -> None:
    own = credentials(tmp_path, f"pj_{'a' * 43}.{'0' * 64}")
    own.trust(b"certificate")
    assert (
        AgentCredentials(Settings(data_dir=tmp_path, join_token=SecretStr(f"pj_{'b' * 43}")), HOST).authority
        == b""
    )
