"""The usage report against the raw rows, the ledger and the hosts' cost, to the picodollar."""

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import usage as admin_usage
from admin.actor import Actor, system_actor
from billing.ledger.verification import verify
from billing.metering.tokens_today import tokens_today
from billing.reports.usage_report import usage_report
from billing.usage.query import ReportQuery, ReportRow
from billing.usage.rollups import roll_up
from core.db import Database
from core.errors import InvalidRequest, PermissionDenied
from core.money import pico_to_usd, usd_to_pico
from tests.integration.billing.reports.support import MODELS, add_hosts, now_hour, settle_some
from tests.integration.billing.support import make_customer, price


async def raw(database: Database, query: ReportQuery) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The same sums in plain Python over every usage row."""
    async with database.system() as connection:
        rows = (await connection.execute(text("SELECT * FROM usage"))).all()
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        if not query.start <= row.ended_at < query.end or query.tenant_id not in (None, row.tenant_id):
            continue
        values = {
            "tenant": str(row.tenant_id),
            "project": str(row.project_id),
            "key": str(row.key_id),
            "model": row.model,
            "day": f"{row.ended_at:%Y-%m-%d}",
        }
        found = sums.setdefault(tuple(values[name] for name in query.group_by), [0] * 7)
        free = row.outcome in ("engine_failed", "zero_output")
        tokens = (row.input_tokens, row.cached_input_tokens, row.output_tokens, row.reasoning_tokens)
        for i, value in enumerate((1, int(free), *((0,) * 4 if free else tokens), int(row.cost))):
            found[i] += value
    return {key: tuple(values) for key, values in sums.items()}


def told(rows: list[ReportRow], query: ReportQuery) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The report in the same shape."""
    found = {}
    for row in rows:
        if row.requests == 0:
            continue
        values = {
            "tenant": row.tenant_id,
            "project": row.project_id,
            "key": row.key_id,
            "model": row.model,
            "day": row.period_start[:10],
        }
        found[tuple(values[name] for name in query.group_by)] = (
            row.requests,
            row.requests_unbilled,
            row.input_tokens,
            row.cached_input_tokens,
            row.output_tokens,
            row.reasoning_tokens,
            usd_to_pico(row.cost_usd),
        )
    return found


async def ask(database: Database, query: ReportQuery) -> list[ReportRow]:
    async with database.read() as connection:
        return await usage_report(connection, query)


GROUPINGS = (
    ("tenant",),
    ("day",),
    ("model", "tenant"),
    ("tenant", "project", "key", "model", "day"),
)


@pytest.mark.parametrize("seed", range(4))
async def test_the_report_equals_the_rows_and_the_ledger(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    versions = {
        "river-7b": await price(database),
        "lake-70b": await price(database, model="lake-70b", input="0.123457", output="7.654321"),
    }
    customers = [await make_customer(database, "1000", name=f"C{i}") for i in range(3)]
    hour = await now_hour(database)
    for _ in range(4):
        await settle_some(database, rng, customers, versions, rng.randrange(1, 40))
        if rng.random() < 0.7:
            await roll_up(database)
        for group_by in GROUPINGS:
            start = hour - timedelta(hours=rng.randrange(1, 60))
            end = start + timedelta(hours=rng.randrange(1, 80))
            tenant = rng.choice([None, customers[0].tenant_id])
            query = ReportQuery(start, end, group_by, tenant, with_gpu=rng.random() < 0.5)
            assert told(await ask(database, query), query) == await raw(database, query)
    everything = ReportQuery(hour - timedelta(days=3), hour + timedelta(days=1), ("tenant",))
    async with database.system() as connection:
        books = await verify(connection)
    assert books.problems == []
    reported = sum(usd_to_pico(row.cost_usd) for row in await ask(database, everything))
    assert reported == books.usage_cost == books.revenue


async def test_rollups_cover_closed_hours_only_and_repeat_harmlessly(database: Database) -> None:
    rng = random.Random(1)
    versions = {model: await price(database, model=model) for model in MODELS}
    customers = [await make_customer(database, "1000")]
    await settle_some(database, rng, customers, versions, 60)
    first = await roll_up(database)
    assert first > 0
    assert await roll_up(database) == 0
    async with database.system() as connection:
        hours = await connection.execute(
            text("SELECT max(hour) < date_trunc('hour', now(), 'UTC') FROM usage_hours")
        )
        assert hours.scalar_one() is True


@pytest.mark.parametrize("group_by", GROUPINGS)
async def test_gpu_cost_adds_up_exactly(database: Database, group_by: tuple[str, ...]) -> None:
    rng = random.Random(3)
    versions = {model: await price(database, model=model) for model in MODELS}
    customers = [await make_customer(database, "1000", name=f"C{i}") for i in range(3)]
    hour = await now_hour(database)
    cost = await add_hosts(database, hour)
    await settle_some(database, rng, customers, versions, 300)
    rows = await ask(database, ReportQuery(hour - timedelta(days=2), hour + timedelta(hours=1), group_by))
    assert sum(usd_to_pico(row.gpu_cost_usd or "0") for row in rows) == cost
    gpu_us = sum(int((row.gpu_seconds or "0").replace(".", "")) for row in rows)
    assert gpu_us == 8 * 1_000_000 * (3600 + 1188 + 3600)
    for row in rows:
        margin = usd_to_pico(row.cost_usd) - usd_to_pico(row.gpu_cost_usd or "0")
        assert row.margin_usd == pico_to_usd(margin)
    idle = [row for row in rows if row.requests == 0]
    if group_by == ("tenant",):
        assert [(row.tenant_id, row.cost_usd) for row in idle] == [(None, "0.00")]
        assert all(usd_to_pico(row.gpu_cost_usd or "0") > 0 for row in rows)
        one = ReportQuery(
            hour - timedelta(days=2), hour + timedelta(hours=1), group_by, UUID(rows[0].tenant_id or "")
        )
        assert await ask(database, one) == [rows[0]]


async def test_a_tenant_gets_its_own_report_without_our_cost(database: Database) -> None:
    versions = {model: await price(database, model=model) for model in MODELS}
    mine, other = [await make_customer(database, "1000", name=name) for name in ("Mine", "Other")]
    await settle_some(database, random.Random(6), [mine, other], versions, 30)
    hour = await now_hour(database)
    span = {"start": hour - timedelta(days=3), "end": hour + timedelta(hours=1)}
    viewer = Actor(kind="user", id="u", label="v", role="tenant_viewer", tenant_id=mine.tenant_id)
    rows = await admin_usage.usage_report(database, viewer, group_by=("tenant",), **span)
    assert [row.tenant for row in rows] == ["Mine"]
    assert rows[0].gpu_cost_usd is None
    whole = await admin_usage.usage_report(database, system_actor("t"), group_by=("tenant",), **span)
    assert rows[0].cost_usd == next(row.cost_usd for row in whole if row.tenant == "Mine")
    with pytest.raises(PermissionDenied):
        await admin_usage.usage_report(
            database, viewer, group_by=("tenant",), tenant_id=other.tenant_id, **span
        )


@pytest.mark.parametrize(
    ("start", "end", "group_by"),
    [
        (0, 0, ("tenant",)),
        (1, 0, ("tenant",)),
        (0, 1, ()),
        (0, 1, ("colour",)),
        (0, 1, ("day", "day")),
        (0, 9999, ("day",)),
    ],
)
async def test_nonsense_is_refused(
    database: Database, start: int, end: int, group_by: tuple[str, ...]
) -> None:
    hour = await now_hour(database)
    with pytest.raises(InvalidRequest):
        await ask(database, ReportQuery(hour + timedelta(days=start), hour + timedelta(days=end), group_by))
    with pytest.raises(InvalidRequest):
        await ask(database, ReportQuery(hour + timedelta(minutes=5), hour + timedelta(days=1), ("day",)))


async def test_tokens_of_today_by_scope(database: Database) -> None:
    versions = {model: await price(database, model=model) for model in MODELS}
    customer = await make_customer(database, "1000")
    await settle_some(database, random.Random(7), [customer], versions, 50)
    hour = await now_hour(database)
    used = await tokens_today(database, customer.tenant_id, hour)
    async with database.system() as connection:
        expected = await connection.execute(
            text(
                "SELECT sum(input_tokens + output_tokens) FROM usage "
                "WHERE ended_at >= date_trunc('day', CAST(:at AS timestamptz), 'UTC')"
            ),
            {"at": hour},
        )
        total = int(expected.scalar_one() or 0)
    assert used.get(customer.key_id, 0) == used.get(customer.tenant_id, 0) == total
