"""Narrow usage rows: the view returns what was settled; late ends, row-level security, concurrent settlements."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from billing.ledger.transfers import seal
from billing.ledger.verification import verify
from billing.metering.records import Outcome
from billing.usage.rollups import roll_up
from billing.usage.sums import DAILY_SUMS, HOURLY_SUMS
from core.db import Database, connect_system
from core.ids import uuid7
from tests.integration.billing.support import MODEL, Customer, make_customer, price, settle_json

Hot = "asyncpg.Connection[asyncpg.Record]"
LATE = timedelta(hours=48)


@pytest.fixture
async def hot(pg_url: str) -> "AsyncIterator[Hot]":
    connection = await connect_system(pg_url)
    yield connection
    await connection.close()


def row(customer: Customer, version: int, **changes: Any) -> dict[str, Any]:
    """A flat record as penstock_settle reads it."""
    facts: dict[str, Any] = {
        "request_id": uuid7(), "tenant_id": customer.tenant_id, "project_id": customer.project_id,
        "key_id": customer.key_id, "model": MODEL, "tier": "standard", "region": "test", "replica_id": "h/0",
        "boot_id": "b", "admitted_at": datetime.now(UTC) - timedelta(seconds=10), "outcome": "completed",
        "free": False, "attempts": 1, "stream": True, "simulated": False, "price_version": version,
        "list_price_version": version, "input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 5,
        "reasoning_tokens": 0, "unbilled_input_tokens": 0, "unbilled_output_tokens": 0, "queue_us": 0, "ttft_us": 0,
        "duration_us": 1_000_000, "gpu": "", **changes,
    }  # fmt: skip
    facts["free"] = Outcome(facts["outcome"]).free
    return facts


async def settle(hot: Hot, *rows: dict[str, Any]) -> dict[UUID, str]:
    found = await hot.fetch(settle_json(), msgspec.json.encode(rows).decode())
    return {one["request_id"]: one["result"] for one in found}


tokens = st.integers(0, 2_000_000)
micros = st.integers(0, 2**33)
records = st.lists(
    st.fixed_dictionaries(
        {
            "region": st.sampled_from(["fra", "nyc"]),
            "gpu": st.sampled_from(["", "H200", "B300"]),
            "tier": st.sampled_from(["standard", "priority"]),
            "replica_id": st.sampled_from(["h/0", "h/1"]),
            "boot_id": st.sampled_from(["a", "b"]),
            "outcome": st.sampled_from([outcome.value for outcome in Outcome]),
            "attempts": st.integers(1, 3),
            "stream": st.booleans(),
            "simulated": st.booleans(),
            "input_tokens": tokens,
            "cached_share": st.integers(0, 4),
            "output_tokens": tokens,
            "reasoning_share": st.integers(0, 4),
            "unbilled_input_tokens": tokens,
            "unbilled_output_tokens": tokens,
            "queue_us": micros,
            "ttft_us": micros,
            "duration_us": st.integers(0, 10**9) | st.integers(0, 7 * 86_400_000_000),
            "ago_us": st.integers(-(10**8), 10**8) | st.integers(0, 4 * 86_400_000_000),
        }
    ),
    min_size=1,
    max_size=6,
)


def test_the_view_says_what_was_settled(pg_url: str) -> None:
    """The view returns every column of random records, and the hourly sums agree with the rows."""
    with asyncio.Runner() as runner:
        database = Database(pg_url)
        customer = runner.run(make_customer(database, mode="postpaid"))
        versions = [
            runner.run(price(database)),
            runner.run(
                price(
                    database,
                    tenant_id=customer.tenant_id,
                    input="0.7",
                    cached_input="0.05",
                    output="3.33",
                    reasoning="20",
                )
            ),
        ]
        hot = runner.run(connect_system(pg_url))

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(drawn=records)
        def settled_rows_are_told(drawn: list[dict[str, Any]]) -> None:
            runner.run(_settle_and_compare(hot, customer, versions, drawn))

        try:
            settled_rows_are_told()
            runner.run(_folds_agree(hot))
        finally:
            runner.run(hot.close())
            runner.run(database.close())


async def _settle_and_compare(
    hot: Hot, customer: Customer, versions: list[int], drawn: list[dict[str, Any]]
) -> None:
    now = await hot.fetchval("SELECT clock_timestamp()")
    given_rows = []
    for one in drawn:
        facts = dict(one)
        ended = now - timedelta(microseconds=facts.pop("ago_us"))
        facts["admitted_at"] = ended - timedelta(microseconds=facts["duration_us"])
        facts["cached_input_tokens"] = facts["input_tokens"] * facts.pop("cached_share") // 4
        facts["reasoning_tokens"] = facts["output_tokens"] * facts.pop("reasoning_share") // 4
        given_rows.append(row(customer, versions[1], list_price_version=versions[0], **facts))
    results = await settle(hot, *given_rows)
    assert set(results.values()) == {"settled"}
    for facts in given_rows:
        found = await hot.fetchrow("SELECT * FROM usage WHERE request_id = $1", facts["request_id"])
        assert found is not None
        told = dict(found)
        for name in facts.keys() - {"free", "admitted_at"}:
            assert told[name] == facts[name], name
        assert told["admitted_at"] == facts["admitted_at"]
        claimed = facts["admitted_at"] + timedelta(microseconds=facts["duration_us"])
        settled = told["settled_at"]
        assert now <= settled
        inside = settled - LATE <= claimed <= settled
        late = claimed < settled - LATE
        assert told["ended_at"] == (claimed if inside else settled)
        noted = await hot.fetchval(
            "SELECT ended_at FROM usage_late WHERE request_id = $1", facts["request_id"]
        )
        assert noted == (claimed if late else None)
        uncached = facts["input_tokens"] - facts["cached_input_tokens"]
        plain = facts["output_tokens"] - facts["reasoning_tokens"]
        split = (uncached, facts["cached_input_tokens"], plain, facts["reasoning_tokens"])
        price_of = {
            "cost": (700_000, 50_000, 3_330_000, 20_000_000),
            "list_cost": (10**6, 10**5, 10**7, 2 * 10**7),
        }
        for name, rates in price_of.items():
            expected = 0 if facts["free"] else sum(n * rate for n, rate in zip(split, rates, strict=True))
            assert told[name] == expected


async def _folds_agree(hot: Hot) -> None:
    folded = await hot.fetchrow(
        "SELECT sum(requests) AS n, sum(cost) AS cost, sum(list_cost) AS list_cost, "
        "sum(input_tokens + unbilled_input_tokens) AS input, sum(output_tokens + unbilled_output_tokens) AS output, "
        "sum(cached_input_tokens) AS cached, sum(reasoning_tokens) AS reasoning, sum(busy_us) AS busy, "
        "sum((SELECT sum(o) FROM unnest(outcomes) o)) AS outcomes FROM penstock_fold_usage('2020-01-01', '2200-01-01')"
    )
    rows = await hot.fetchrow(
        "SELECT count(*) AS n, sum(cost) AS cost, sum(list_cost) AS list_cost, "
        "sum(input_tokens + unbilled_input_tokens) AS input, sum(output_tokens + unbilled_output_tokens) AS output, "
        "sum(cached_input_tokens) FILTER (WHERE NOT free) AS cached, "
        "sum(reasoning_tokens) FILTER (WHERE NOT free) AS reasoning, "
        "sum(greatest(duration_us - queue_us, 0)) AS busy, count(*) AS outcomes "
        "FROM (SELECT u.*, outcome IN ('engine_failed', 'zero_output') AS free FROM usage u) u"
    )
    assert folded == rows
    assert rows is not None
    assert rows["n"] > 60


@pytest.mark.promise(17)
async def test_usage_of_a_closed_month_is_dated_to_its_arrival(
    database: Database, hot: Hot, pg_url: str
) -> None:
    version = await price(database)
    customer = await make_customer(database, mode="postpaid")
    owner = await asyncpg.connect(pg_url)
    now = datetime.now(UTC)
    this_month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = this_month - timedelta(minutes=1)
    try:
        # The late window is made wide for this test, so that the closed month alone decides.
        source = await owner.fetchval("SELECT pg_get_functiondef('penstock_settle'::regproc)")
        await owner.execute(source.replace("interval '48 hours'", "interval '60 days'"))
        early = row(customer, version, admitted_at=before, duration_us=0)
        assert await settle(hot, early) == {early["request_id"]: "settled"}
        await owner.execute(
            "INSERT INTO billing_periods (month, status, closed_at, closed_by) VALUES ($1, 'closed', now(), 'test')",
            before.date().replace(day=1),
        )
        late = row(customer, version, admitted_at=before, duration_us=0)
        assert await settle(hot, late) == {late["request_id"]: "settled"}
    finally:
        await owner.close()
    ends = {
        one["request_id"]: (one["ended_at"], one["admitted_at"])
        for one in await hot.fetch("SELECT request_id, ended_at, admitted_at FROM usage")
    }
    assert ends[early["request_id"]] == (before, before)
    assert ends[late["request_id"]][0] >= now
    assert ends[late["request_id"]][1] == before
    assert await hot.fetch("SELECT * FROM usage_late") == [(late["request_id"], before)]
    effective = await hot.fetch("SELECT source_id, effective_at FROM ledger_transfers WHERE kind = 'usage'")
    assert dict(effective) == {one: end for one, (end, _) in ends.items()}


@pytest.mark.promise(23)
async def test_a_tenant_sees_only_its_own_usage(database: Database, hot: Hot) -> None:
    version = await price(database)
    mine = await make_customer(database, mode="postpaid", name="Mine")
    other = await make_customer(database, mode="postpaid", name="Other")
    long_ago = datetime.now(UTC) - timedelta(days=5)
    own = [row(mine, version), row(mine, version, admitted_at=long_ago)]
    await settle(hot, *own, row(other, version), row(other, version, admitted_at=long_ago))
    async with database.read(mine.tenant_id) as connection:
        for table in ("usage", "usage_dims"):
            seen = await connection.execute(text(f"SELECT DISTINCT tenant_id FROM {table}"))
            assert seen.scalars().all() == [mine.tenant_id]
        rows = await connection.execute(text("SELECT request_id FROM usage_rows"))
        assert set(rows.scalars()) == {one["request_id"] for one in own}
        far = await connection.execute(text("SELECT request_id FROM usage_far"))
        assert far.scalars().all() == [own[1]["request_id"]]
        folded = await connection.execute(
            text("SELECT sum(requests) FROM penstock_fold_usage('2020-01-01', '2200-01-01')")
        )
        assert folded.scalar_one() == 2


async def test_settlers_that_meet_the_same_news_wait_for_each_other(database: Database, pg_url: str) -> None:
    """Six concurrent settlements with new dimensions and engines in any order do not deadlock; each gets one id."""
    version = await price(database)
    customers = [await make_customer(database, mode="postpaid", name=f"c{n}") for n in range(6)]
    lanes = [await connect_system(pg_url) for _ in range(6)]

    async def lane(number: int) -> None:
        turned = customers[number:] + customers[:number]
        for batch in range(5):
            rows = [
                row(one, version, region=f"r{batch}", boot_id=f"{batch}-{place}")
                for place, one in enumerate(turned if number % 2 else reversed(turned))
            ]
            assert set((await settle(lanes[number], *rows)).values()) == {"settled"}

    await asyncio.gather(*(lane(number) for number in range(6)))
    for connection in lanes:
        await connection.close()
    async with database.system() as connection:
        dims = await connection.execute(
            text("SELECT count(*), count(DISTINCT (tenant_id, region)) FROM usage_dims")
        )
        assert dims.one() == (30, 30)
        counted = await connection.execute(text("SELECT count(*) FROM usage_rows"))
        assert counted.scalar_one() == 6 * 5 * 6
        assert (await verify(connection)).problems == []


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    ("harm", "sign"),
    [
        ("UPDATE ledger_transfers SET amount = amount + 1 WHERE id = {1}", "does not verify"),
        (
            "UPDATE ledger_transfers SET effective_at = effective_at + interval '1 s' WHERE id = {1}",
            "does not verify",
        ),
        ("DELETE FROM ledger_transfers WHERE id = {1}", "does not verify"),
        (
            "UPDATE ledger_transfers t SET id = -t.id WHERE id IN ({0}, {1}); "
            "UPDATE ledger_transfers t SET id = {0} + {1} + t.id WHERE id < 0",
            "does not verify",
        ),
        (
            "INSERT INTO ledger_transfers (id, tenant_id, kind, debit_account, credit_account, amount, source_id) "
            "OVERRIDING SYSTEM VALUE SELECT 1000000, tenant_id, kind, debit_account, credit_account, amount, "
            "gen_random_uuid() FROM ledger_transfers LIMIT 1",
            "neither sealed nor waiting",
        ),
        (
            "UPDATE ledger_seals SET transfers = transfers - '[{1},{1}]'::int8range::int8multirange",
            "neither sealed",
        ),
        ("DELETE FROM ledger_seals WHERE seq = 1", "gap"),
    ],
)
async def test_no_change_of_sealed_transfers_goes_unseen(
    database: Database, hot: Hot, pg_url: str, harm: str, sign: str
) -> None:
    version = await price(database)
    customer = await make_customer(database, mode="postpaid")
    await settle(hot, *(row(customer, version, input_tokens=n + 1) for n in range(5)))
    async with database.system() as connection:
        assert await seal(connection) == 5
    await settle(hot, *(row(customer, version) for _ in range(3)))
    async with database.system() as connection:
        assert await seal(connection) == 3
        books = await verify(connection)
        assert (books.sealed, books.unsealed, books.problems) == (8, 0, [])
        first = (await connection.execute(text("SELECT min(id) FROM ledger_transfers"))).scalar_one()
    owner = await asyncpg.connect(pg_url)
    try:
        await owner.execute("SET session_replication_role = replica")
        await owner.execute("ALTER TABLE ledger_transfers ALTER COLUMN id SET GENERATED BY DEFAULT")
        await owner.execute(harm.format(first, first + 1))
    finally:
        await owner.close()
    async with database.system() as connection:
        problems = (await verify(connection)).problems
    assert any(sign in problem for problem in problems), problems


async def test_days_hours_and_rows_always_tell_the_same(database: Database, hot: Hot) -> None:
    version = await price(database)
    customer = await make_customer(database, mode="postpaid")
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    spans = [
        (today - timedelta(days=3), today + timedelta(days=1)),
        (today - timedelta(days=1), today),
        (today - timedelta(hours=30), today - timedelta(hours=3)),
        (today - timedelta(hours=5), today - timedelta(hours=2)),
    ]

    async def sums(source: str, start: datetime, end: datetime) -> list[tuple[Any, ...]]:
        async with database.read() as connection:
            found = await connection.execute(
                text(
                    f"WITH {source} SELECT sum(requests), sum(cost), sum(output_tokens), sum(outcomes[1]), sum(busy_us)"
                    " FROM usage_sums"
                ),
                {"start": start, "end": end},
            )
            return [tuple(one) for one in found]

    async def all_agree() -> None:
        for start, end in spans:
            rows = await sums("usage_sums AS (SELECT * FROM penstock_fold_usage(:start, :end))", start, end)
            assert await sums(HOURLY_SUMS, start, end) == rows
            assert await sums(DAILY_SUMS, start, end) == rows

    for turn in range(3):
        rows = [
            row(
                customer,
                version,
                admitted_at=now - timedelta(hours=7 * n, minutes=turn),
                output_tokens=n + turn,
            )
            for n in range(7)
        ]
        await settle(hot, *rows)
        await all_agree()
        await roll_up(database)
        await all_agree()
    assert await hot.fetchval("SELECT count(*) FROM usage_days") >= 1
    assert await hot.fetchval("SELECT count(*) FROM usage_day_state WHERE day < $1 AND NOT whole", today) == 0
    # The stored sum of a complete day is used: a change of it shows in the result.
    yesterday = spans[1]
    before = await sums(DAILY_SUMS, *yesterday)
    await hot.execute(
        "INSERT INTO usage_days SELECT day, gen_random_uuid(), project_id, key_id, model, tier, region, price_version, "
        "list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens, "
        "reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us FROM usage_days"
    )
    assert await sums(DAILY_SUMS, *yesterday) != before
