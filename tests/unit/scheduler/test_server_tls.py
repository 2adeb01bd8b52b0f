"""Files of certificates that change: a pair that does not match leaves the last context as it is."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from core.db import Database
from core.errors import InvalidRequest
from core.private_tls import issue, new_authority
from core.settings import Settings
from scheduler.server_tls import ServerTls

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def made(directory: Path, **files: Path) -> ServerTls:
    settings = Settings(data_dir=directory, internal_token=SecretStr("token")).model_copy(update=files)
    return ServerTls(
        Database("postgresql+asyncpg://nothing.invalid/none", name="test"), settings, lambda: NOW
    )


async def test_a_pair_that_does_not_match_spoils_nothing(tmp_path: Path) -> None:
    authority = new_authority(b"operator", NOW)
    first, second, third = (issue(authority, b"operator", NOW) for _ in range(3))
    ca, cert, key = (tmp_path / name for name in ("ca", "cert", "key"))
    ca.write_bytes(authority.certificate)
    cert.write_bytes(first.certificate)
    key.write_bytes(first.key)
    tls = made(tmp_path, scheduler_ca=ca, scheduler_cert=cert, scheduler_key=key)
    await tls.refresh()
    before = tls.context
    cert.write_bytes(second.certificate + b"\n")
    with pytest.raises(OSError, match=r"(?i)mismatch"):
        await tls.refresh()
    assert tls.context is before
    cert.write_bytes(third.certificate)
    key.write_bytes(third.key)
    await tls.refresh()
    assert tls.context is not before, "connections see a context that never had the wrong pair"


def test_files_go_together(tmp_path: Path) -> None:
    for name in ("scheduler_ca", "scheduler_cert", "scheduler_key"):
        with pytest.raises(InvalidRequest, match="go together"):
            made(tmp_path, **{name: tmp_path / "file"})
