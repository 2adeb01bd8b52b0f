"""The rows of responses that run in the background.

The process that runs one moves `runs_until` forward. All instants are the database's. When `runs_until` has passed, the
response has failed for every reader, and nothing changes it any more: neither a later renewal nor a late end.
"""

import asyncio
from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text

from core.db import Database
from core.errors import RateLimited
from gateway.dialects.responses.store import Kept, pack, request_id_of
from gateway.dialects.responses.unbroken import UnbrokenWork
from tenants.principal import Principal

LEASE_S = 60.0
"""Seconds after which a response whose process no longer renews it has failed. A hold expires after the same time."""
TIMEOUT_S = 5.0
"""Seconds that one statement may take."""
RETRY_AFTER_S = 5.0
"""Seconds after which a client that has too many responses in the background is asked to come back."""
_LOCK = text(
    "SELECT pg_advisory_xact_lock(hashtext('penstock_background'), hashtext(CAST(:project AS text)))"
)
_COUNT = text(
    "SELECT count(*) FROM stored_responses "
    "WHERE tenant_id = :tenant AND project_id = :project AND runs_until > now()"
)
_INSERT = text(
    "INSERT INTO stored_responses (id, tenant_id, project_id, previous_id, expires_at, input, response, runs_until) "
    "VALUES (:id, :tenant, :project, :previous, now() + make_interval(days => :days), :input, :response, "
    "now() + make_interval(secs => :lease))"
)
_LOOK = text("SELECT id, cancel, runs_until > now() AS runs FROM stored_responses WHERE id = ANY(:ids)")
_BEGUN = text("UPDATE stored_responses SET in_progress = true WHERE id = ANY(:ids) AND runs_until > now()")
_RENEW = text(
    "UPDATE stored_responses SET runs_until = now() + make_interval(secs => :lease) "
    "WHERE id = ANY(:ids) AND runs_until > now()"
)
_END = text(
    "UPDATE stored_responses SET response = CASE WHEN cancel THEN CAST(:cancelled AS bytea) "
    "ELSE CAST(:response AS bytea) END, runs_until = NULL "
    "WHERE id = :id AND tenant_id = :tenant AND project_id = :project AND runs_until > now() RETURNING cancel"
)
_CANCEL = text(
    "UPDATE stored_responses SET cancel = true "
    "WHERE id = :id AND tenant_id = :tenant AND project_id = :project AND runs_until > now()"
)
_DELETE = text(
    "DELETE FROM stored_responses WHERE id = :id AND tenant_id = :tenant AND project_id = :project"
)


class Look(msgspec.Struct, frozen=True):
    """What the process that runs a response has to know of its row."""

    cancel: bool
    """Whether its client has cancelled it."""
    runs: bool
    """False = it was not renewed in time and has failed."""


class RunningResponses:
    """Writes the rows of responses in the background. One per process.

    Its methods raise `unbroken.FAILURES` while PostgreSQL is away.
    """

    def __init__(self, database: Database, days: int, per_project: int) -> None:
        """`days`: how long responses are kept where their project keeps them no shorter.

        `per_project`: how many of one project may run at a time.
        """
        self._database = database
        self._days = days
        self._per_project = per_project
        self._work = UnbrokenWork()

    async def close(self) -> None:
        """Wait for writes in progress."""
        await self._work.close(TIMEOUT_S)

    def allowed(self, principal: Principal) -> bool:
        """Whether responses of the key's project are stored, without which none can run in the background."""
        return principal.responses_kept(self._days) > 0

    async def begin(self, principal: Principal, request_id: UUID, kept: Kept, document: bytes) -> None:
        """Store a response that is queued. Raises RateLimited when too many of its project run."""
        row = {
            **_scope(principal, request_id),
            "previous": request_id_of(kept.previous),
            "days": principal.responses_kept(self._days),
            "lease": LEASE_S,
            "input": kept.input,
            "response": await asyncio.to_thread(pack, document),
        }

        async def write() -> None:
            scope = {"tenant": principal.tenant_id, "project": principal.project_id}
            async with self._database.tenant(principal.tenant_id) as connection:
                await connection.execute(_LOCK, {"project": str(principal.project_id)})
                if (await connection.execute(_COUNT, scope)).scalar_one() >= self._per_project:
                    raise _too_many(self._per_project)
                await connection.execute(_INSERT, row)

        await self._work.within(TIMEOUT_S, write())

    async def look(self, ids: Collection[UUID]) -> dict[UUID, Look]:
        """Return what the rows of running responses say; a deleted one is missing."""
        rows = await self._system(_LOOK, {"ids": list(ids)})
        return {row.id: Look(row.cancel, bool(row.runs)) for row in rows.all()}

    async def mark_begun(self, ids: Collection[UUID]) -> None:
        """Note that the engines of responses have begun."""
        await self._system(_BEGUN, {"ids": list(ids)})

    async def renew(self, ids: Collection[UUID]) -> None:
        """Note that this process is alive and runs these responses."""
        await self._system(_RENEW, {"ids": list(ids), "lease": LEASE_S})

    async def _system(self, statement: Any, values: dict[str, Any]) -> Any:
        async def work() -> Any:
            async with self._database.system() as connection:
                return await connection.execute(statement, values)

        return await self._work.within(TIMEOUT_S, work())

    async def end(
        self, principal: Principal, request_id: UUID, document: bytes, cancelled: bytes
    ) -> bool | None:
        """Store the end of a response: `document`, or `cancelled` when its client has cancelled it meanwhile.

        Returns whether it was cancelled; None when its row is deleted or has failed, and nothing is stored.
        """
        values = {
            **_scope(principal, request_id),
            "response": await asyncio.to_thread(pack, document),
            "cancelled": await asyncio.to_thread(pack, cancelled),
        }
        found = await self._tenant(principal, _END, values)
        row = found.first()
        return None if row is None else bool(row.cancel)

    async def cancel(self, principal: Principal, request_id: UUID) -> None:
        """Ask the process that runs a response to end it. Does nothing when it has ended."""
        await self._tenant(principal, _CANCEL, _scope(principal, request_id))

    async def discard(self, principal: Principal, request_id: UUID) -> None:
        """Delete the row of a request that is refused before its client has learnt of it."""
        await self._tenant(principal, _DELETE, _scope(principal, request_id))

    async def _tenant(self, principal: Principal, statement: Any, values: dict[str, Any]) -> Any:
        async def work() -> Any:
            async with self._database.tenant(principal.tenant_id) as connection:
                return await connection.execute(statement, values)

        return await self._work.within(TIMEOUT_S, work())


def _scope(principal: Principal, request_id: UUID) -> dict[str, Any]:
    return {"id": request_id, "tenant": principal.tenant_id, "project": principal.project_id}


def _too_many(most: int) -> RateLimited:
    return RateLimited(
        f"{most} responses of this project run in the background already, which is the most at a time; wait until one "
        "has ended, cancel one, or ask for this one without 'background'.",
        code="too_many_background_responses",
        param="background",
        details={"scope": "project", "kind": "background_responses", "limit": most},
        retry_after_s=RETRY_AFTER_S,
    )
