"""Statements, receipts, keys and alerts through HTTP and the command line."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from typer.testing import CliRunner, Result

from admin import keys as admin_keys
from admin import projects as admin_projects
from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from api.customer import statements
from billing.statements.verify import read_keys, verify, verify_pair
from cli.main import app as penstock
from core.clock import SystemClock
from core.db import Database
from core.ids import uuid7
from core.settings import Settings
from core.tokens import TokenUsage
from tenants.keys import KeyRing
from tests.integration.billing.spending import settle_one
from tests.integration.billing.support import Customer, price
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation


@pytest.fixture
async def client(database: Database, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    keys = KeyRing(database, database, None, PEPPER, SystemClock())
    await keys.start()
    app = FastAPI()
    api_app._install_error_handlers(app)
    given = Settings.model_construct(data_dir=tmp_path)
    deps = AdminDeps(database=database, redis=None, pepper=PEPPER, settings=given)
    for router in [*admin_routers(deps), *statements.routers(deps, keys)]:
        app.include_router(router)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await keys.close()


async def token(database: Database, role: Any, tenant_id: UUID | None = None) -> dict[str, str]:
    user = await admin_users.create_user(
        database,
        ADMIN,
        email=f"u-{uuid7()}@example.com",
        password="correct horse battery",
        role=role,
        tenant_id=tenant_id,
    )
    made = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")
    return {"authorization": f"Bearer {made.secret}"}


async def used(database: Database, organisation: Organisation) -> UUID:
    customer = Customer(organisation.tenant_id, organisation.project_id, organisation.key_id)
    return await settle_one(database, customer, TokenUsage(input=10, output=1))


async def this_month(database: Database) -> str:
    async with database.read() as connection:
        return str(
            await connection.scalar(text("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM')"))
        )


async def test_a_receipt_by_api_key(database: Database, client: httpx.AsyncClient) -> None:
    await price(database)
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    request = await used(database, acme)
    path = f"/v1/generations/{request}/receipt"
    paper = await client.get(path, headers={"authorization": f"Bearer {acme.key}"})
    assert paper.status_code == 200, paper.text
    keys = await client.get("/.well-known/penstock-keys.json")
    found = verify(paper.content, read_keys(keys.content))
    assert found.body is not None
    assert found.body["request_id"] == str(request)
    project = await admin_projects.create_project(database, ADMIN, tenant_id=acme.tenant_id, name="second")
    beside = await admin_keys.create_key(
        database, ADMIN, pepper=PEPPER, tenant_id=acme.tenant_id, project_id=project.id, name="beside"
    )
    for status, headers in (
        (404, {"authorization": f"Bearer {other.key}"}),
        (404, {"authorization": f"Bearer {beside.secret}"}),
        (401, {}),
        (401, {"authorization": "Bearer pen_live_nonsense"}),
    ):
        refused = await client.get(path, headers=headers)
        assert refused.status_code == status
        assert str(acme.tenant_id) not in refused.text
    one = await client.get(f"/v1/generations/{request}", headers={"authorization": f"Bearer {acme.key}"})
    again = await client.get(f"/v1/generations/{request}", headers={"x-api-key": acme.key})
    assert again.json() == one.json()
    assert one.json()["tokens"] == {"input": 10, "cached_input": 0, "output": 1, "reasoning": 0}
    assert one.json()["cost_usd"] == found.body["cost_usd"]
    assert one.json()["outcome"] == found.body["outcome"]
    for headers in ({"authorization": f"Bearer {other.key}"}, {"authorization": f"Bearer {beside.secret}"}):
        assert (await client.get(f"/v1/generations/{request}", headers=headers)).status_code == 404
    wrong = await client.get("/v1/generations/x/receipt", headers={"authorization": f"Bearer {acme.key}"})
    assert wrong.status_code == 400


async def test_statements_by_the_organisations_token(database: Database, client: httpx.AsyncClient) -> None:
    await price(database)
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    await used(database, acme)
    month = await this_month(database)
    mine = await token(database, "tenant_viewer", acme.tenant_id)
    paper = await client.get(f"/v1/organization/statements/{month}", headers=mine)
    shown = await client.get(f"/v1/organization/statements/{month}?format=pdf", headers=mine)
    assert (paper.status_code, shown.status_code) == (200, 200), paper.text
    assert shown.headers["content-type"] == "application/pdf"
    keys = read_keys((await client.get("/.well-known/penstock-keys.json")).content)
    found = verify(paper.content, keys).body
    assert found is not None
    assert found["tenant"]["id"] == str(acme.tenant_id)
    verify(shown.content, keys)
    listed = await client.get("/v1/organization/statements", headers=mine)
    assert listed.json() == {"data": []}, "drafts are not kept"

    stranger = {**mine, "OpenAI-Organization": str(other.tenant_id)}
    assert (await client.get(f"/v1/organization/statements/{month}", headers=stranger)).status_code == 403
    with_key = {"authorization": f"Bearer {acme.key}"}
    assert (await client.get(f"/v1/organization/statements/{month}", headers=with_key)).status_code == 403
    for wrong in ("2026-13", "x", "9999-99"):
        assert (await client.get(f"/v1/organization/statements/{wrong}", headers=mine)).status_code == 400
    assert (await client.get("/v1/organization/statements/2998-01", headers=mine)).status_code == 404


async def test_the_admin_rest(database: Database, client: httpx.AsyncClient) -> None:
    await price(database)
    acme = await make_organisation(database)
    request = await used(database, acme)
    month = await this_month(database)
    finance = await token(database, "finance")
    owner = await token(database, "tenant_owner", acme.tenant_id)
    base = f"/admin/v1/tenants/{acme.tenant_id}"
    for path, status in (
        (f"{base}/statements/{month}", 200),
        (f"{base}/statements/{month}?format=pdf", 200),
        (f"{base}/statements", 200),
        (f"{base}/receipts/{request}", 200),
        (f"{base}/receipts/{uuid7()}", 404),
        (f"{base}/alerts", 200),
        ("/admin/v1/alert-endpoints", 200),
        ("/admin/v1/notices", 200),
        ("/admin/v1/notices/outbox", 200),
    ):
        answer = await client.get(path, headers=finance)
        assert answer.status_code == status, (path, answer.text)
        refused = await client.get(path, headers=owner)
        assert refused.status_code == 403, path
    assert (await client.post("/admin/v1/sla", headers=finance, json={"month": month})).json() == {"data": []}
    late = await client.post("/admin/v1/sla", headers=finance, json={"month": month, "dry_run": False})
    assert late.status_code == 409
    rotate = await client.post("/admin/v1/signing-keys/rotate", headers=finance, json={"reason": "r"})
    assert rotate.status_code == 403, "keys are the platform admin's"

    rule = {"scope": "project", "scope_id": str(acme.project_id), "amount_usd": "5"}
    made = await client.put(f"{base}/alerts", headers=finance, json=rule)
    assert made.json()["data"][0]["thresholds"] == [50, 80, 100]
    hook = {"channel": "webhook", "target": "https://hooks.example.com/x", "tenant_id": str(acme.tenant_id)}
    created = await client.post("/admin/v1/alert-endpoints", headers=finance, json=hook)
    assert created.json()["secret"].startswith("whsec_")
    shown = await client.get(f"/admin/v1/alert-endpoints?tenant_id={acme.tenant_id}", headers=finance)
    assert "whsec_" not in shown.text, "the secret is shown once"
    for inside in ("http://hooks.example.com/x", "https://169.254.169.254/latest", "https://localhost/x"):
        refused = await client.post(
            "/admin/v1/alert-endpoints", headers=finance, json={**hook, "target": inside}
        )
        assert refused.status_code == 400
    tested = await client.post(
        "/admin/v1/notices/test", headers=finance, json={"tenant_id": str(acme.tenant_id)}
    )
    assert tested.status_code == 202
    told = await client.get(f"/admin/v1/notices?tenant_id={acme.tenant_id}", headers=finance)
    assert [row["kind"] for row in told.json()["data"]] == ["test"]
    query = f"kind=budget&scope_id={acme.project_id}"
    assert (await client.delete(f"{base}/alerts?{query}", headers=finance)).status_code == 204
    assert (await client.delete(f"{base}/alerts?{query}", headers=finance)).status_code == 404


def run(*words: str) -> Result:
    return CliRunner().invoke(penstock, words)


def run_json(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_the_command_line_writes_what_verify_believes(
    database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await price(database)
    acme = await make_organisation(database)
    request = await used(database, acme)
    month = await this_month(database)
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path / "state"))
    out = tmp_path / "out"
    out.mkdir()

    def whole() -> None:
        written = run_json("statements", "get", "acme", month, "--out", str(out))
        paper, shown = (Path(file) for file in written["files"])
        assert not written["final"]
        run_json("statements", "receipt", "acme", str(request), "--out", str(out))
        slip = out / f"receipt-{request}.json"
        keys = out / "keys.json"
        keys.write_text(json.dumps(run_json("statements", "keys")))
        for files in ((paper,), (shown,), (paper, shown), (slip,)):
            for known in ([], ["--keys", str(keys)]):
                assert run_json("verify", *map(str, files), *known)["valid"]
        verify_pair(paper.read_bytes(), shown.read_bytes(), read_keys(keys.read_bytes()))
        for file in (paper, shown, slip):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(bytes(data))
            refused = run("verify", str(file), "--keys", str(keys))
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert "NOT VALID" in refused.stderr
        for words in (
            ("verify", str(out / "nothing.json"), "--keys", str(keys)),
            ("verify", str(paper), "--keys", str(paper)),
            ("statements", "get", "acme", "October"),
            ("statements", "receipt", "acme", "x"),
            ("sla", "run", "--month", month),
        ):
            refused = run(*words)
            assert refused.exit_code == 2, (words, refused.output)
        assert run_json("sla", "run", "--month", month, "--dry-run") == []
        rotated = run_json("statements", "rotate-key", "--reason", "yearly")
        assert [row["retired_at"] is None for row in rotated] == [False, True]
        _alerts()

    def _alerts() -> None:
        made = run_json(
            "alerts", "set", "acme", "--project", "default", "--usd", "20", "--thresholds", "75,100%"
        )
        assert made[0]["thresholds"] == [75, 100]
        assert run_json("alerts", "list") == made
        created = run_json("alerts", "endpoints", "add", "https://hooks.example.com/x", "--tenant", "acme")
        assert created["secret"].startswith("whsec_")
        run_json("alerts", "endpoints", "add", "ops@example.com")
        assert [row["target"] for row in run_json("alerts", "endpoints", "list")] == ["ops@example.com"]
        assert run_json("alerts", "test")[0]["kind"] == "test"
        assert run_json("alerts", "notices", "--outbox") == []
        identity = created["endpoint"]["id"]
        assert run_json("alerts", "endpoints", "remove", identity, "--tenant", "acme") == []
        assert run_json("alerts", "set", "acme", "--project", "default", "--remove") == []
        for words in (
            ("alerts", "set", "acme", "--project", "nope", "--usd", "1"),
            ("alerts", "set", "acme", "--project", "default", "--key", "x", "--usd", "1"),
            ("alerts", "set", "acme", "--project", "default", "--usd", "1", "--thresholds", "half"),
            ("alerts", "endpoints", "add", "https://127.0.0.1/x"),
            ("alerts", "endpoints", "add", "no address"),
        ):
            assert run(*words).exit_code == 2, words

    await asyncio.to_thread(whole)
