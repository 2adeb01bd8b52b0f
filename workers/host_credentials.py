"""Who may report as a host, in PostgreSQL: join tokens, the secrets of hosts that have joined, and their end.

A host makes its secret itself and joins with the token and the secret's hash. A token is bound to the first secret that
uses it: the same host may ask again when it has not seen the answer, and no other can use the token.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from core.polled_snapshot import PolledSnapshot
from core.supervise import supervise
from workers.tables import host_credentials
from workers.wire import SIMULATED_HOST

POLL_S = 1.0
"""Seconds between two reads: how long a revoked host is still heard, and a new one not yet known elsewhere."""
FIRST_READ_S = 3.0
"""Seconds that a start waits for the first read."""

_INVITE = text(
    """
    INSERT INTO host_credentials (host_id, invited_at, join_hash, join_expires_at)
    VALUES (:host, clock_timestamp(), :hash, clock_timestamp() + CAST(:valid AS interval))
    ON CONFLICT (host_id) DO UPDATE SET invited_at = excluded.invited_at, join_hash = excluded.join_hash,
        join_expires_at = excluded.join_expires_at, join_used_by = NULL
    RETURNING join_expires_at
    """
)
_JOIN = text(
    """
    UPDATE host_credentials SET join_used_by = :secret, secret_hash = :secret, revoked_at = NULL,
        joined_at = CASE WHEN join_used_by IS NULL THEN clock_timestamp() ELSE joined_at END
    WHERE host_id = :host AND join_hash = :hash AND (join_used_by = :secret
        OR join_used_by IS NULL AND join_expires_at > clock_timestamp())
    RETURNING host_id
    """
)
_WHY_NOT = text(
    "SELECT join_hash = :hash AS same, join_used_by IS NOT NULL AS used FROM host_credentials WHERE host_id = :host"
)
_REVOKE = text(
    """
    UPDATE host_credentials SET secret_hash = NULL, join_hash = NULL, join_expires_at = NULL, join_used_by = NULL,
        revoked_at = clock_timestamp() WHERE host_id = :host AND (secret_hash IS NOT NULL OR join_hash IS NOT NULL)
    """
)


class HostCredential(msgspec.Struct, frozen=True):
    """What is known of a host's right to report; secrets are not."""

    host_id: str
    invited_at: datetime
    join_expires_at: datetime | None
    """Until when its token can be used; None = it has none."""
    token_used: bool
    """Whether that token was used."""
    joined_at: datetime | None
    revoked_at: datetime | None
    holds: bool
    """Whether it has a secret that holds."""


async def invite(connection: AsyncConnection, host: str, token_hash: bytes, valid: timedelta) -> datetime:
    """Store a host's token in place of an earlier one; returns when it expires. A secret that holds goes on holding
    until the token is used."""
    bound = {"host": host, "hash": token_hash, "valid": valid}
    expires: datetime = (await connection.execute(_INVITE, bound)).scalar_one()
    return expires


async def join(connection: AsyncConnection, host: str, token_hash: bytes, secret: bytes) -> str:
    """Let the secret with the hash `secret` hold for a host. Returns why not, or an empty text."""
    bound: dict[str, Any] = {"host": host, "hash": token_hash, "secret": secret}
    if (await connection.execute(_JOIN, bound)).one_or_none() is not None:
        return ""
    row = (await connection.execute(_WHY_NOT, {"host": host, "hash": token_hash})).one_or_none()
    if row is None or not row.same:
        return f"the join token is not one for host {host}: a token works for the host that it names, until the next"
    if row.used:
        return f"the join token of host {host} was used already; invite the host again"
    return f"the join token of host {host} has expired; invite the host again"


async def revoke(connection: AsyncConnection, host: str) -> bool:
    """End a host's secret and token; whether it had one."""
    return (await connection.execute(_REVOKE, {"host": host})).rowcount == 1


async def read_credentials(connection: AsyncConnection) -> Mapping[str, HostCredential]:
    """All hosts that were ever invited, by name."""
    table = host_credentials.c
    found = {
        "token_used": table.join_used_by.is_not(None).label("token_used"),
        "holds": table.secret_hash.is_not(None).label("holds"),
    }
    columns = [found[name] if name in found else table[name] for name in HostCredential.__struct_fields__]
    rows = await connection.execute(select(*columns))
    return {row["host_id"]: HostCredential(**row) for row in rows.mappings()}


def credential_of(credentials: Mapping[str, HostCredential], host_id: str) -> HostCredential | None:
    """The credential of a host by the id in its heartbeats; with simulated engines that is `sim-` and its name."""
    return credentials.get(host_id) or credentials.get(host_id.removeprefix(SIMULATED_HOST))


def joining_state(credential: HostCredential, now: datetime) -> str:
    """How far a host's joining is: `own secret`, `invited`, `revoked` or `token expired`."""
    if credential.holds:
        return "own secret"
    if credential.join_expires_at is not None:
        return "invited" if credential.join_expires_at > now else "token expired"
    return "revoked"


class HostSecrets(PolledSnapshot):
    """The hashes of the secrets that hold. The last ones stay in force while PostgreSQL does not answer."""

    def __init__(self, database: Database, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            database, "secrets of hosts", task="host-secrets", every_s=POLL_S, max_age_s=float("inf"), now=now
        )
        self.hashes: dict[str, bytes] = {}
        """By host."""

    @property
    def known(self) -> bool:
        """Whether they were ever read."""
        return self._read_at > -math.inf

    async def start(self) -> None:
        """Read them, and again in the background. Without PostgreSQL they are known later."""
        try:
            async with asyncio.timeout(FIRST_READ_S):
                await self.refresh()
        except Exception as error:  # noqa: BLE001 - hosts are told to come again until a later read
            self._log.warning("the secrets of hosts cannot be read yet: %s", error)
        self._task = supervise(self._task_name, self._poll)

    async def _read(self, connection: AsyncConnection) -> None:
        rows = await connection.execute(
            select(host_credentials.c.host_id, host_credentials.c.secret_hash).where(
                host_credentials.c.secret_hash.is_not(None)
            )
        )
        self.hashes = {row.host_id: bytes(row.secret_hash) for row in rows}
