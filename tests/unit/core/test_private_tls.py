"""Whom a client trusts: the certificates that the fingerprint covers, and nothing else of what was sent."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from pydantic import SecretStr

from core.addresses import Address
from core.framing import pack
from core.private_tls import certificates_alone, client_context, fingerprint, new_authority, read_authority
from core.settings import Settings
from workers.join_token import new_secret
from workers.own_credentials import AgentCredentials
from workers.scheduler_dialer import SchedulerDialer
from workers.scheduler_link import Untrusted
from workers.wire import AuthorityAnswer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS, OTHER = (new_authority(b"key", NOW).certificate for _ in range(2))
TRUSTED = OTHER.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE")
"""A block that OpenSSL trusts and that the fingerprint does not cover."""


def trusted(authority: bytes) -> set[bytes]:
    return set(client_context(authority).get_ca_certs(binary_form=True))


def test_a_fingerprint_covers_all_certificates() -> None:
    assert fingerprint(OURS + OTHER) not in (fingerprint(OURS), fingerprint(OTHER), fingerprint(OTHER + OURS))
    assert fingerprint(b"text\n" + OURS) == fingerprint(OURS)


def test_what_the_fingerprint_does_not_cover_is_not_trusted(tmp_path: Path) -> None:
    assert fingerprint(OURS + TRUSTED) == fingerprint(OURS)
    assert certificates_alone(TRUSTED + OURS + TRUSTED) == OURS
    assert trusted(OURS + TRUSTED) == trusted(OURS)
    path = tmp_path / "ca"
    path.write_bytes(b"# bundle\n" + OURS + TRUSTED + OTHER)
    assert read_authority(path) == OURS + OTHER
    with pytest.raises(ValueError, match="PEM"):
        client_context(TRUSTED)


async def asked(answer: bytes, directory: Path, monkeypatch: pytest.MonkeyPatch) -> AgentCredentials:
    """A host whose token has the fingerprint of OURS asks a server that shows `answer`."""
    writer = Mock(asyncio.StreamWriter)

    async def connect(*_: object, **__: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader()
        reader.feed_data(pack(msgspec.msgpack.encode(AuthorityAnswer(answer))))
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", connect)
    token = SecretStr(f"pj_{new_secret()}.{fingerprint(OURS)}")
    settings = Settings(data_dir=directory, join_token=token)
    own = AgentCredentials(settings, "b300-1")
    await SchedulerDialer(settings, own)(Address("10.0.0.2", 8010))
    return own


async def test_an_authority_added_to_the_right_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (OURS + OTHER, OTHER + OURS):
        with pytest.raises(Untrusted, match="not the scheduler of the join token"):
            await asked(answer, tmp_path, monkeypatch)


async def test_only_certificates_of_an_answer_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await asked(OURS + TRUSTED, tmp_path, monkeypatch)
    assert own.authority == OURS
