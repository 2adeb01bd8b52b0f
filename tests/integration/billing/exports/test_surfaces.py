"""Reports and exports through the command line and the admin REST."""

import asyncio
import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openpyxl
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from cli.main import app as cli_app
from core.db import Database
from core.settings import Settings
from tests.integration.billing.exports.books import Busy, busy
from tests.support.tenancy import ADMIN, PEPPER


@pytest.fixture
def month(pg_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Busy:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path / "data"))

    async def made() -> Busy:
        database = Database(pg_url)
        try:
            return await busy(database, requests=40)
        finally:
            await database.close()

    return asyncio.run(made())


def penstock(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli_app, list(words))
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_report_on_the_command_line(month: Busy, tmp_path: Path) -> None:
    span = ("--from", month.start.isoformat(), "--to", month.end.isoformat())
    lines = list(csv.DictReader(io.StringIO(penstock("usage", "report", *span))))
    rows = json.loads(penstock("usage", "report", *span, "--json"))
    assert [line["cost_usd"] for line in lines] == [row["cost_usd"] for row in rows]
    assert isinstance(rows[0]["outcomes"], dict)
    for name in ("r.xlsx", "r.parquet"):
        penstock("usage", "report", *span, "--format", name[2:], "--out", str(tmp_path / name))
    assert pq.read_table(tmp_path / "r.parquet").num_rows == len(rows)
    assert openpyxl.load_workbook(tmp_path / "r.xlsx").worksheets[0].max_row == len(rows) + 1
    penstock("usage", "report", *span, "--format", "focus", "--out", str(tmp_path / "focus.parquet"))
    assert "BilledCost" in pq.read_schema(tmp_path / "focus.parquet").names
    assert penstock("usage", "report", *span, "--format", "focus").startswith("BilledCost,BillingAccountId")
    compared = json.loads(penstock("usage", "report", *span, "--compare", "previous", "--json"))
    assert all(row["cost_usd"] == row["cost_usd_difference"] or row["cost_usd"] == "0.00" for row in compared)
    found = json.loads(penstock("usage", "totals", *span, "--json"))
    assert found["equal"] is True
    penstock("usage", "report", *span, "--format", "xlsx", code=2)
    penstock("usage", "report", *span, "--compare", "tomorrow", code=2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "focus.parquet", "r.parquet", "r.xlsx",
    ]  # fmt: skip


def test_scheduled_exports_on_the_command_line(month: Busy, tmp_path: Path) -> None:
    day = f"{month.last_day:%Y-%m-%d}"
    penstock("exports", "create", "usage", "--to", "out", "--by", "tenant,hour", "--format", "csv")
    made = json.loads(penstock("exports", "run", "usage", day, "--json"))
    assert (made["revision"], made["is_new"]) == (1, True)
    assert json.loads(penstock("exports", "run", "usage", day, "--json"))["is_new"] is False
    assert [one["name"] for one in json.loads(penstock("exports", "list", "--json"))] == ["usage"]
    assert [one["sha256"] for one in json.loads(penstock("exports", "runs", "usage", "--json"))] == [
        made["sha256"]
    ]
    data = Path(made["location"])
    assert data.is_relative_to(tmp_path / "data" / "exports")
    assert json.loads(penstock("exports", "verify", str(tmp_path), "--json"))[0]["problems"] == []
    penstock("exports", "stop", "usage", "--reason", "enough")
    penstock("exports", "run", "usage", "yesterday", code=2)
    penstock("exports", "create", "x", "--to", "../out", code=2)
    data.chmod(0o600)
    data.write_bytes(data.read_bytes() + b"x")
    penstock("exports", "verify", str(tmp_path), code=1)


async def test_the_admin_rest(database: Database, tmp_path: Path) -> None:
    month = await busy(database, requests=40)
    app = FastAPI()
    api_app._install_error_handlers(app)
    deps = AdminDeps(database=database, redis=None, pepper=PEPPER, settings=Settings(data_dir=tmp_path))
    for router in admin_routers(deps):
        app.include_router(router)
    user = await admin_users.create_user(
        database, ADMIN, email="f@example.com", password="correct horse battery", role="finance"
    )
    token = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")
    headers = {"authorization": f"Bearer {token.secret}"}
    span = {"from": month.start.isoformat(), "to": month.end.isoformat()}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://t/admin/v1", headers=headers
    ) as client:

        async def get(path: str, **params: Any) -> httpx.Response:
            return await client.get(path, params={**span, **params})

        rows = (await get("/usage/report", by="tenant,model")).json()["data"]
        sheet = await get("/usage/report", by="tenant,model", format="xlsx")
        assert sheet.headers["content-disposition"].endswith('.xlsx"')
        assert openpyxl.load_workbook(io.BytesIO(sheet.content)).worksheets[0].max_row == len(rows) + 1
        compared = (await get("/usage/report", compare="previous")).json()["data"]
        assert {row["cost_usd_before"] for row in compared} == {"0.00"}
        assert (await get("/usage/totals")).json()["equal"] is True
        journal = await get("/exports/download/journal", format="parquet")
        table = pq.read_table(io.BytesIO(journal.content)).to_pylist()
        assert [row["amount_usd"] for row in table if row["kind"] == "commit"] == [Decimal("12.34")]
        body = {"name": "j", "dataset": "journal", "destination": "books", "schedule": "monthly"}
        made = await client.post("/exports", json=body)
        assert made.status_code == 201
        assert made.json()["schedule"] == "monthly"
        period = {"period": f"{month.last_day:%Y-%m}"}
        ran = await client.post("/exports/j/runs", json=period)
        assert ran.status_code == 200, ran.text
        assert [one["sha256"] for one in (await get("/exports/j/runs")).json()["data"]] == [
            ran.json()["sha256"]
        ]
        for wrong in ("colour", "hour,day"):
            assert (await get("/usage/report", by=wrong)).status_code == 400
        assert (await get("/exports/download/secrets")).status_code == 400
        assert (
            await client.post("/exports", json={**body, "name": "k", "destination": "/etc"})
        ).status_code == 400
        assert (await client.post("/exports/none/runs", json=period)).status_code == 404
