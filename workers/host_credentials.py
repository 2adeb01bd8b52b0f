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
    INSERT INTO host_credentials AS h (host_id, invited_at, join_hash, join_expires_at)
    VALUES (:host, clock_timestamp(), :hash, clock_timestamp() + CAST(:valid AS interval))
    ON CONFLICT (host_id) DO UPDATE SET invited_at = excluded.invited_at, join_hash = excluded.join_hash,
        join_expires_at = excluded.join_expires_at, join_used_by = NULL,
        earlier_join_hashes = CASE WHEN :beside AND h.join_hash IS NOT NULL AND h.join_used_by IS NULL
            THEN h.earlier_join_hashes || h.join_hash ELSE '{}' END
    RETURNING join_expires_at
    """
)
_JOIN = text(
    """
    UPDATE host_credentials SET join_used_by = :secret, secret_hash = :secret, revoked_at = NULL, join_hash = :hash,
        previous_hash = NULL, previous_until = NULL, rotation_overlap = NULL, earlier_join_hashes = '{}',
        joined_at = CASE WHEN join_used_by IS NULL THEN clock_timestamp() ELSE joined_at END
    WHERE host_id = :host AND (join_hash = :hash OR :hash = ANY(earlier_join_hashes)) AND (join_used_by = :secret
        OR join_used_by IS NULL AND join_expires_at > clock_timestamp())
    RETURNING host_id
    """
)
_WHY_NOT = text(
    "SELECT join_hash = :hash OR :hash = ANY(earlier_join_hashes) AS same, join_used_by IS NOT NULL AS used "
    "FROM host_credentials WHERE host_id = :host"
)
_REVOKE = text(
    """
    UPDATE host_credentials SET secret_hash = NULL, join_hash = NULL, join_expires_at = NULL, join_used_by = NULL,
        earlier_join_hashes = '{}', previous_hash = NULL, previous_until = NULL, rotation_overlap = NULL,
        revoked_at = clock_timestamp() WHERE host_id = :host AND (secret_hash IS NOT NULL OR join_hash IS NOT NULL)
    """
)

_ASK_ROTATION = text(
    "UPDATE host_credentials SET rotation_overlap = :overlap WHERE host_id = :host AND secret_hash IS NOT NULL"
)
_ROTATE = text(
    """
    UPDATE host_credentials SET secret_hash = :new, previous_hash = secret_hash, rotation_overlap = NULL,
        join_hash = CASE WHEN join_used_by IS NULL THEN join_hash END, join_used_by = NULL,
        join_expires_at = CASE WHEN join_used_by IS NULL THEN join_expires_at END,
        previous_until = clock_timestamp() + rotation_overlap, rotated_at = clock_timestamp()
    WHERE host_id = :host AND secret_hash = :old AND rotation_overlap IS NOT NULL
    RETURNING host_id
    """
)
_HOLDING = text(
    """
    SELECT host_id, secret_hash, CASE WHEN previous_until > clock_timestamp() THEN previous_hash END AS previous,
        rotation_overlap IS NOT NULL AS rotates
    FROM host_credentials WHERE secret_hash IS NOT NULL
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
    rotates: bool
    """Whether an admin has asked for another secret, which its agent has not made yet."""
    rotated_at: datetime | None
    """When its secret was replaced last; None = never."""
    previous_until: datetime | None
    """Until when the secret before holds; None = there was none."""


async def invite(
    connection: AsyncConnection, host: str, token_hash: bytes, valid: timedelta, *, beside: bool = False
) -> datetime:
    """Store a host's token in place of earlier ones; returns when it expires. A secret that holds goes on holding
    until the token is used. With `beside` earlier tokens that were not used work as well, and the first use ends all.
    """
    bound = {"host": host, "hash": token_hash, "valid": valid, "beside": beside}
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


async def ask_rotation(connection: AsyncConnection, host: str, overlap: timedelta) -> bool:
    """Ask the agent of a host for another secret; the old one holds for `overlap` beside it. Whether it had one."""
    return (await connection.execute(_ASK_ROTATION, {"host": host, "overlap": overlap})).rowcount == 1


async def rotate(connection: AsyncConnection, host: str, old: bytes, new: bytes) -> str:
    """Let the secret with the hash `new` hold beside `old` if that was asked for. Returns why not, or an empty text."""
    bound = {"host": host, "old": old, "new": new}
    if (await connection.execute(_ROTATE, bound)).one_or_none() is not None:
        return ""
    return f"no other secret of host {host} was asked for, or it has another one already"


async def read_credentials(connection: AsyncConnection) -> Mapping[str, HostCredential]:
    """All hosts that were ever invited, by name."""
    table = host_credentials.c
    found = {
        "token_used": table.join_used_by.is_not(None).label("token_used"),
        "holds": table.secret_hash.is_not(None).label("holds"),
        "rotates": table.rotation_overlap.is_not(None).label("rotates"),
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
        self.hashes: dict[str, tuple[bytes, ...]] = {}
        """By host: of its secret, and of the one before while that holds."""
        self.rotates: set[str] = set()
        """Hosts whose agents are to make another secret."""

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
        rows = (await connection.execute(_HOLDING)).all()
        self.hashes = {
            row.host_id: tuple(bytes(one) for one in (row.secret_hash, row.previous) if one is not None)
            for row in rows
        }
        self.rotates = {row.host_id for row in rows if row.rotates}
