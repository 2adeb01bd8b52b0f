"""Cost and margin from rows: every split keeps its sum, idle has separate lines, closed months do not change."""

import json
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from typer.testing import CliRunner

from admin import economics as admin_economics
from admin import users as admin_users
from admin.actor import Actor, system_actor
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.economics import router
from billing.reports.margin import DIRECT
from billing.reports.margin_bridge import EFFECTS
from cli.main import app as penstock
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied
from core.ids import uuid7
from core.money import usd_to_pico
from tests.integration.billing.reports.test_report import MODELS, add_hosts, now_hour, settle_some
from tests.integration.billing.support import Customer, make_customer, price

ADMIN = system_actor("test")
BYS = [("tenant",), ("tenant", "model"), ("tenant", "model", "hour"), ("day",)]


def amount(rows: list[Any], name: str) -> int:
    return sum(usd_to_pico(getattr(row, name)) for row in rows)


@pytest.fixture
async def busy(database: Database) -> tuple[datetime, int, list[Customer]]:
    """Three organisations on two models, hosts in two hours; the present hour and the hosts' cost."""
    versions = {model: await price(database, model=model) for model in MODELS}
    customers = [await make_customer(database, "1000", name=f"C{i}") for i in range(3)]
    hour = await now_hour(database)
    cost = await add_hosts(database, hour)
    await settle_some(database, random.Random(4), customers, versions, 200)
    return hour, cost, customers


async def ask(database: Database, hour: datetime, **options: Any) -> list[Any]:
    span = {"start": hour - timedelta(days=3), "end": hour + timedelta(hours=1)}
    return await admin_economics.economics_report(database, ADMIN, **{**span, **options})


@pytest.mark.parametrize("by", BYS)
@pytest.mark.parametrize("fully_loaded", [False, True])
async def test_lines_add_up_to_what_hosts_cost_and_customers_paid(
    database: Database, busy: tuple[datetime, int, list[Customer]], by: tuple[str, ...], fully_loaded: bool
) -> None:
    hour, cost, _ = busy
    rows = await ask(database, hour, by=by, fully_loaded=fully_loaded)
    assert amount(rows, "gpu_cost_usd") == cost
    async with database.system() as connection:
        paid = (await connection.execute(text("SELECT sum(cost) FROM usage"))).scalar_one()
    assert amount(rows, "revenue_usd") == int(paid)
    assert amount(rows, "margin_usd") == int(paid) - cost
    lines = {row.line for row in rows}
    assert lines == ({DIRECT} if fully_loaded else {DIRECT, "warm_idle"})
    for row in rows:
        if row.line != DIRECT:
            assert (row.tenant_id, row.requests, row.revenue_usd) == (None, 0, "0.00")


async def test_input_and_output_have_their_own_cost_per_million(
    database: Database, busy: tuple[datetime, int, list[Customer]]
) -> None:
    rows = [
        row
        for row in await ask(database, busy[0], by=("model",))
        if row.model == "river-7b" and row.line == DIRECT
    ]
    (row,) = rows
    per_input = usd_to_pico(row.gpu_cost_per_mtok_input_usd)
    per_output = usd_to_pico(row.gpu_cost_per_mtok_output_usd)
    blended = usd_to_pico(row.gpu_cost_per_mtok_usd)
    assert 0 < per_input < blended < per_output


async def test_the_bridge_of_two_days_adds_up(
    database: Database, busy: tuple[datetime, int, list[Customer]]
) -> None:
    hour = busy[0]
    middle = hour - timedelta(hours=1)
    view = await admin_economics.margin_bridge(
        database, ADMIN, before=(hour - timedelta(days=2), middle), after=(middle, hour + timedelta(hours=1))
    )
    assert tuple(view.effects) == EFFECTS
    total = usd_to_pico(view.after.margin_usd) - usd_to_pico(view.before.margin_usd)
    assert sum(usd_to_pico(effect) for effect in view.effects.values()) == total
    assert usd_to_pico(view.difference_usd) == total


async def test_states_add_up_to_the_cost(
    database: Database, busy: tuple[datetime, int, list[Customer]]
) -> None:
    hour, cost, _ = busy
    rows = await admin_economics.host_states(database, ADMIN, start=hour - timedelta(days=3), end=hour)
    assert amount(rows, "cost_usd") == cost
    assert {row.state for row in rows} == {"serving", "warm_idle"}


async def test_a_tenant_sees_none_of_it(database: Database) -> None:
    viewer = Actor(kind="user", id="u", label="v", role="tenant_owner", tenant_id=uuid7())
    hour = await now_hour(database)
    with pytest.raises(PermissionDenied):
        await admin_economics.economics_report(database, viewer, start=hour, end=hour + timedelta(hours=1))
    with pytest.raises(PermissionDenied):
        await admin_economics.provider_variance(database, viewer, month=date(2026, 11, 1))


async def close(database: Database, month: date) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO billing_periods (month, status, closed_at, closed_by) "
                "VALUES (:month, 'closed', now(), 'test')"
            ),
            {"month": month},
        )


async def test_a_host_price_is_dated_and_leaves_closed_months_alone(database: Database) -> None:
    kind = "gpu-h200x8-1128gb"

    async def enter(usd: str, *parts: int) -> Any:
        at = datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]
        return await admin_economics.set_host_price(
            database, ADMIN, host_kind=kind, usd_per_hour=usd, source="contract", effective_from=at
        )

    await enter("30", 2026, 10, 15)
    await enter("29", 2026, 12, 1)
    await close(database, date(2026, 11, 1))
    for parts in ((2026, 10, 15), (2026, 10, 20), (2026, 11, 30, 23), (2026, 11, 1)):
        with pytest.raises(Conflict):
            await enter("1", *parts)
    await enter("28", 2026, 12, 1)
    await enter("31", 2027, 1, 1)
    shown = await admin_economics.list_host_prices(database, ADMIN, host_kind=kind)
    assert [view.usd_per_hour for view in shown] == ["35.76", "30.00", "28.00", "31.00"]
    for usd, at in (
        ("-1", datetime(2027, 1, 1, tzinfo=UTC)),
        ("1e9", None),
        ("1", datetime(2027, 1, 1, 1, 30, tzinfo=UTC)),
    ):
        with pytest.raises(InvalidRequest):
            await admin_economics.set_host_price(
                database, ADMIN, host_kind=kind, usd_per_hour=usd, source="x", effective_from=at
            )
    with pytest.raises(InvalidRequest):
        await admin_economics.set_host_price(
            database, ADMIN, host_kind="gpu-h2O", usd_per_hour="1", source="x"
        )


def run(*words: str) -> Any:
    return CliRunner().invoke(penstock, words)


def run_json(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


INVOICE = {
    "provider": "DigitalOcean",
    "number": "7",
    "month": "2026-11",
    "total_usd": "110.50",
    "lines": [
        {"host_kind": "gpu-h200x8-1128gb", "description": "droplet", "hours": "3.5", "amount_usd": "125.16"},
        {"description": "discount", "amount_usd": "-14.66"},
    ],
}


def test_a_providers_invoice_on_the_command_line(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    file = tmp_path / "invoice.json"
    file.write_text(json.dumps(INVOICE))
    entered = run_json("economics", "provider-invoice", "enter", str(file))
    assert (entered["total_usd"], entered["lines"]) == ("110.50", 2)
    again = run("economics", "provider-invoice", "enter", str(file))
    assert again.exit_code == 2
    assert "entered already" in again.output
    wrong = {**INVOICE, "number": "8", "total_usd": "110.51"}
    file.write_text(json.dumps(wrong))
    assert "add up to $110.50" in run("economics", "provider-invoice", "enter", str(file)).output
    rows = run_json("economics", "provider-invoice", "variance", "--month", "2026-11")
    assert [(row["host_kind"], row["invoiced_usd"], row["variance_usd"]) for row in rows] == [
        ("", "-14.66", "-14.66"),
        ("gpu-h200x8-1128gb", "125.16", "125.16"),
        (None, "110.50", "110.50"),
    ]
    run_json("economics", "provider-invoice", "void", entered["id"], "--reason", "twice")
    table = tmp_path / "lines.csv"
    table.write_text("host_kind,description,hours,amount_usd\ngpu-h100x8-640gb,droplet,2,70.56\n")
    facts = ("--provider", "DO", "--number", "7", "--month", "2026-11", "--total", "70.56")
    assert run_json("economics", "provider-invoice", "enter", str(table), *facts)["total_usd"] == "70.56"
    assert run("economics", "provider-invoice", "enter", str(table)).exit_code == 2
    assert len(run_json("economics", "provider-invoice", "list", "--month", "2026-11")) == 2
    assert run_json("economics", "example")["ratio_at_one_price"] == "4.8603"
    assert run_json("economics", "report") == []


async def test_rest_tells_the_same(database: Database, busy: tuple[datetime, int, list[Customer]]) -> None:
    hour = busy[0]
    user = await admin_users.create_user(
        database,
        ADMIN,
        email="f@example.com",
        password="correct horse battery",
        role="finance",
        tenant_id=None,
    )
    pepper = b"p" * 32
    token = await create_admin_token(database, ADMIN, pepper=pepper, user_id=user.id, name="t")
    app = FastAPI()
    app.include_router(router(AdminDeps(database, None, pepper)))
    api_app._install_error_handlers(app)
    headers = {"authorization": f"Bearer {token.secret}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test/admin/v1", headers=headers
    ) as client:
        span = {
            "from": f"{hour - timedelta(days=3):%Y-%m-%dT%H:00Z}",
            "to": f"{hour + timedelta(hours=1):%Y-%m-%dT%H:00Z}",
        }
        told = (await client.get("/economics/report", params={**span, "by": "tenant,model"})).json()["data"]
        rows = await ask(database, hour)
        assert [row["margin_usd"] for row in told] == [row.margin_usd for row in rows]
        assert (await client.get("/economics/states", params=span)).status_code == 200
        assert (await client.get("/economics/report", params={"by": "colour"})).status_code == 400
        entered = await client.post("/economics/provider-invoices", json=INVOICE)
        assert entered.status_code == 201, entered.text
        void = await client.post(
            f"/economics/provider-invoices/{entered.json()['id']}/void", json={"reason": "r"}
        )
        assert void.json()["voided_at"]
        body = {"host_kind": "local-cpu", "usd_per_hour": "0.10", "source": "us"}
        assert (await client.post("/economics/host-prices", json=body)).status_code == 201
        for path in ("/reconcile/engines", "/economics/host-prices", "/economics/provider-invoices"):
            assert (await client.get(path)).status_code == 200
        chain = (await client.get("/reconcile/cross-check", params={"month": f"{hour:%Y-%m}"})).json()["data"]
        assert [row["source"] for row in chain][:2] == ["gateway", "ledger"]
        assert (await client.get("/reconcile/engines/nobody")).status_code == 404
        assert (await client.get("/reconcile/cross-check", params={"month": "x"})).status_code == 400
        headers.clear()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test/admin/v1"
    ) as stranger:
        assert (await stranger.get("/economics/report")).status_code == 401
