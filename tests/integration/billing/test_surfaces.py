"""Billing functions by command line and admin REST: the same results."""

import asyncio
import csv
import io
import json
import random
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from admin import users as admin_users
from admin.actor import system_actor
from admin.users import create_admin_token
from api import app as api_app
from api.admin.billing import router
from api.admin.deps import AdminDeps
from api.admin.exports import router as reports_router
from cli.main import app as penstock
from core.db import Database
from tests.integration.billing.reports.test_report import MODELS, now_hour, settle_some
from tests.integration.billing.support import make_customer, price
from tests.support.approving import approve_requests, token_of

PEPPER = b"p" * 32
ADMIN = system_actor("test")


def run(*words: str) -> Result:
    return CliRunner().invoke(penstock, words)


def run_json(*words: str) -> object:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def _token(pg_url: str) -> str:
    database = Database(pg_url)
    try:
        return await token_of(database, PEPPER, "ann@example.com")
    finally:
        await database.close()


def test_prices_and_credits_on_the_command_line(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    run_json("tenants", "create", "Acme")
    words = ("prices", "set", "m", "--input", "0.5", "--output", "1.6", "--tenant", "acme")
    unknown = run(*words)
    assert (unknown.exit_code, unknown.stdout, "set PENSTOCK_ADMIN_TOKEN" in unknown.stderr) == (2, "", True)
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", asyncio.run(_token(pg_url)))
    asked = run_json(*words)
    assert asked["status"] == "waiting"  # type: ignore[index]
    assert run_json("prices", "list") == []
    asyncio.run(approve_requests(pg_url))
    [set_] = run_json("prices", "list")  # type: ignore[misc]
    assert (set_["output"], set_["cached_input"]) == ("1.60", "0.50")
    given = run_json("credits", "grant", "acme", "25", "--reason", "welcome")
    assert given["balance_usd"] == "25.00"  # type: ignore[index]
    assert run_json("credits", "budget", "acme", "5")["available_usd"] == "5.00"  # type: ignore[index]
    assert run_json("credits", "budget", "acme", "none")["budget_usd"] is None  # type: ignore[index]
    assert len(run_json("credits", "list", "acme")) == 1  # type: ignore[arg-type]
    assert run_json("credits", "show", "acme") == run_json("credits", "show", "Acme")
    for words in (
        ("credits", "grant", "acme", "-1e99", "--reason", "r"),
        ("credits", "show", "nobody"),
        ("prices", "set", "m", "--input", "x", "--output", "1"),
        ("usage", "report", "--by", "colour"),
        ("usage", "report", "--from", "yesterday"),
    ):
        refused = run(*words)
        assert refused.exit_code == 2, refused.output
        assert refused.stdout == ""


async def test_the_report_is_the_same_everywhere(
    database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    versions = {model: await price(database, model=model) for model in MODELS}
    customer = await make_customer(database, "1000")
    await settle_some(database, random.Random(8), [customer], versions, 40)
    hour = await now_hour(database)
    start, end = f"{hour - timedelta(days=3):%Y-%m-%d}", f"{hour + timedelta(days=1):%Y-%m-%d}"

    monkeypatch.setenv("DATABASE_URL", pg_url)
    words = ("usage", "report", "--from", start, "--to", end, "--by", "tenant,model,day")
    shown = await asyncio.to_thread(run, *words, "--format", "json")
    assert shown.exit_code == 0, shown.output
    printed = json.loads(shown.stdout)
    table = await asyncio.to_thread(run, *words, "--format", "csv")

    user = await admin_users.create_user(
        database,
        ADMIN,
        email="f@example.com",
        password="correct horse battery",
        role="finance",
        tenant_id=None,
    )
    token = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")
    app = FastAPI()
    for part in (router, reports_router):
        app.include_router(part(AdminDeps(database, None, PEPPER)))
    api_app._install_error_handlers(app)
    headers = {"authorization": f"Bearer {token.secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test/admin/v1", headers=headers
    ) as client:
        asked = {"from": start, "to": end, "by": "tenant,model,day"}
        answer = await client.get("/usage/report", params=asked)
        assert answer.json() == {"data": printed}
        download = await client.get("/usage/report", params={**asked, "format": "csv"})
        assert download.headers["content-type"] == "text/csv; charset=utf-8"
        assert "attachment" in download.headers["content-disposition"]
        rows = list(csv.DictReader(io.StringIO(download.text)))
        assert rows == list(csv.DictReader(io.StringIO(table.stdout)))
        assert [row["cost_usd"] for row in rows] == [row["cost_usd"] for row in printed]
        nonsense = await client.get("/usage/report", params={"by": "colour"})
        assert (nonsense.status_code, nonsense.json()["error"]["param"]) == (400, "by")
        base = f"/tenants/{customer.tenant_id}"
        account = (await client.get(f"{base}/account")).json()
        given = await client.post(f"{base}/credits", json={"amount_usd": "1", "reason": "r"})
        assert given.status_code == 201
        assert float(given.json()["balance_usd"]) == float(account["balance_usd"]) + 1
        assert (await client.put(f"{base}/budget", json={"budget_usd": "7.5"})).json()["budget_usd"] == "7.50"
        assert len((await client.get(f"{base}/credits")).json()["data"]) == 2
        assert len((await client.get("/prices")).json()["data"]) == 2
        made = await client.post("/prices", json={"model": "m", "input": "1", "output": "2"})
        assert made.status_code == 201
        for body in ({"model": "m", "input": "-1", "output": "2"}, {"model": "m"}, {"model": "m", "x": 1}):
            assert (await client.post("/prices", json=body)).status_code in (400, 422)
