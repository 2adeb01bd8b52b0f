"""What hosts that have joined may say: engine keys, replicas and addresses of their own, and joins of a sound form."""

import pytest

from core.db import Database
from scheduler.engine_keys import EngineKeyBook
from scheduler.host_admission import HostAdmission, confined
from tests.support.scheduling import beat, replica
from workers.join_token import new_secret, secret_hash
from workers.wire import AgentHello, AgentJoin

HOST, PEER = "b300-1", "10.0.0.5"


@pytest.fixture
def hosts() -> HostAdmission:
    """One that cannot reach PostgreSQL, and has heard of HOST with the secret `own`."""
    made = HostAdmission(Database("postgresql+asyncpg://nothing.invalid/none", name="test"), "always")
    made._secrets.hashes[HOST] = (secret_hash("own"),)
    return made


@pytest.mark.parametrize("key", ["", "short", "a" * 257, "a" * 20 + "\r\nHost: x", "a" * 20 + "\n", "é" * 20])
def test_a_joined_host_needs_a_sound_engine_key(hosts: HostAdmission, key: str) -> None:
    """With an empty one, API processes would send the key of the platform."""
    assert "engine key of host b300-1" in hosts.fault(AgentHello("own", HOST, joined=True, engine_key=key))
    assert not hosts.fault(AgentHello("own", HOST, joined=True, engine_key=new_secret()))


@pytest.mark.parametrize(
    ("url", "peer"),
    [
        ("http://10.0.0.6:8000", PEER),
        ("http://10.0.0.5:8000@10.0.0.6", PEER),
        ("http://10.0.0.5:8000/a b", PEER),
        ("http://10.0.0.5:8000/\r\nX: y", PEER),
        ("file://10.0.0.5/etc", PEER),
        ("http://name:8000", PEER),
        ("http://[10.0.0.5:8000", PEER),
        ("http://127.0.0.1:8000", PEER),
        ("", PEER),
    ],
)
def test_engines_elsewhere_are_refused(url: str, peer: str) -> None:
    one = replica(f"{HOST}/r0")
    one.url = url
    heartbeat = beat(one)
    assert confined(heartbeat, HOST, peer) == [f"{HOST}/r0"]
    assert not heartbeat.replicas


@pytest.mark.parametrize(
    ("url", "peer"),
    [
        ("http://10.0.0.5:8000", PEER),
        ("https://10.0.0.5:8000/x", "::ffff:10.0.0.5"),
        ("http://[fd00::1]:8000", "fd00:0::1"),
        ("http://localhost:8000", "::1"),
    ],
)
def test_engines_of_the_host_itself_are_taken(url: str, peer: str) -> None:
    one = replica(f"{HOST}/r0")
    one.url = url
    assert not confined(beat(one), HOST, peer)


async def test_a_join_of_no_sound_form_is_refused_before_postgresql(hosts: HostAdmission) -> None:
    sound = AgentJoin(new_secret(), HOST, secret_hash("a"))
    assert "cannot reach its database" in await hosts.join(sound)
    for message in (
        AgentJoin(new_secret(), "a/b", secret_hash("a")),
        AgentJoin("a" * 4000, HOST, secret_hash("a")),
        AgentJoin(new_secret(), HOST, b"short"),
    ):
        problem = await hosts.join(message)
        assert problem
        assert "database" not in problem


def test_a_key_is_kept_as_long_as_a_replica() -> None:
    keys = EngineKeyBook()
    assert keys.heard(HOST, "key", b"authority", [f"{HOST}/r0", f"{HOST}/r1"])
    keys.keep([f"{HOST}/r1"])
    [host] = keys.frame().hosts
    assert (host.key, host.authority, f"{HOST}/r1" in host.replicas) == ("key", b"authority", True)
    keys.keep([])
    assert not keys.frame().hosts
    assert not keys.heard(HOST, "key", b"", []), "nothing changes for clients"
