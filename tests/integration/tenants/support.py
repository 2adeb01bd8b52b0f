"""A KeyRing for tests of keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from admin import keys as admin_keys
from core.clock import SystemClock
from core.db import Database
from tenants.keys import KeyRing
from tests.support.clock import ManualClock
from tests.support.tenancy import ADMIN, PEPPER, Organisation

NEVER_S = 3600.0


@asynccontextmanager
async def ring(
    database: Database, redis: Redis | None = None, **options: float | int | ManualClock
) -> AsyncIterator[KeyRing]:
    clock = options.pop("clock", None) or SystemClock()
    keys = KeyRing(database, database, redis, PEPPER, clock, **options)  # type: ignore[arg-type]  # numbers of the right kind
    await keys.start()
    try:
        yield keys
    finally:
        await keys.close()


async def revoke(database: Database, acme: Organisation) -> None:
    await admin_keys.revoke_key(database, ADMIN, key_id=acme.key_id)
