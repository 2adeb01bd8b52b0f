"""GPU cost is shared in PostgreSQL exactly as in plain Python, whether from days or hours, and always adds up."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.economics.gpu_cost import GpuUse, HourCost, host_hours
from billing.economics.weights import Coefficients, catalog_weights
from billing.reports.margin import economics_report
from billing.reports.usage_report import usage_report
from billing.usage import gpu_shares
from billing.usage.gpu_shares import (
    DAILY_SUMS_WITH_GPU,
    GPU_SUMS,
    host_costs,
    reshare_changed_days,
    share_new_days,
)
from billing.usage.query import ReportQuery, bucket_start
from billing.usage.rollups import roll_up
from core.db import Database
from core.money import usd_to_pico
from tests.integration.billing.support import make_customer, price
from tests.integration.billing.usage.share_reference import (
    DIMS,
    Parts,
    added,
    host_costs_in_python,
    make_hosts,
    make_hours,
    shares,
)

FIRST = bucket_start(datetime.now(UTC), "day") - timedelta(days=9)
HOURS = 5 * 24
BYS: tuple[tuple[str, ...], ...] = (
    ("tenant",),
    ("model",),
    ("region", "simulated"),
    ("gpu", "model"),
    ("tenant", "model", "day"),
    ("key", "hour"),
    ("month",),
)


@pytest.fixture
async def books(request: pytest.FixtureRequest, database: Database) -> tuple[random.Random, list[UUID]]:
    """Five days of rolled hours and hosts."""
    rng = random.Random(getattr(request, "param", 0))
    version = await price(database)
    tenants = [(await make_customer(database, "1", name=f"C{n}")).tenant_id for n in range(3)]
    async with database.engine.begin() as connection:
        await make_hours(connection, rng, FIRST, HOURS, tenants, version)
        await make_hosts(connection, rng, FIRST, HOURS)
    return rng, tenants


async def reference(
    database: Database, start: datetime, end: datetime
) -> tuple[dict[tuple[Any, ...], Parts], dict[datetime, HourCost]]:
    async with database.system() as connection:
        rows = await connection.execute(
            text("SELECT * FROM usage_hours WHERE hour >= :start AND hour < :end"),
            {"start": start, "end": end},
        )
        hours = await host_hours(connection, start, end)
        return shares(rows, hours, catalog_weights()), hours


def whole_cost(hours: dict[datetime, HourCost]) -> tuple[int, int]:
    """Picodollars and GPU-microseconds of everything."""
    parts = [part for use in hours.values() for part in (*use.serving.values(), *use.unused.values())]
    return sum(part.cost for part in parts), sum(part.gpu_us for part in parts)


async def counted(
    database: Database, start: datetime, end: datetime, *, by_hour: bool
) -> dict[tuple[Any, ...], Parts]:
    async with database.system() as connection:
        costs = await host_costs(connection, start, end)
        rows = await connection.execute(
            text(f"WITH {DAILY_SUMS_WITH_GPU} SELECT * FROM usage_sums"),
            costs.parameters(start, end, by_hour=by_hour),
        )
        return {
            (row.hour, *(getattr(row, name) for name in DIMS)): tuple(
                int(getattr(row, name)) for name in GPU_SUMS
            )
            for row in rows
        }  # type: ignore[return-value]


async def compare(database: Database, rng: random.Random, tenants: list[UUID]) -> None:
    """Every grouping of a random period against the reference, and the sums against the hosts' cost."""
    start = FIRST + timedelta(hours=rng.randrange(-3, HOURS // 2))
    end = start + timedelta(hours=rng.randrange(1, HOURS))
    parts, hours = await reference(database, start, end)
    assert await counted(database, start, end, by_hour=True) == parts
    tenant = rng.choice([None, tenants[0]])
    for by in BYS:
        query = ReportQuery(start, end, by, tenant)
        async with database.read() as connection:
            rows = await usage_report(connection, query)
        own = {key: part for key, part in parts.items() if tenant in (None, key[1])}
        told = {
            named(row, by): (
                usd_to_pico(row.gpu_cost_usd or "0"),
                int((row.gpu_seconds or "0").replace(".", "")),
            )
            for row in rows
            if row.requests
        }
        expected = {
            tuple(str(one) for one in key): (part[0] + part[1], part[2])
            for key, part in added(own, by).items()
        }
        assert told == expected, by
        if tenant is None:
            cost = sum(usd_to_pico(row.gpu_cost_usd or "0") for row in rows)
            spent = sum(int((row.gpu_seconds or "0").replace(".", "")) for row in rows)
            assert (cost, spent) == whole_cost(hours)


def named(row: Any, by: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in by:
        if name in ("hour", "day", "month"):
            found.append(str(bucket_start(datetime.fromisoformat(row.period_start), name)))
        else:
            found.append(str(getattr(row, f"{name}_id" if name in ("tenant", "project", "key") else name)))
    return tuple(found)


@pytest.mark.parametrize("books", range(3), indirect=True)
async def test_hosts_cost_what_plain_python_says(
    database: Database, books: tuple[random.Random, list[UUID]]
) -> None:
    async with database.system() as connection:
        expected = await host_costs_in_python(connection)
        told = await host_hours(connection, FIRST, FIRST + timedelta(hours=HOURS))
    assert {hour for hour in expected if _some(expected[hour])} == {
        hour for hour in told if _some(told[hour])
    }
    for hour, use in told.items():
        assert _some(use) == _some(expected[hour])


def _some(use: HourCost) -> dict[Any, GpuUse]:
    """All parts that are not nothing."""
    return {key: part for key, part in [*use.serving.items(), *use.unused.items()] if part != GpuUse()}


@pytest.mark.parametrize("books", range(3), indirect=True)
async def test_days_and_hours_tell_what_plain_python_tells(
    database: Database, books: tuple[random.Random, list[UUID]]
) -> None:
    rng, tenants = books
    await compare(database, rng, tenants)
    await roll_up(database)
    async with database.system() as connection:
        stored = await connection.execute(text("SELECT *, day AS hour FROM usage_days"))
        found = {
            (row.day, *(getattr(row, name) for name in DIMS)): tuple(
                int(getattr(row, name)) for name in GPU_SUMS
            )
            for row in stored
        }
        unshared = await connection.scalar(
            text("SELECT count(*) FROM usage_day_state WHERE shared_by IS NULL")
        )
    assert unshared == 0
    parts, _ = await reference(database, FIRST, FIRST + timedelta(hours=HOURS))
    assert found == added(parts, ("day", *DIMS))
    for _ in range(3):
        await compare(database, rng, tenants)


@pytest.mark.parametrize("books", range(3), indirect=True)
async def test_margins_of_all_groupings_are_the_same_shares(
    database: Database, books: tuple[random.Random, list[UUID]]
) -> None:
    await roll_up(database)
    start, end = FIRST + timedelta(hours=7), FIRST + timedelta(hours=HOURS - 5)
    parts, hours = await reference(database, start, end)
    for fully_loaded in (False, True):
        sums = []
        for by in (("tenant", "model"), ("tenant", "model", "day"), ("tenant", "model", "hour")):
            async with database.read() as connection:
                rows = await economics_report(connection, start, end, by, fully_loaded=fully_loaded)
            assert sum(usd_to_pico(row.gpu_cost_usd) for row in rows) == whole_cost(hours)[0]
            found: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
            for row in rows:
                one = found[row.line, row.tenant_id, row.model]
                one[0] += usd_to_pico(row.gpu_cost_usd)
                one[1] += usd_to_pico(row.overhead_usd)
            sums.append(dict(found))
        assert sums[0] == sums[1] == sums[2]
        direct = {
            (UUID(key[1]), key[2]): cost - overhead
            for key, (cost, overhead) in sums[0].items()
            if key[0] == "direct"
        }
        expected = added(parts, ("tenant", "model"))
        assert direct == {key: part[0] + part[1] for key, part in expected.items()}


@pytest.mark.parametrize("change", ["price", "seconds", "model", "usage", "gpus"])
async def test_a_day_whose_books_changed_is_shared_anew(
    database: Database, books: tuple[random.Random, list[UUID]], change: str
) -> None:
    rng, tenants = books
    await roll_up(database)
    statements = {
        "price": "INSERT INTO host_prices VALUES ('box', 99, CAST(:since AS timestamptz) + interval '5 hours', 'late')",
        "seconds": "UPDATE host_seconds SET seconds = seconds + 60 WHERE hour >= :since",
        "model": "DELETE FROM model_seconds WHERE hour >= :since AND model = 'river-7b'",
        "usage": "UPDATE usage_hours SET output_tokens = output_tokens + 5 WHERE hour >= :since",
        "gpus": "UPDATE hosts SET gpus = gpus + 1",
    }
    async with database.engine.begin() as connection:
        since = {"since": FIRST + timedelta(days=1)} if ":since" in statements[change] else {}
        await connection.execute(text(statements[change]), since)
        if change == "usage":  # as an hour that is rolled again leaves it
            await connection.execute(text("UPDATE usage_day_state SET whole = false"))
    await compare(database, rng, tenants)
    if change == "usage":
        await roll_up(database)
    else:
        assert await reshare_changed_days(database, FIRST + timedelta(days=6), 10) > 0
    assert await reshare_changed_days(database, FIRST + timedelta(days=6), 10) == 0
    assert await share_new_days(database) == 0
    await compare(database, rng, tenants)


async def test_other_weights_share_the_days_anew(
    database: Database, books: tuple[random.Random, list[UUID]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await roll_up(database)
    other = msgspec.structs.replace(catalog_weights(), models={"river-7b": Coefficients(5, 1, 2)})
    monkeypatch.setattr(gpu_shares, "catalog_weights", lambda: other)
    end = FIRST + timedelta(hours=HOURS)
    async with database.system() as connection:
        rows = await connection.execute(text("SELECT * FROM usage_hours"))
        parts = shares(rows, await host_hours(connection, FIRST, end), other)
    for _ in range(2):
        found = await counted(database, FIRST, end, by_hour=False)
        assert added(found, DIMS) == added(parts, DIMS)
        await reshare_changed_days(database, end, 10)


async def test_a_shared_day_is_read_as_such(
    database: Database, books: tuple[random.Random, list[UUID]]
) -> None:
    await roll_up(database)
    end = FIRST + timedelta(hours=HOURS)
    before = await counted(database, FIRST, end, by_hour=False)
    assert {key[0] for key in before} == {FIRST + timedelta(days=n) for n in range(5)}
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE usage_days SET gpu_us = gpu_us + 1"))
    assert await counted(database, FIRST, end, by_hour=False) != before


async def test_customers_sessions_cannot_read_what_gpus_cost(
    database: Database, books: tuple[random.Random, list[UUID]]
) -> None:
    await roll_up(database)
    tenant = books[1][0]
    async with database.read(tenant) as connection:
        query = ReportQuery(FIRST, FIRST + timedelta(hours=HOURS), ("tenant",), tenant, with_gpu=False)
        (row,) = await usage_report(connection, query)
        assert row.requests > 0
        assert row.gpu_cost_usd is None
    for name in GPU_SUMS:
        with pytest.raises(DBAPIError, match="permission denied"):
            async with database.read(tenant) as connection:
                await connection.execute(text(f"SELECT {name} FROM usage_days"))
