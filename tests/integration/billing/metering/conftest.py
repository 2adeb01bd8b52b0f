"""Connections of the money path."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from billing.metering.holds import HoldManager
from core.clock import SystemClock
from core.db import connect_system


@pytest.fixture
async def manager(pg_url: str) -> AsyncIterator[HoldManager]:
    manager = HoldManager(pg_url, "api-test", ttl_s=60, clock=SystemClock(), timeout_s=30.0)
    await manager.start()
    yield manager
    await manager.close()


@pytest.fixture
async def hot(pg_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    connection = await connect_system(pg_url)
    yield connection
    await connection.close()
