"""PostgreSQL: one schema and three roles.

* The owner is the login of DATABASE_URL and runs only migrations.
* `penstock_app` sees one tenant's rows (row-level security on `penstock.tenant_id`).
* `penstock_system` sees all rows: key look-up, holds, settlement, jobs, platform admins.

Neither of the last two can update or delete ledger or audit rows. A session is one transaction, committed at its end;
read-only and writing sessions are different context managers.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
from sqlalchemy import MetaData, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

APP_ROLE = "penstock_app"
SYSTEM_ROLE = "penstock_system"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Each package declares its tables on it in its own tables.py; migrations/ owns the DDL."""


def sqlalchemy_url(database_url: str) -> str:
    """`database_url` (postgresql://...) with SQLAlchemy's asyncpg driver."""
    parts = urlsplit(database_url)
    return urlunsplit(parts._replace(scheme="postgresql+asyncpg"))


class Timeouts(NamedTuple):
    """How long PostgreSQL lets a session wait or work, in seconds, before it ends the statement or the session."""

    statement_s: float
    lock_s: float
    """Of one statement for a lock."""
    idle_s: float
    """Of an open transaction for its next statement; the session ends, and with it its locks."""


ONLINE = Timeouts(statement_s=120.0, lock_s=20.0, idle_s=120.0)
"""For requests and pages."""
BATCH = Timeouts(statement_s=900.0, lock_s=60.0, idle_s=600.0)
"""For reports, exports, commands and background jobs."""

TIMED_OUT = (asyncpg.QueryCanceledError.sqlstate, asyncpg.LockNotAvailableError.sqlstate)
"""SQLSTATEs of a statement that PostgreSQL has ended for its time or that of its lock."""


def timed_out(error: BaseException | None) -> bool:
    """Whether PostgreSQL has ended a statement by one of the Timeouts, as SQLAlchemy raises it."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in TIMED_OUT


class Database:
    """A SQLAlchemy engine whose sessions run as `penstock_app` or `penstock_system`.

    For everything but the hot path, which uses `connect_system`.
    """

    def __init__(
        self,
        database_url: str,
        *,
        name: str = "penstock",
        pool_size: int = 5,
        max_overflow: int = 5,
        timeouts: Timeouts = ONLINE,
    ) -> None:
        """`name`: the application_name of its connections, which tells pools apart in pg_stat_activity."""
        self.url = database_url
        self.after_change: Callable[[], Awaitable[None]] | None = None
        """Called after each committed administrative act, so that it takes effect before the next poll."""
        self.engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(database_url),
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_pre_ping=True,
            # The connection used last, and not each in turn: a backend keeps what it has learnt of every statement.
            pool_use_lifo=True,
            connect_args={
                "server_settings": {
                    "timezone": "UTC",
                    "application_name": name,
                    "statement_timeout": f"{timeouts.statement_s * 1000:.0f}",
                    "lock_timeout": f"{timeouts.lock_s * 1000:.0f}",
                    "idle_in_transaction_session_timeout": f"{timeouts.idle_s * 1000:.0f}",
                }
            },
        )

    async def close(self) -> None:
        """Close every pooled connection."""
        await self.engine.dispose()

    @asynccontextmanager
    async def system(self) -> AsyncIterator[AsyncConnection]:
        """One transaction as `penstock_system`; commits at the end, rolls back on an error."""
        async with self.engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL ROLE {SYSTEM_ROLE}"))
            yield connection

    @asynccontextmanager
    async def tenant(self, tenant_id: UUID) -> AsyncIterator[AsyncConnection]:
        """One transaction as `penstock_app` that sees only `tenant_id`'s rows."""
        async with self.engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL ROLE {APP_ROLE}"))
            await connection.execute(
                text("SELECT set_config('penstock.tenant_id', :tenant, true)"), {"tenant": str(tenant_id)}
            )
            yield connection

    @asynccontextmanager
    async def read(self, tenant_id: UUID | None = None) -> AsyncIterator[AsyncConnection]:
        """A read-only transaction of one tenant, or of the platform with None."""
        session = self.system() if tenant_id is None else self.tenant(tenant_id)
        async with session as connection:
            await connection.execute(text("SET TRANSACTION READ ONLY"))
            yield connection

    @asynccontextmanager
    async def snapshot(self, tenant_id: UUID | None = None) -> AsyncIterator[AsyncConnection]:
        """Like `read`, with one snapshot for all statements (REPEATABLE READ)."""
        async with self.engine.begin() as connection:
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            await connection.execute(text(f"SET LOCAL ROLE {SYSTEM_ROLE if tenant_id is None else APP_ROLE}"))
            if tenant_id is not None:
                await connection.execute(
                    text("SELECT set_config('penstock.tenant_id', :tenant, true)"), {"tenant": str(tenant_id)}
                )
            yield connection


async def connect_system(database_url: str, **options: Any) -> "asyncpg.Connection[asyncpg.Record]":
    """A raw connection as `penstock_system` for the hot path; `options` are asyncpg's.

    Never cancel a running command: that leaves an asyncpg connection in an unknown state (sqlalchemy #12077). Callers
    wait on futures instead and let the command finish.
    """
    return await asyncpg.connect(
        database_url,
        server_settings={"role": SYSTEM_ROLE, "timezone": "UTC", "application_name": "penstock-hot"},
        **options,
    )
