"""Finance functions by command line and admin REST: the same results and error messages."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import openpyxl
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from admin import contracts as admin_contracts
from admin.actor import system_actor
from admin.users import create_admin_token, create_user
from api import app as api_app
from api.admin import approvals, billing, contracts, ledger
from api.admin.deps import AdminDeps
from cli.main import app as penstock
from core.db import Database
from tests.integration.billing.support import make_customer
from tests.support.approving import approve_all, approve_requests, set_limit, token_of

PEPPER = b"p" * 32
ADMIN = system_actor("test")


def run(*words: str) -> Result:
    return CliRunner().invoke(penstock, words)


def run_json(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def shell(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands act on the test's database, for an organisation `acme`."""
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", asyncio.run(_token(pg_url, "ann@example.com")))
    run_json("tenants", "create", "Acme")


async def _token(pg_url: str, email: str) -> str:
    database = Database(pg_url)
    try:
        return await token_of(database, PEPPER, email)
    finally:
        await database.close()


@pytest.mark.usefixtures("shell")
def test_lots_prices_and_contracts_on_the_command_line(pg_url: str) -> None:
    def approved(*words: str) -> None:
        """Run a command that waits, and approve it."""
        assert run_json(*words)["status"] == "waiting"
        asyncio.run(approve_requests(pg_url))

    run_json("credits", "grant", "acme", "25", "--expires", "2100-01-01", "--reason", "welcome")
    run_json("credits", "grant", "acme", "5", "--kind", "purchased", "--priority", "1", "--reason", "wire")
    lots = run_json("credits", "lots", "acme")
    assert [(lot["kind"], lot["remaining_usd"]) for lot in lots] == [
        ("purchased", "5.00"),
        ("promotional", "25.00"),
    ]
    run_json("prices", "set", "m", "--input", "1", "--output", "2")
    approved(
        *("contracts", "add", "acme", "--discount-bps", "1500", "--reason", "deal"),
        *("--sla", '{"metric": "availability", "threshold": "99.9", "credit_percent": 10}'),
    )
    [contract] = run_json("contracts", "list", "--tenant", "acme")
    assert contract["sla"]["threshold"] == "99.9"
    committed = run("contracts", "add", "acme", "--commit", "10", "--from", "2100-01-01", "--reason", "deal")
    assert (committed.exit_code, "takes a postpaid organisation" in committed.stderr) == (2, True)
    history = run_json("prices", "history", "m", "--tenant", "acme")
    assert [(row["output"], row["status"]) for row in history] == [("2.00", "current"), ("1.70", "current")]
    approved("prices", "set", "m", "--input", "1", "--output", "3", "--from", "2100-01-01")
    [later] = [
        row for row in run_json("prices", "list") if row["status"] == "scheduled" and not row["tenant_id"]
    ]
    approved("prices", "withdraw", str(later["id"]), "--reason", "no")
    approved("contracts", "end", contract["id"], "--reason", "over")
    approved("prices", "end", "m", "--reason", "retired")
    assert run_json("prices", "list") == []
    [ended] = run_json("contracts", "list", "--tenant", "acme")
    assert (ended["id"], ended["ended_by"]) == (contract["id"], "ann@example.com")
    assert run_json("prices", "unpriced") == []
    for words in (
        ("credits", "grant", "acme", "5", "--expires", "2020-01-01", "--reason", "r"),
        ("credits", "grant", "acme", "5", "--kind", "gift", "--reason", "r"),
        ("prices", "set", "m", "--input", "1", "--output", "2", "--currency", "EUR"),
        ("prices", "set", "m", "--input=-1", "--output", "2"),
        ("prices", "withdraw", "999", "--reason", "r"),
        ("contracts", "add", "acme", "--sla", "[]", "--reason", "r"),
        ("contracts", "add", "acme", "--sla", "{", "--reason", "r"),
        ("contracts", "end", "nothing", "--reason", "r"),
    ):
        refused = run(*words)
        assert refused.exit_code == 2, refused.output
        assert refused.stdout == ""


async def _limit(pg_url: str, usd: str) -> None:
    database = Database(pg_url)
    try:
        await set_limit(database, usd)
    finally:
        await database.close()


@pytest.mark.usefixtures("shell")
def test_adjustments_and_books_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pg_url: str
) -> None:
    asyncio.run(_limit(pg_url, "10"))
    assert run_json("adjustments", "request", "acme", "10", "--reason", "r")["status"] == "booked"
    assert run_json("adjustments", "request", "acme", "-10.01", "--reason", "r")["status"] == "waiting"
    [waiting] = run_json("adjustments", "list", "--waiting")
    own = run("adjustments", "approve", waiting["id"])
    assert (own.exit_code, own.stdout) == (2, "")
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", asyncio.run(_token(pg_url, "bob@example.com")))
    assert run_json("adjustments", "approve", waiting["id"])["decided_by"] == "bob@example.com"
    assert len(run_json("adjustments", "list", "--tenant", "acme")) == 2

    balance = run_json("ledger", "trial-balance")
    assert balance["balanced"]
    assert "the books balance" in run("ledger", "trial-balance", "--tenant", "acme").stdout
    assert run_json("ledger", "verify")["problems"] == []
    assert run_json("ledger", "deferred", "--tenant", "acme") == run_json("ledger", "deferred")
    lines = run_json("ledger", "journal")
    assert {line["kind"] for line in lines} == {"adjustment", "uncollectible"}
    out = tmp_path / "journal.xlsx"
    assert run("ledger", "journal", "--format", "xlsx", "--out", str(out)).exit_code == 0
    sheet = openpyxl.load_workbook(out).active
    assert sheet is not None
    assert sheet.max_row == len(lines) + 1
    detail = tmp_path / "detail.csv"
    assert run("ledger", "journal", "--detail", "--out", str(detail)).exit_code == 0
    assert len(detail.read_text().splitlines()) == 4
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []
    for words in (
        ("ledger", "journal", "--format", "xlsx"),
        ("ledger", "journal", "--format", "pdf"),
        ("ledger", "journal", "--month", "2026-13"),
        ("ledger", "trial-balance", "--month", "2026-10", "--from", "2026-10-01"),
        ("ledger", "trial-balance", "--month", "9999-12"),
        ("adjustments", "request", "acme", "0", "--reason", "r"),
    ):
        refused = run(*words)
        assert (refused.exit_code, refused.stdout) == (2, ""), refused.output


async def _committed(database: Database) -> UUID:
    """A contract with 3,000 dollars a month from June 2031 on; returns its id."""
    customer = await make_customer(database, mode="postpaid", name="Committed")
    contract = await admin_contracts.add_contract(
        database,
        ADMIN,
        tenant_id=customer.tenant_id,
        commit_monthly_usd="3000",
        effective_from=datetime(2031, 6, 1, tzinfo=UTC),
        reason="deal",
    )
    return contract.id


WARNING = (
    "the contract ends inside 2031-06: $1000.00 of its committed spend remains due for its part of the month"
)


@pytest.mark.usefixtures("shell")
def test_ending_a_contract_inside_a_month_warns_on_the_command_line(pg_url: str) -> None:
    async def committed() -> UUID:
        database = Database(pg_url)
        try:
            return await _committed(database)
        finally:
            await database.close()

    end = ("contracts", "end", str(asyncio.run(committed())), "--reason", "over", "--at")
    told = run(*end, "2031-06-11")
    assert (told.exit_code, told.stderr) == (0, f"penstock: warning: {WARNING}\n")
    assert run_json(*end, "2031-06-11")["warning"] == WARNING
    assert run(*end, "2031-07-01").stderr == ""


async def test_ending_a_contract_inside_a_month_warns_over_rest(
    database: Database, client: httpx.AsyncClient
) -> None:
    path = f"/contracts/{await _committed(database)}/end"
    body = {"reason": "over", "at": "2031-07-01T00:00:00Z"}
    asked = await client.post(path, json=body)
    assert (asked.status_code, "warning" in asked.json()) == (202, False)
    asked = await client.post(path, json=body | {"at": "2031-06-11T00:00:00Z"})
    assert (asked.status_code, asked.json()["warning"]) == (202, WARNING)
    [_, made] = await approve_all(database)
    assert made.result is not None
    assert (made.result["commitment_due_usd"], made.result["warning"]) == ("1000.00", WARNING)


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """The finance person's REST client."""
    user = await create_user(
        database,
        ADMIN,
        email="f@example.com",
        password="correct horse battery",
        role="finance",
        tenant_id=None,
    )
    token = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")
    app = FastAPI()
    for part in (approvals, billing, contracts, ledger):
        app.include_router(part.router(AdminDeps(database, None, PEPPER)))
    api_app._install_error_handlers(app)
    headers = {"authorization": f"Bearer {token.secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test/admin/v1", headers=headers
    ) as opened:
        yield opened


async def test_finance_over_rest(database: Database, client: httpx.AsyncClient) -> None:
    customer = await make_customer(database)
    base = f"/tenants/{customer.tenant_id}"
    body = {"amount_usd": "20", "reason": "wire", "kind": "purchased", "expires_at": "2100-01-01T00:00:00Z"}
    assert (await client.post(f"{base}/credits", json=body)).status_code == 201
    [lot] = (await client.get(f"{base}/credits/lots")).json()["data"]
    assert (lot["kind"], lot["remaining_usd"]) == ("purchased", "20.00")
    assert (await client.post("/prices", json={"model": "m", "input": "1", "output": "2"})).status_code == 201
    rule = {"metric": "ttft", "percentile": 95, "threshold": 800, "credit_percent": 10}
    asked = await client.post(f"{base}/contracts", json={"discount_bps": 1000, "reason": "deal", "sla": rule})
    assert (asked.status_code, asked.json()["status"]) == (202, "waiting")
    await approve_all(database)
    [made] = (await client.get("/contracts")).json()["data"]
    assert made["sla"] == rule
    prices = (await client.get("/prices", params={"tenant_id": str(customer.tenant_id)})).json()["data"]
    assert [price["contract_id"] for price in prices] == [None, made["id"]]
    assert (await client.post(f"/contracts/{made['id']}/end", json={"reason": "over"})).status_code == 202
    assert (await client.post("/prices/end", json={"model": "m", "reason": "r"})).status_code == 202
    await approve_all(database)
    [ended] = (await client.get("/contracts")).json()["data"]
    assert ended["effective_to"] is not None
    assert (await client.get("/prices/unpriced")).json() == {"data": []}

    small = await client.post(f"{base}/adjustments", json={"amount_usd": "1", "reason": "r"})
    assert (small.status_code, small.json()["status"]) == (201, "booked")
    large = (await client.post(f"{base}/adjustments", json={"amount_usd": "-101", "reason": "r"})).json()
    assert large["status"] == "waiting"
    own = await client.post(f"/adjustments/{large['id']}/decision", json={"approve": True})
    assert own.status_code == 409
    assert [row["id"] for row in (await client.get("/approvals")).json()["data"]] == [large["id"]]
    assert len((await client.get("/adjustments/waiting")).json()["data"]) == 1
    gone = await client.post(f"/adjustments/{large['id']}/decision", json={"approve": False})
    assert gone.json()["status"] == "rejected"
    assert len((await client.get("/adjustments")).json()["data"]) == 1

    assert (await client.get("/ledger/trial-balance")).json()["balanced"]
    assert (await client.get("/ledger/verify")).json()["problems"] == []
    assert len((await client.get("/ledger/deferred")).json()["data"]) == 2
    for format_ in ("json", "csv", "xlsx"):
        for detail in (False, True):
            file = await client.get("/ledger/journal", params={"format": format_, "detail": detail})
            assert file.status_code == 200
            assert f".{format_}" in file.headers["content-disposition"]
    assert openpyxl.load_workbook(io.BytesIO(file.content)).active is not None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/prices", {"model": "m", "input": "1", "output": "2", "currency": "EUR"}),
        ("/prices", {"model": "m", "input": "-1", "output": "2"}),
        ("{base}/credits", {"amount_usd": "1", "reason": "r", "kind": "sla"}),
        ("{base}/credits", {"amount_usd": "1", "reason": "r", "expires_at": "2020-01-01T00:00:00Z"}),
        ("{base}/credits", {"amount_usd": "1", "reason": "r", "currency": "usd"}),
        ("{base}/contracts", {"discount_bps": 20000, "reason": "r"}),
        ("{base}/contracts", {"discount_bps": 2**40, "reason": "r"}),
        ("{base}/contracts", {"effective_from": "2020-01-01T00:00:00Z", "reason": "r"}),
        ("{base}/contracts", {"sla": {"metric": "ttft", "threshold": 1, "credit_percent": 1}, "reason": "r"}),
        ("{base}/adjustments", {"amount_usd": "0", "reason": "r"}),
        ("{base}/adjustments", {"amount_usd": "1", "reason": "r", "corrects": "2026-99"}),
        ("/prices/99999999999999999999/withdraw", {"reason": "r"}),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    database: Database, client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    customer = await make_customer(database)
    refused = await client.post(path.format(base=f"/tenants/{customer.tenant_id}"), json=body)
    assert refused.status_code in (400, 404, 422), refused.text
    assert (await client.get("/prices", params={"history": True})).json()["data"] == []
    assert (await client.get(f"/tenants/{customer.tenant_id}/credits/lots")).json()["data"] == []
    assert (await client.get("/contracts")).json()["data"] == []
    assert (await client.get("/adjustments")).json()["data"] == []
