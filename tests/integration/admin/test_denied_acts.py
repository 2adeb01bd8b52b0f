"""Acts that are refused for lack of rights are counted by minute and end in the audit log."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.applications import Starlette

from admin import decisions, logins, sign_in_rules
from admin.audit import list_audit
from admin.users import create_admin_token
from console import viewer as console_viewer
from console.access import AccessMiddleware, AccessRules, cookie_name
from console.sessions import SessionStore
from console.viewer import Viewer
from core.client_address import ClientAddresses
from core.clock import SystemClock
from core.db import Database
from core.errors import PermissionDenied
from core.settings import Settings
from jobs.work import record_denied
from tenants.views import AuditEntry
from tests.integration.admin.people import PASSWORD, person, signed_in
from tests.integration.admin.rest import NOBODY, Caller, token_of
from tests.integration.admin.test_commands import Shell, shell
from tests.support.tenancy import ADMIN, PEPPER, make_organisation

__all__ = ["shell"]


async def _denied(database: Database) -> list[AuditEntry]:
    """The audit rows of refused acts, by their codes, once their minute is over."""
    async with database.system() as connection:
        await connection.execute(text("UPDATE denied_acts SET minute = minute - interval '1 minute'"))
    await record_denied(database, Settings.model_construct())
    rows = await list_audit(database, ADMIN, action="access.denied")
    return sorted(rows, key=lambda row: row.reason or "")


def _after(row: AuditEntry) -> dict[str, Any]:
    assert row.after is not None
    return row.after


async def test_a_loop_of_refused_requests_is_one_row(
    app: FastAPI, client: httpx.AsyncClient, database: Database
) -> None:
    acme = await make_organisation(database)
    finance = Caller(client, await token_of(database, "finance"))
    path = f"/tenants/{acme.tenant_id}/suspend"
    for _ in range(5):
        assert (await finance("POST", path, {"reason": "r"})).status_code == 403
    assert (await finance("POST", f"/tenants/{NOBODY}/suspend", {"reason": "r"})).status_code == 403
    assert (await finance("GET", "/tenants")).status_code == 200
    async with database.read() as connection:
        assert (
            await connection.scalar(text("SELECT count(*) FROM audit_log WHERE action = 'access.denied'"))
            == 0
        )
    [row] = await _denied(database)
    assert (row.actor_kind, row.tenant_id, row.reason) == ("token", acme.tenant_id, "permission_denied")
    assert row.actor_label.startswith("finance-")
    assert (row.object_kind, row.object_id) == ("act", "POST /admin/v1/tenants/{tenant_id}/suspend")
    assert (_after(row)["count"], _after(row)["address"]) == (6, "127.0.0.1")
    assert _after(row)["first_at"] < _after(row)["last_at"]


async def test_scopes_other_organisations_and_one_that_does_not_exist(
    client: httpx.AsyncClient, database: Database
) -> None:
    acme = await make_organisation(database)
    finance = await person(database, "finance")
    reading = await create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=UUID(finance.id), name="reads", scopes=["read"]
    )
    body = {"reason": "r"}
    assert (
        await Caller(client, reading.secret)("POST", f"/tenants/{NOBODY}/suspend", body)
    ).status_code == 403
    owner = Caller(client, await token_of(database, "tenant_owner", acme))
    assert (await owner("GET", "/tenants")).status_code == 403
    role, scope = await _denied(database)
    assert (scope.actor_id, scope.reason, scope.tenant_id) == (finance.id, "token_scope", None)
    assert (role.reason, role.tenant_id) == ("permission_denied", acme.tenant_id)


async def test_a_second_person_and_a_sign_in_that_proves_too_little(
    client: httpx.AsyncClient, database: Database
) -> None:
    ada = await person(database, "platform_admin")
    await person(database, "finance")
    token = await create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=UUID(ada.id), name="t", scopes=["access"]
    )
    act = Caller(client, token.secret)
    eve = {"email": "eve@example.com", "password": PASSWORD, "role": "platform_admin"}
    assert (await act("POST", "/users", eve)).status_code == 201
    [waiting] = await decisions.list_approvals(database, ADMIN)
    answer = await act("POST", f"/approvals/{waiting.id}/decision", {"approve": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "second_person_needed")

    acme = await make_organisation(database)
    owner = await person(database, "tenant_owner", acme.tenant_id)
    await sign_in_rules.set_rule(database, ADMIN, tenant_id=acme.tenant_id, rule="second_factor", reason="r")
    with pytest.raises(PermissionDenied):
        await logins.sign_in(database, owner.label, PASSWORD, address="192.0.2.7")
    sign_in, decision = await _denied(database)
    assert (decision.actor_id, decision.reason) == (ada.id, "second_person_needed")
    assert (sign_in.object_id, sign_in.reason) == ("sign in", "second_factor_not_enrolled")
    assert (sign_in.actor_id, sign_in.tenant_id) == (owner.id, acme.tenant_id)
    assert _after(sign_in)["address"] == "192.0.2.7"


async def test_a_command(shell: Shell, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_organisation(database, "Acme")
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", await token_of(database, "finance"))
    refused = await asyncio.to_thread(shell, "tenants", "suspend", "acme", "--reason", "r")
    assert (refused.exit_code, "may not do this" in refused.output) == (2, True), refused.output
    [row] = await _denied(database)
    assert (row.actor_kind, row.object_id, row.reason) == (
        "token", "penstock tenants suspend", "permission_denied",
    )  # fmt: skip


async def test_pages_and_buttons_of_the_console(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    finance = await person(database, "finance")
    sessions = SessionStore(database, b"secret", SystemClock())
    token = await sessions.open(await signed_in(database, finance))
    access = AccessMiddleware(
        Starlette(),
        sessions=sessions,
        access=AccessRules([("/keys", frozenset({"platform_admin"}))]),
        addresses=ClientAddresses(""),
    )
    page = httpx.AsyncClient(transport=httpx.ASGITransport(app=access), base_url="http://127.0.0.1")
    async with page:
        page.cookies.set(cookie_name(False), token)
        assert (await page.get("/keys")).status_code == 403

    shown: list[str] = []
    monkeypatch.setattr(console_viewer, "toast_error", shown.append)
    session = await sessions.use(token)
    assert session is not None

    async def suspend() -> None:
        raise PermissionDenied("the role finance may not do this")

    await Viewer(session, token, sessions, "192.0.2.9").act(suspend)()
    assert shown == ["the role finance may not do this"]
    rows = {row.object_id.rpartition(".")[2]: row for row in await _denied(database)}
    assert rows.keys() == {"console /keys", "suspend"}
    assert {row.actor_id for row in rows.values()} == {finance.id}
    assert _after(rows["suspend"])["address"] == "192.0.2.9"
