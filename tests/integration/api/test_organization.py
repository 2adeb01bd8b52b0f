"""Usage and costs in OpenAI's shapes: against OpenAI's own schema, through its own client, equal to the rows."""

import gzip
import json
from collections.abc import AsyncIterator
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from sqlalchemy import text

from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import AdminDeps
from api.customer import organization
from core.db import Database
from core.ids import uuid7
from tests.integration.billing.exports.books import Busy, busy
from tests.support.tenancy import ADMIN, PEPPER

SCHEMA = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "data/openai/organization-usage.json.gz").read_bytes())
)
VALID = Draft202012Validator(
    {"$ref": "#/components/schemas/UsageResponse", "components": SCHEMA["components"]}
)


@pytest.fixture
async def month(database: Database) -> Busy:
    return await busy(database)


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    api_app._install_error_handlers(app)
    app.include_router(organization.router(AdminDeps(database=database, redis=None, pepper=PEPPER)))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def token(database: Database, role: Any, tenant_id: Any = None) -> str:
    user = await admin_users.create_user(
        database,
        ADMIN,
        email=f"u-{uuid7()}@example.com",
        password="correct horse battery",
        role=role,
        tenant_id=tenant_id,
    )
    made = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="usage")
    return made.secret


async def rows_of(database: Database, month: Busy, index: int) -> Any:
    """What the first organisation really used: tokens billed, requests, cost."""
    async with database.read() as connection:
        found = await connection.execute(
            text(
                "SELECT sum(input_tokens) FILTER (WHERE cost_free IS NOT TRUE) AS input, count(*) AS requests, "
                "sum(cost) AS cost FROM (SELECT *, outcome IN ('engine_failed', 'zero_output') AS cost_free FROM usage "
                "WHERE tenant_id = :tenant AND ended_at >= :start AND ended_at < :end) u"
            ),
            {"tenant": month.customers[index].tenant_id, "start": month.start, "end": month.end},
        )
        return found.one()


async def pages(client: httpx.AsyncClient, path: str, secret: str, **params: Any) -> list[dict[str, Any]]:
    """All buckets over all pages; every page fits OpenAI's schema and its amounts stay exact."""
    buckets: list[dict[str, Any]] = []
    page: str | None = None
    while True:
        answer = await client.get(
            f"/v1/organization{path}",
            params={**params, **({"page": page} if page else {})},
            headers={"authorization": f"Bearer {secret}"},
        )
        assert answer.status_code == 200, answer.text
        VALID.validate(answer.json())
        body = json.loads(answer.text, parse_float=Decimal)
        buckets += body["data"]
        page = body["next_page"]
        assert body["has_more"] is (page is not None)
        if page is None:
            return buckets


def seconds(instant: datetime) -> int:
    return int(instant.timestamp())


@pytest.mark.parametrize(("width", "limit"), [("1d", 2), ("1h", 24), ("1m", 1440)])
async def test_usage_equals_the_rows_at_every_width(
    database: Database, month: Busy, client: httpx.AsyncClient, width: str, limit: int
) -> None:
    secret = await token(database, "tenant_viewer", month.customers[0].tenant_id)
    span = {"start_time": seconds(month.start), "end_time": seconds(month.end)}
    buckets = await pages(client, "/usage/completions", secret, bucket_width=width, limit=limit, **span)
    step = {"1d": 86400, "1h": 3600, "1m": 60}[width]
    assert [one["end_time"] - one["start_time"] for one in buckets] == [step] * len(buckets)
    assert all(b["start_time"] == a["end_time"] for a, b in pairwise(buckets))
    results = [result for bucket in buckets for result in bucket["results"]]
    real = await rows_of(database, month, 0)
    assert sum(one["input_tokens"] for one in results) == real.input
    assert sum(one["num_model_requests"] for one in results) == real.requests
    assert all(
        one["input_cached_tokens"] + one["input_uncached_tokens"] == one["input_tokens"] for one in results
    )


async def test_costs_add_up_exactly_by_any_grouping(
    database: Database, month: Busy, client: httpx.AsyncClient
) -> None:
    secret = await token(database, "tenant_owner", month.customers[0].tenant_id)
    span = {"start_time": seconds(month.start), "end_time": seconds(month.end)}
    real = await rows_of(database, month, 0)
    owed = Decimal(int(real.cost)).scaleb(-12) - Decimal("1.23456789")
    for group_by in ([], ["line_item"], ["project_id", "api_key_id", "line_item"]):
        buckets = await pages(client, "/costs", secret, **span, **{"group_by[]": group_by})
        results = [result for bucket in buckets for result in bucket["results"]]
        assert sum(Decimal(one["amount"]["value"]) for one in results) == owed
        if "line_item" in group_by:
            assert {one["line_item"] for one in results} >= {"adjustments", "river-7b, cached input tokens"}
            assert sum(one["quantity"] or 0 for one in results) > 0


async def test_filters_and_groups(database: Database, month: Busy, client: httpx.AsyncClient) -> None:
    mine = month.customers[0]
    secret = await token(database, "tenant_owner", mine.tenant_id)
    span = {"start_time": seconds(month.start), "end_time": seconds(month.end)}

    async def requests(**params: Any) -> int:
        found = await pages(client, "/usage/completions", secret, **span, **params)
        return sum(one["num_model_requests"] for bucket in found for one in bucket["results"])

    everything = await requests()
    river, lake = await requests(models="river-7b"), await requests(models="lake-70b")
    assert river + lake == everything
    assert min(river, lake) > 0
    assert await requests(project_ids=str(mine.project_id)) == everything
    assert await requests(project_ids=str(uuid7())) == 0
    assert await requests(user_ids="user-1") == 0
    assert await requests(batch="true") == 0
    grouped = await pages(
        client,
        "/usage/completions",
        secret,
        **span,
        group_by=["model", "api_key_id", "service_tier", "batch"],
    )
    results = [result for bucket in grouped for result in bucket["results"]]
    assert {one["model"] for one in results} == {"river-7b", "lake-70b"}
    assert {(one["api_key_id"], one["service_tier"], one["batch"]) for one in results} == {
        (str(mine.key_id), "standard", False)
    }


@pytest.mark.promise(23)
async def test_who_may_see_what(database: Database, month: Busy, client: httpx.AsyncClient) -> None:
    mine, _, other = month.customers
    params = {"start_time": seconds(month.start)}

    async def status(secret: str | None, **headers: str) -> int:
        auth = {} if secret is None else {"authorization": f"Bearer {secret}"}
        answer = await client.get("/v1/organization/costs", params=params, headers={**auth, **headers})
        assert answer.status_code == 200 or answer.json()["error"]["message"]
        return answer.status_code

    member = await token(database, "tenant_viewer", mine.tenant_id)
    platform = await token(database, "finance")
    assert await status(None) == 401
    assert await status("pen_admin_wrong") == 401
    assert await status(member) == 200
    assert await status(member, **{"OpenAI-Organization": str(other.tenant_id)}) == 403
    assert await status(platform) == 400
    assert await status(platform, **{"OpenAI-Organization": str(other.tenant_id)}) == 200
    assert await status(platform, **{"OpenAI-Organization": "acme"}) == 400


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/costs", {}),
        ("/costs", {"start_time": "x"}),
        ("/costs", {"start_time": 1, "limit": 181}),
        ("/costs", {"start_time": 1, "bucket_width": "1h"}),
        ("/costs", {"start_time": 1, "group_by": "model"}),
        ("/costs", {"start_time": 10**30}),
        ("/costs", {"start_time": 1, "page": "page_!!"}),
        ("/usage/completions", {"start_time": 100, "end_time": 100}),
        ("/usage/completions", {"start_time": 1, "bucket_width": "1m", "limit": 1441}),
        ("/usage/completions", {"start_time": 1, "limit": 0}),
        ("/usage/completions", {"start_time": 1, "group_by": ["model", "model"]}),
        ("/usage/completions", {"start_time": 1, "models": [str(i) for i in range(101)]}),
    ],
)
async def test_nonsense_is_refused(
    database: Database, client: httpx.AsyncClient, path: str, params: dict[str, Any]
) -> None:
    secret = await token(database, "finance")
    answer = await client.get(
        f"/v1/organization{path}",
        params=params,
        headers={"authorization": f"Bearer {secret}", "OpenAI-Organization": str(uuid7())},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_openais_own_client_reads_it(
    database: Database, month: Busy, client: httpx.AsyncClient
) -> None:
    secret = await token(database, "tenant_owner", month.customers[0].tenant_id)
    sdk = openai.AsyncOpenAI(
        api_key="unused", admin_api_key=secret, base_url="http://test/v1", http_client=client, max_retries=0
    )
    usage = await sdk.admin.organization.usage.completions(
        start_time=seconds(month.start),
        end_time=seconds(month.end),
        bucket_width="1h",
        group_by=["model"],
        limit=168,
    )
    real = await rows_of(database, month, 0)
    results = [result for bucket in usage.data for result in bucket.results]
    assert sum(one.input_tokens for one in results) == real.input  # type: ignore[union-attr]
    assert {one.model for one in results} == {"river-7b", "lake-70b"}  # type: ignore[union-attr]
    paid = await sdk.admin.organization.usage.costs(start_time=seconds(month.start), group_by=["line_item"])
    assert {one.amount.currency for bucket in paid.data for one in bucket.results} == {"usd"}  # type: ignore[union-attr]
