"""End users and tags: stored with settled rows, capped, and in reports whose sums are those of all usage."""

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import text

from billing.exports import openai_usage
from billing.exports.dataset_registry import write_query
from billing.exports.datasets import DatasetQuery
from billing.exports.openai_usage import UsageQuery
from billing.metering.holds import HoldManager
from billing.metering.records import HoldGranted, Labels, Outcome, Unbilled, UsageRecord
from billing.metering.settle_calls import SettleConnection
from billing.reports.usage_report import totals, usage_report
from billing.statements.receipts import generation_body
from billing.usage.query import ReportQuery, bucket_start
from core.clock import SystemClock
from core.db import Database
from core.errors import InvalidRequest
from core.tokens import TokenUsage
from tests.integration.billing.support import Customer, make_customer, price

LABELS: tuple[Labels | None, ...] = (
    None,
    Labels("ada", {"tag_team": "blue", "tag_app": "x"}),
    Labels("ada", {"tag_team": "red"}),
    Labels("bob"),
    Labels("", {"tag_team": "blue"}),
    None,
)
"""Of the requests of `used`, in their order; the n-th has n + 1 thousand output tokens."""


class Books:
    """Settles requests of customers and reads reports."""

    def __init__(self, database: Database, holds: HoldManager, settling: SettleConnection) -> None:
        self.database = database
        self._holds = holds
        self._settling = settling
        start = bucket_start(datetime.now(UTC), "month")
        self.period = (start, start + timedelta(days=32))

    async def ended(self, customer: Customer, output: int, labels: Labels | None, **more: Any) -> UsageRecord:
        granted = await self._holds.place(customer.hold(output_tokens=output))
        assert isinstance(granted, HoldGranted)
        record = customer.ended(granted, TokenUsage(10, 0, output), **more)
        return msgspec.structs.replace(record, open=customer.open(granted, labels=labels))

    async def settle(self, records: Sequence[UsageRecord]) -> None:
        assert await self._settling.settle(list(records)) == set()

    async def used(self, customer: Customer, labels: Sequence[Labels | None] = LABELS) -> list[UsageRecord]:
        """Requests in one batch, and a free one of ada's."""
        records = [await self.ended(customer, 1000 * (n + 1), one) for n, one in enumerate(labels)]
        records.append(await self.ended(customer, 7, Labels("ada"), outcome=Outcome.ZERO_OUTPUT))
        await self.settle(records)
        return records

    async def report(self, *by: str, tenant: UUID | None = None, with_gpu: bool = False) -> list[Any]:
        query = ReportQuery(*self.period, by, tenant, with_gpu=with_gpu)
        async with self.database.snapshot(None) as connection:
            rows = await usage_report(connection, query)
            assert (await totals(connection, query, rows)).equal, by
        return rows

    async def openai(self, customer: Customer, **more: Any) -> list[dict[str, Any]]:
        """Results of all buckets of the usage endpoint."""
        start, end = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(seconds=1)
        query = UsageQuery(start, end, **more)
        async with self.database.read() as connection:
            page = await openai_usage.completions_usage(connection, customer.tenant_id, query)
        return [one for bucket in page["data"] for one in bucket["results"]]


@pytest.fixture
async def books(database: Database, pg_url: str) -> AsyncIterator[Books]:
    await price(database, input="0", cached_input="0", output="1000", reasoning="1000")
    holds = HoldManager(pg_url, "api-1", ttl_s=60, clock=SystemClock(), timeout_s=30.0)
    settling = SettleConnection(pg_url)
    await holds.start()
    yield Books(database, holds, settling)
    await holds.close()
    await settling.close()


@pytest.fixture
async def acme(database: Database) -> Customer:
    return await make_customer(database, "1000")


async def rows(database: Database, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    async with database.system() as connection:
        return [tuple(row) for row in await connection.execute(text(statement), values)]


_STORED = """
    SELECT l.request_id, (SELECT value FROM label_values v WHERE v.id = l.user_value),
        (SELECT jsonb_object_agg(v.name, v.value) FROM label_values v WHERE v.id = ANY (l.tag_values))
    FROM usage_labels l JOIN usage_rows u ON u.request_id = l.request_id AND u.ended_at = l.ended_at
    ORDER BY l.request_id
"""


async def test_each_row_has_the_labels_of_its_request_once(books: Books, acme: Customer) -> None:
    records = await books.used(acme)
    await books.settle(records)  # a record may come twice
    expected = [
        (record.open.request_id, record.open.labels.end_user or None, record.open.labels.tags or None)
        for record in records
        if record.open.labels is not None
    ]
    assert await rows(books.database, _STORED) == sorted(expected)


async def test_labels_and_unbilled_tokens_are_stored_together(books: Books, acme: Customer) -> None:
    tail = Unbilled("cancelled_tail", "r", "b", tail_output=5)
    record = await books.ended(acme, 100, Labels("ada"), unbilled=(tail,))
    await books.settle([record])
    assert len(await rows(books.database, _STORED)) == 1
    assert await rows(books.database, "SELECT tail_output FROM usage_unbilled") == [(5,)]


async def test_a_generation_shows_the_labels_that_it_is_reported_under(books: Books, acme: Customer) -> None:
    for record in await books.used(acme):
        labels = record.open.labels or Labels()
        async with books.database.read() as connection:
            shown = await generation_body(
                connection, acme.tenant_id, record.open.request_id, project_id=acme.project_id
            )
        assert (shown["end_user"], shown["tags"]) == (labels.end_user or None, labels.tags)


@pytest.mark.parametrize("rolled", [False, True])
async def test_groups_add_up_to_all_usage_and_to_the_rows(books: Books, acme: Customer, rolled: bool) -> None:
    other = await make_customer(books.database, "1000", name="Other")
    await books.used(acme)
    await books.used(other, [Labels("ada")])
    if rolled:
        async with books.database.system() as connection:  # as if the hour were over
            await connection.execute(
                text("SELECT penstock_roll_hour(date_trunc('hour', clock_timestamp(), 'UTC'))")
            )
    for by in (
        ("end_user",),
        ("tag_team",),
        ("tag_none",),
        ("end_user", "tag_team", "model", "day"),
        ("tenant", "end_user", "hour"),
    ):
        found = await books.report(*by)
        [whole] = await books.report("model")
        for name in ("requests", "requests_unbilled", "input_tokens", "output_tokens", "total_tokens"):
            assert sum(getattr(row, name) for row in found) == getattr(whole, name), (by, name)
        for name in ("cost_usd", "list_cost_usd", "credits_applied_usd"):
            assert sum(Decimal(getattr(row, name)) for row in found) == Decimal(getattr(whole, name)), (
                by,
                name,
            )
    users = {row.end_user: row for row in await books.report("end_user", tenant=acme.tenant_id)}
    assert {user: row.output_tokens for user, row in users.items()} == {
        None: 12_000,
        "ada": 5_000,
        "bob": 4_000,
    }
    assert {user: row.requests for user, row in users.items()} == {None: 3, "ada": 3, "bob": 1}
    assert users["ada"].outcomes == {"completed": 2, "zero_output": 1}
    of_rows = await rows(
        books.database,
        "SELECT sum(u.cost) FROM usage u JOIN usage_labels l ON l.request_id = u.request_id "
        "JOIN label_values v ON v.id = l.user_value WHERE v.value = 'ada' AND u.tenant_id = :tenant",
        tenant=acme.tenant_id,
    )
    assert Decimal(users["ada"].cost_usd) * 10**12 == of_rows[0][0]
    teams = await books.report("tag_team", "tag_app", tenant=acme.tenant_id)
    assert {row.tags: row.output_tokens for row in teams} == {
        None: 11_000,
        '{"tag_team":"blue"}': 5_000,
        '{"tag_team":"blue","tag_app":"x"}': 2_000,
        '{"tag_team":"red"}': 3_000,
    }


async def test_a_report_without_a_request_of_no_user_has_no_line_for_it(books: Books, acme: Customer) -> None:
    await books.used(acme, [Labels("ada")])
    assert [row.end_user for row in await books.report("end_user")] == ["ada"]
    assert [row.gpu_cost_usd for row in await books.report("end_user", with_gpu=True)] == [None]


async def test_a_grouping_by_tags_is_checked(books: Books) -> None:
    for by in (["tag_"], ["tag_a'b"], ["user"], [f"tag_{n}" for n in range(6)]):
        with pytest.raises(InvalidRequest):
            await books.report(*by)


async def test_openais_usage_by_user_and_tag(books: Books, acme: Customer) -> None:
    await books.used(acme)
    for width in ("1m", "1h"):
        found = await books.openai(
            acme, width=width, group_by=("user_id",), limit=24 if width == "1h" else 62
        )
        users: dict[str | None, int] = {}
        for one in found:
            users[one["user_id"]] = users.get(one["user_id"], 0) + one["output_tokens"]
        assert users == {None: 12_000, "ada": 5_000, "bob": 4_000}
        found = await books.openai(
            acme,
            width=width,
            group_by=("tag_team",),
            user_ids=("ada", "bob"),
            limit=24 if width == "1h" else 62,
        )
        assert {(one["tag_team"], one["output_tokens"]) for one in found} == {
            (None, 4_000), ("blue", 2_000), ("red", 3_000),
        }  # fmt: skip
    start = datetime.now(UTC) - timedelta(days=1)
    async with books.database.read() as connection:
        page = await openai_usage.costs(
            connection,
            acme.tenant_id,
            UsageQuery(start, datetime.now(UTC) + timedelta(seconds=1), group_by=("user_id", "line_item")),
        )
    costs = {
        (one["user_id"], one["line_item"]): Decimal(bytes(one["amount"]["value"]).decode())
        for bucket in page["data"]
        for one in bucket["results"]
        if one["line_item"].endswith("output tokens")
    }
    assert {user: amount for (user, _), amount in costs.items()} == {None: 12, "ada": 5, "bob": 4}


async def test_focus_has_them_as_tags(books: Books, acme: Customer) -> None:
    await books.used(acme)
    file = BytesIO()
    async with books.database.read() as connection:
        query = DatasetQuery("focus_charges", *books.period, ("day",), acme.tenant_id)
        await write_query(connection, query, "json", file)
    charges = json.loads(file.getvalue())
    found: dict[str | None, Decimal] = {}
    for charge in charges:
        if charge["SkuMeter"] == "Output Tokens":
            found[charge["Tags"]] = found.get(charge["Tags"], Decimal(0)) + Decimal(str(charge["BilledCost"]))
    assert found == {
        None: 7,
        '{"tag_app":"x","tag_team":"blue","penstock:end_user":"ada"}': 2,
        '{"tag_team":"red","penstock:end_user":"ada"}': 3,
        '{"penstock:end_user":"bob"}': 4,
        '{"tag_team":"blue"}': 5,
    }


async def test_the_number_of_values_of_a_month_is_capped(books: Books, acme: Customer) -> None:
    """Values that are known stay; later ones share a value, and nothing is lost from the sums."""
    month = datetime.now(UTC).date().replace(day=1)
    await books.used(acme, [Labels("ada", {"tag_team": "blue"})])
    async with books.database.system() as connection:
        for name, count in (("user", 9_999), ("tag_team", 999)):
            await connection.execute(
                text(
                    "INSERT INTO label_values (tenant_id, month, name, value) SELECT :tenant, :month, :name, 'v' || n "
                    "FROM generate_series(1, :count) n"
                ),
                {"tenant": acme.tenant_id, "month": month, "name": name, "count": count},
            )
        await connection.execute(
            text(
                "INSERT INTO label_values (tenant_id, month, name, value) SELECT :tenant, :month, 'tag_' || n, 'x' "
                "FROM generate_series(1, 49) n"
            ),
            {"tenant": acme.tenant_id, "month": month},
        )
    late = [
        Labels("new", {"tag_team": "green", "tag_new": "x"}),
        Labels("newer", {"tag_newer": "y", "tag_newest": "z"}),
        Labels("ada", {"tag_team": "blue"}),
    ]
    other = await make_customer(books.database, "1000", name="Other")
    await books.used(acme, late)
    await books.used(other, [Labels("new")])
    users = {row.end_user: row.output_tokens for row in await books.report("end_user", tenant=acme.tenant_id)}
    assert users == {"ada": 4_000, "(other)": 3_000}
    teams = {row.tags: row.output_tokens for row in await books.report("tag_team", tenant=acme.tenant_id)}
    assert teams == {'{"tag_team":"blue"}': 4_000, '{"tag_team":"(other)"}': 1_000, None: 2_000}
    [of_new, _] = [row for row in await books.report("tag_(other)", tenant=acme.tenant_id) if row.tags] + [
        None
    ]
    assert of_new is not None
    assert of_new.output_tokens == 3_000
    assert [row.end_user for row in await books.report("end_user", tenant=other.tenant_id)] == ["ada", "new"]


async def test_an_organisation_sees_its_own_labels_only(books: Books, acme: Customer) -> None:
    other = await make_customer(books.database, "1000", name="Other")
    await books.used(acme)
    async with books.database.tenant(other.tenant_id) as connection:
        for table in ("usage_labels", "label_values"):
            assert (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() == 0
    async with books.database.tenant(acme.tenant_id) as connection:
        assert (await connection.execute(text("SELECT count(*) FROM usage_labels"))).scalar_one() == 5
