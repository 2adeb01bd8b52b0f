"""The admin REST over HTTP: every route against every kind of caller."""

from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from admin import limits as admin_limits
from admin.users import create_admin_token
from core.db import Database
from core.settings import Settings
from tenants.key_format import new_key
from tenants.principal import default_limits
from tests.integration.admin.rest import PASSWORD, Caller, token_of
from tests.support.tenancy import ADMIN, PEPPER, audit_actions, make_organisation


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of every route, parameters filled with ids of nothing."""
    found = []
    for path, methods in app.openapi()["paths"].items():
        filled = path.replace("{scope_kind}", "key").replace("{action}", "drain")
        while "{" in filled:
            start, end = filled.index("{"), filled.index("}")
            filled = filled[:start] + str(uuid4()) + filled[end + 1 :]
        found += [(method.upper(), filled) for method in methods]
    return found


@pytest.mark.promise(23)
async def test_every_route_refuses_who_has_no_business(
    app: FastAPI, client: httpx.AsyncClient, database: Database
) -> None:
    acme = await make_organisation(database)
    revoked = await token_of(database, "platform_admin")
    async with database.system() as connection:
        await connection.execute(text("UPDATE admin_tokens SET revoked_at = now()"))
    wrong = {
        "an unknown token": new_key("admin", PEPPER),
        "a malformed token": "pen_admin_x",
        "a customer's key": acme.key,
        "a revoked token": revoked,
        "an empty token": "",
    }
    own = {role: await token_of(database, role, acme) for role in ("tenant_owner", "tenant_viewer")}
    before = await audit_actions(database)
    walked = routes(app)
    assert len(walked) > 25
    for method, path in walked:
        response = await client.request(method, path)
        assert response.status_code == 401, f"{method} {path} without a token"
        assert response.headers["www-authenticate"] == "Bearer"
        for what, token in wrong.items():
            response = await client.request(method, path, headers={"authorization": f"Bearer {token}"})
            assert response.status_code == 401, f"{method} {path} with {what}"
            assert not token or token not in response.text
        for role, token in own.items():
            response = await client.request(
                method, path, headers={"authorization": f"Bearer {token}"}, json={}
            )
            assert response.status_code == 403, f"{method} {path} as {role}"
    assert await audit_actions(database) == before


async def test_finance_reads_and_changes_nothing_here(
    app: FastAPI, client: httpx.AsyncClient, database: Database
) -> None:
    acme = await make_organisation(database)
    finance = Caller(client, await token_of(database, "finance"))
    base = f"/tenants/{acme.tenant_id}"
    for path in ("/tenants", base, f"{base}/keys", f"{base}/limits", f"{base}/projects", "/users", "/audit"):
        assert (await finance("GET", path)).status_code == 200, path
    before = await audit_actions(database)
    for method, path, body in (
        ("POST", "/tenants", {"name": "New"}),
        ("PATCH", base, {"name": "New"}),
        ("POST", f"{base}/suspend", {"reason": "x"}),
        ("POST", f"{base}/keys", {"project_id": str(acme.project_id), "name": "x"}),
        ("POST", f"/keys/{acme.key_id}/revoke", {}),
        ("PUT", f"{base}/limits/tenant/{acme.tenant_id}", {"concurrency": 1}),
        ("PUT", f"{base}/projects/{acme.project_id}/retention", {"responses_kept_days": 0}),
        ("POST", "/users", {"email": "x@example.com", "password": PASSWORD, "role": "finance"}),
    ):
        assert (await finance(method, path, body)).status_code == 403, path
    assert await audit_actions(database) == before


async def test_a_new_organisation_has_the_default_limits(admin: Caller, database: Database) -> None:
    made = (await admin("POST", "/tenants", {"name": "Acme"})).json()
    [scope] = await admin_limits.list_limits(database, ADMIN, tenant_id=UUID(made["id"]))
    assert scope.limits == default_limits(Settings.model_construct())
    assert scope.limits.requests_per_min


@pytest.mark.promise(25)
async def test_a_key_is_seen_once(admin: Caller, database: Database) -> None:
    acme = await make_organisation(database)
    created = await admin(
        "POST", f"/tenants/{acme.tenant_id}/keys", {"project_id": str(acme.project_id), "name": "k"}
    )
    secret = created.json()["secret"]
    assert created.headers["cache-control"] == "no-store"
    for path in (f"/tenants/{acme.tenant_id}/keys", f"/keys/{created.json()['id']}", "/audit"):
        response = await admin("GET", path)
        assert response.status_code == 200
        assert secret not in response.text
        assert "hash" not in response.text
    found = await admin("POST", "/key-search", {"key": secret})
    assert found.json()["id"] == created.json()["id"]
    assert (await admin("POST", "/key-search", {"key": new_key("live", PEPPER)})).status_code == 404
    assert (await admin("POST", "/key-search", {"key": "pen_live_nonsense"})).status_code == 400


async def test_a_test_key_is_made(admin: Caller, database: Database) -> None:
    acme = await make_organisation(database)
    body = {"project_id": str(acme.project_id), "name": "k", "kind": "test"}
    made = await admin("POST", f"/tenants/{acme.tenant_id}/keys", body)
    assert made.status_code == 201
    assert made.json()["kind"] == "test"
    assert made.json()["secret"].startswith("pen_test_")


async def test_an_admin_sets_for_how_long_a_project_keeps_responses(
    admin: Caller, database: Database
) -> None:
    acme = await make_organisation(database)
    projects = f"/tenants/{acme.tenant_id}/projects"
    for days in (7, 0, None):
        body = {"responses_kept_days": days, "reason": "a contract"}
        changed = await admin("PUT", f"{projects}/{acme.project_id}/retention", body)
        assert changed.json()["responses_kept_days"] == days
        [listed] = (await admin("GET", projects)).json()["data"]
        assert listed == changed.json()
    newest = (await admin("GET", "/audit?limit=1&action=project.set_retention")).json()["data"][0]
    assert (newest["reason"], newest["object_id"]) == ("a contract", str(acme.project_id))
    assert (newest["before"]["responses_kept_days"], newest["after"]["responses_kept_days"]) == (0, None)


async def test_lists_come_in_pages(admin: Caller, database: Database) -> None:
    for number in range(5):
        await make_organisation(database, f"Tenant {number}")
    names: list[str] = []
    after = ""
    while True:
        body = (await admin("GET", f"/tenants?limit=2{after}")).json()
        names += [row["name"] for row in body["data"]]
        if not body["has_more"]:
            assert body["next"] is None
            break
        assert len(body["data"]) == 2
        after = f"&after={body['next']}"
    assert names == [f"Tenant {number}" for number in range(5)]
    newest = (await admin("GET", "/audit?limit=1")).json()
    older = (await admin("GET", f"/audit?limit=1&after={newest['next']}")).json()
    assert older["data"][0]["at"] <= newest["data"][0]["at"]
    assert older["data"][0]["id"] != newest["data"][0]["id"]
    only_keys = (await admin("GET", "/audit?action=key.")).json()["data"]
    assert {row["action"] for row in only_keys} == {"key.create"}


@pytest.mark.promise(27)
async def test_nobody_changes_himself_by_rest(admin: Caller, database: Database) -> None:
    me = (await admin("GET", "/audit?action=user.create&limit=1")).json()["data"][0]["object_id"]
    await token_of(database, "platform_admin")
    for act, body in (("role", {"role": "finance"}), ("password", {"password": PASSWORD}), ("disable", None)):
        assert (await admin("POST", f"/users/{me}/{act}", body)).status_code == 403


async def test_a_demoted_or_disabled_person_loses_the_token_at_once(
    client: httpx.AsyncClient, admin: Caller, database: Database
) -> None:
    other = Caller(client, await token_of(database, "platform_admin"))
    assert (await other("GET", "/tenants")).status_code == 200
    them = (await admin("GET", "/audit?action=user.create&limit=1")).json()["data"][0]["object_id"]
    assert (await admin("POST", f"/users/{them}/role", {"role": "finance"})).status_code == 200
    assert (await other("GET", "/tenants")).status_code == 401
    made = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=UUID(them), name="as finance")
    again = Caller(client, made.secret)
    assert (await again("GET", "/tenants")).status_code == 200
    assert (await again("POST", "/tenants", {"name": "New"})).status_code == 403
    assert (await admin("POST", f"/users/{them}/disable")).status_code == 200
    assert (await again("GET", "/tenants")).status_code == 401


def test_the_document_tells_of_every_route(app: FastAPI) -> None:
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), f"{method} {path}"
            assert operation["security"] == [{"Admin token": []}], f"{method} {path}"
            assert {"401", "403"} <= operation["responses"].keys()
