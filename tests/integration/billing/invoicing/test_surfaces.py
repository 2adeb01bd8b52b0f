"""Invoices, periods and corrections by command line and admin REST: roles, refusals, audit log."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from admin import invoices as admin_invoices
from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.approvals import router as approvals_router
from api.admin.deps import AdminDeps
from api.admin.invoices import router
from cli.main import app as penstock
from core.db import Database
from core.errors import NotFound, PermissionDenied
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import MODEL, Customer, make_customer, price
from tests.support.approving import approve_all, token_of
from tests.support.tenancy import ADMIN, audit_actions, member

PEPPER = b"p" * 32


class Shell:
    """Runs `penstock ...` with the token of a person that the test chooses; "" = without one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tokens: dict[str, str]) -> None:
        self._patch = monkeypatch
        self._tokens = tokens

    async def __call__(self, *words: str, user: str = "ann") -> Result:
        self._patch.setenv("PENSTOCK_ADMIN_TOKEN", self._tokens.get(user, ""))
        return await asyncio.to_thread(CliRunner().invoke, penstock, list(words))

    async def json(self, *words: str, user: str = "ann") -> Any:
        result = await self(*words, "--json", user=user)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
async def shell(database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    people = {name: await token_of(database, PEPPER, f"{name}@example.com") for name in ("ann", "bob")}
    return Shell(monkeypatch, people)


async def used(platform: Platform) -> Customer:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_000_000, output=200_000)
    return acme


async def test_a_month_from_check_to_correction_on_the_command_line(
    platform: Platform, shell: Shell, tmp_path: Path
) -> None:
    await used(platform)
    month = f"{await platform.end_month():%Y-%m}"
    red = await shell("periods", "check", "--month", month, "--json")
    assert red.exit_code == 1
    assert [one["name"] for one in json.loads(red.stdout)["checks"] if not one["ok"]] == ["invoices_made"]
    made = await shell.json("invoices", "make", "--month", month)
    assert (made["made"], made["total_cents"]) == (1, 300)
    asked = await shell.json("periods", "close", "--month", month, "--reason", "month end")
    assert asked["status"] == "waiting"
    own = await shell("approvals", "approve", asked["approval_id"], user="")
    assert (own.exit_code, "set PENSTOCK_ADMIN_TOKEN" in own.stderr) == (2, True)
    own = await shell("approvals", "approve", asked["approval_id"])
    assert (own.exit_code, "another person" in own.stderr) == (2, True)
    decided = await shell.json("approvals", "approve", asked["approval_id"], user="bob")
    assert (decided["decision"], await shell.json("approvals", "list")) == ("approved", [])
    assert (await shell.json("periods", "close", "--month", month))["ok"]
    assert [one["status"] for one in await shell.json("periods", "show")] == ["open", "closed"]

    (invoice,) = await shell.json("invoices", "list", "--month", month, "--status", "open")
    shown = await shell.json("invoices", "show", invoice["number"])
    assert [line["amount_usd"] for line in shown["lines"]] == ["1.00", "2.00"]
    traced = await shell.json("invoices", "trace", shown["lines"][0]["id"])
    assert [row["exact_usd"] for row in traced["rows"]] == ["1.00"]
    for words in (("invoices", "show", invoice["number"]), ("invoices", "trace", shown["lines"][0]["id"])):
        table = await shell(*words)
        assert table.exit_code == 0, table.output

    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"rates": [{"model": MODEL, "input": "0.5", "output": "10"}]}))
    told = await shell.json("corrections", "dry-run", "--month", month, "--file", str(file))
    assert told["delta_usd"] == "-0.50"
    options = ("--month", month, "--model", MODEL, "--input", "0.5", "--output", "10")
    assert await shell.json("corrections", "dry-run", *options) == told
    table = await shell("corrections", "dry-run", *options)
    assert "-0.50" in table.stdout
    asked = await shell.json("corrections", "request", *options, "--reason", "typed wrong")
    own = await shell("corrections", "approve", asked["id"])
    assert (own.exit_code, own.stdout) == (2, "")
    done = await shell.json("corrections", "approve", asked["id"], user="bob")
    assert (done["status"], done["decided_by"]) == ("approved", "bob@example.com")
    assert (await shell.json("invoices", "show", invoice["number"]))["credit_notes"][0][
        "amount_usd"
    ] == "0.50"
    undo = await shell.json("corrections", "reverse", asked["id"], "--reason", "no")
    assert (await shell.json("corrections", "reject", undo["id"], user="bob"))["status"] == "rejected"
    assert len(await shell.json("corrections", "list", "--month", month)) == 2
    assert len((await shell.json("corrections", "show", asked["id"]))["lines"]) == 1
    actions = await audit_actions(platform.database)
    assert actions[-6:] == [
        "period.close",
        "period.close.approve",
        "correction.request",
        "correction.approve",
        "correction.reverse",
        "correction.reject",
    ]


async def test_bad_words_end_with_one_line_and_change_nothing(
    platform: Platform, shell: Shell, tmp_path: Path
) -> None:
    await used(platform)
    month = f"{await platform.end_month():%Y-%m}"
    before = await audit_actions(platform.database)
    bad = tmp_path / "bad.json"
    bad.write_text("[" * 100_000)
    listed = tmp_path / "list.json"
    listed.write_text("[]")
    for words in (
        ("periods", "close", "--month", "november"),
        ("periods", "close", "--month", "2999-01"),
        ("invoices", "make", "--month", "2999-01"),
        ("invoices", "show", "PS-nothing"),
        ("invoices", "list", "--status", "lost"),
        ("invoices", "trace", "x"),
        ("invoices", "void", "x", "--reason", "r"),
        ("corrections", "dry-run", "--month", month),
        ("corrections", "dry-run", "--month", month, "--as-of", "yesterday"),
        ("corrections", "dry-run", "--month", month, "--model", "m", "--input", "-1", "--output", "1"),
        ("corrections", "dry-run", "--month", month, "--file", str(bad)),
        ("corrections", "dry-run", "--month", month, "--file", str(listed)),
        ("corrections", "dry-run", "--month", month, "--file", str(listed), "--model", "m"),
        ("corrections", "approve", "0199a1b2-0000-7000-8000-000000000000"),
        ("periods", "write-off", "0199a1b2-0000-7000-8000-000000000000", "--reason", "r"),
    ):
        refused = await shell(*words)
        assert refused.exit_code == 2, (words, refused.output)
        assert refused.stdout == ""
    assert await audit_actions(platform.database) == before


async def test_void_and_write_off_on_the_command_line(platform: Platform, shell: Shell) -> None:
    await used(platform)
    other = await make_customer(platform.database, name="Other", mode="postpaid")
    await platform.use(other, input=1_000_000)
    month = f"{await platform.end_month():%Y-%m}"
    await shell.json("invoices", "make", "--month", month)
    first, second = await shell.json("invoices", "list")
    voided = await shell.json("invoices", "void", first["number"], "--reason", "wrong name")
    assert (voided["status"], voided["carried_usd"]) == ("void", first["total_usd"])
    lost = await shell.json("invoices", "write-off", second["id"], "--reason", "insolvent")
    assert lost["status"] == "uncollectible"
    assert (await audit_actions(platform.database))[-2:] == ["invoice.void", "invoice.write_off"]


@pytest.fixture
async def client(platform: Platform) -> AsyncIterator[httpx.AsyncClient]:
    user = await admin_users.create_user(
        platform.database, ADMIN, email="fin@example.com", role="finance", password="correct horse battery"
    )
    token = await create_admin_token(platform.database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")
    web = FastAPI()
    for routes in (router, approvals_router):
        web.include_router(routes(AdminDeps(platform.database, None, PEPPER)))
    api_app._install_error_handlers(web)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(web),
        base_url="http://test/admin/v1",
        headers={"authorization": f"Bearer {token.secret}"},
    ) as client:
        yield client


async def test_the_same_through_rest(platform: Platform, client: httpx.AsyncClient) -> None:
    await used(platform)
    month = f"{await platform.end_month():%Y-%m}"
    asked = await client.post(f"/periods/{month}/close", json={})
    assert (asked.status_code, asked.json()["status"]) == (202, "waiting")
    own = await client.post(f"/approvals/{asked.json()['approval_id']}/decision", json={"approve": True})
    assert own.status_code == 409
    await approve_all(platform.database)
    early = await client.post(f"/periods/{month}/close", json={})
    assert early.status_code == 200, early.text
    assert early.json()["ok"]
    assert (await client.get(f"/periods/{month}/checks")).json() == early.json()
    assert [one["status"] for one in (await client.get("/periods")).json()["data"]] == ["open", "closed"]
    assert (await client.post("/invoices/make", json={"month": month})).json()["made"] == 0
    (invoice,) = (await client.get("/invoices", params={"month": month})).json()["data"]
    detail = (await client.get(f"/invoices/{invoice['number']}")).json()
    trace = await client.get(f"/invoice-lines/{detail['lines'][1]['id']}/requests")
    assert [row["tokens"] for row in trace.json()["rows"]] == [200_000]
    ask = {"month": month, "spec": {"rates": [{"model": MODEL, "input": "0.5", "output": "10"}]}}
    assert (await client.post("/corrections/dry-run", json=ask)).json()["delta_usd"] == "-0.50"
    asked = await client.post("/corrections", json={**ask, "reason": "typed wrong"})
    assert asked.status_code == 201, asked.text
    own = await client.post(f"/corrections/{asked.json()['id']}/decision", json={"approve": True})
    assert own.status_code == 409
    taken_back = await client.post(f"/corrections/{asked.json()['id']}/decision", json={"approve": False})
    assert taken_back.json()["status"] == "rejected"
    assert len((await client.get("/corrections")).json()["data"]) == 1
    assert len((await client.get(f"/corrections/{asked.json()['id']}")).json()["lines"]) == 1
    for path, body in (
        ("/periods/2999-01/close", {}),
        ("/corrections/dry-run", {"month": month, "spec": {"rates": [], "currency": "EUR"}}),
        ("/corrections/dry-run", {"month": "x", "spec": {}}),
    ):
        assert (await client.post(path, json=body)).status_code == 400, path
    assert (await client.post(f"/invoices/{invoice['id']}/void", json={"reason": "r"})).json()[
        "status"
    ] == "void"
    assert (
        await client.post(f"/invoices/{invoice['id']}/write-off", json={"reason": "r"})
    ).status_code == 409


async def test_a_member_reads_its_own_invoices_and_does_nothing(platform: Platform) -> None:
    acme = await used(platform)
    other = await make_customer(platform.database, name="Other", mode="postpaid")
    await platform.use(other, input=1_000_000)
    month = await platform.end_month()
    await admin_invoices.make_invoices(platform.database, ADMIN, month=month)
    owner = member(acme.tenant_id)
    (mine,) = await admin_invoices.list_invoices(platform.database, owner)
    detail = await admin_invoices.show_invoice(platform.database, owner, ref=str(mine.id))
    page = await admin_invoices.trace_line(platform.database, owner, line_id=detail.lines[0].id)
    assert len(page.rows) == 1
    foreign = await platform.invoice(other, month)
    (line,) = await platform.lines(other, month)
    with pytest.raises(NotFound):
        await admin_invoices.trace_line(platform.database, owner, line_id=line.id)
    with pytest.raises(NotFound):
        await admin_invoices.show_invoice(platform.database, owner, ref=str(foreign.id))
    with pytest.raises(PermissionDenied):
        await admin_invoices.list_invoices(platform.database, owner, tenant_id=other.tenant_id)
    with pytest.raises(PermissionDenied):
        await admin_invoices.void_invoice(platform.database, owner, ref=str(mine.id), reason="r")
    with pytest.raises(PermissionDenied):
        await admin_invoices.make_invoices(platform.database, owner, month=month)
