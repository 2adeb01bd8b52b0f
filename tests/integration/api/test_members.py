"""Members manage their own organisation over HTTP: every route against every role, and what each act leaves behind."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import AdminDeps
from api.customer import members
from core.db import Database
from tenants.roles import Role
from tests.integration.admin.people import console_session, is_open
from tests.support.tenancy import ADMIN, PEPPER, Organisation, audit_actions, make_organisation

PASSWORD = "correct horse battery"
ROLES: tuple[Role, ...] = ("tenant_owner", "tenant_developer", "tenant_viewer")


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    api_app._install_error_handlers(app)
    for router in members.routers(AdminDeps(database=database, redis=None, pepper=PEPPER)):
        app.include_router(router)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


class Caller:
    """HTTP calls with one token."""

    def __init__(self, client: httpx.AsyncClient, token: str, user_id: str = "") -> None:
        self.client = client
        self.user_id = user_id
        self.headers = {"authorization": f"Bearer {token}"}

    async def __call__(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self.client.request(method, f"/v1/organization{path}", json=body, headers=self.headers)


async def caller(
    client: httpx.AsyncClient, database: Database, role: Role, acme: Organisation | None
) -> Caller:
    user = await admin_users.create_user(
        database,
        ADMIN,
        email=f"{role}-{uuid4().hex[:8]}@example.com",
        password=PASSWORD,
        role=role,
        tenant_id=None if acme is None else acme.tenant_id,
    )
    made = await create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=user.id, name="test", scopes=["access"]
    )
    return Caller(client, made.secret, str(user.id))


@pytest.fixture
async def acme(database: Database) -> Organisation:
    return await make_organisation(database)


def acts(acme: Organisation, other: str) -> list[tuple[str, str, object, tuple[int, int, int]]]:
    """Method, path and body, and the status for an owner, a developer and a viewer."""
    key, project = f"/keys/{acme.key_id}", f"/projects/{acme.project_id}"
    new_key = {"project_id": str(acme.project_id), "name": "more"}
    everyone, owners, key_managers = (200, 200, 200), (200, 403, 403), (200, 200, 403)
    return [
        ("GET", "", None, everyone),
        ("PATCH", "", {"name": "Acme renamed"}, owners),
        ("GET", "/audit", None, everyone),
        ("GET", "/account", None, everyone),
        ("GET", "/account/lots", None, everyone),
        ("PUT", "/account/budget", {"budget_usd": "5"}, owners),
        ("GET", "/budgets", None, everyone),
        ("PUT", f"/budgets/key/{acme.key_id}", {"budget_usd": "5"}, owners),
        ("PUT", f"/budgets/project/{acme.project_id}", {"budget_usd": None}, owners),
        ("PUT", "/budgets/end_user", {"budget_usd": "2"}, owners),
        ("PUT", "/budgets/end_user/a/b c", {"budget_usd": "5", "stops": False}, owners),
        ("PUT", "/budgets/tag/tag_team=blue", {"budget_usd": "5"}, owners),
        ("GET", "/projects", None, everyone),
        ("POST", "/projects", {"name": uuid4().hex}, (201, 403, 403)),
        ("GET", "/keys", None, everyone),
        ("GET", key, None, everyone),
        ("POST", "/keys", new_key, (201, 201, 403)),
        ("GET", "/adapters", None, everyone),
        ("POST", "/adapters", {}, (400, 400, 403)),
        ("POST", "/adapters/import", {"model": "m", "name": "n", "repository": "no/such"}, (404, 404, 403)),
        ("POST", f"/adapters/{acme.tenant_id}/delete", None, (404, 404, 403)),
        ("GET", "/limits", None, everyone),
        ("PUT", f"/limits/key/{acme.key_id}", {"requests_per_min": 5}, owners),
        ("PUT", f"/limits/project/{acme.project_id}", {"concurrency": 5}, owners),
        ("GET", "/users", None, everyone),
        ("GET", f"/users/{other}", None, everyone),
        ("POST", f"/users/{other}/role", {"role": "tenant_developer"}, owners),
        ("POST", f"/users/{other}/disable", None, owners),
        ("POST", f"/users/{other}/enable", None, owners),
        ("GET", "/invitations", None, everyone),
        ("POST", "/invitations", {"email": "new@example.com", "role": "tenant_viewer"}, (201, 403, 403)),
        ("POST", f"/invitations/{acme.tenant_id}/revoke", None, (404, 403, 403)),
        ("DELETE", "/sessions", None, (204, 204, 204)),
        ("GET", "/sessions", None, everyone),
        ("GET", f"/users/{other}/sessions", None, owners),
        ("POST", f"/sessions/{acme.tenant_id}/revoke", None, (404, 404, 404)),
        ("GET", "/sign-in", None, everyone),
        ("PUT", "/sign-in", {"rule": "password", "reason": "x"}, owners),
        ("GET", "/identity-provider", None, owners),
        ("PUT", "/identity-provider", {"issuer": "https://login.example.com", "client_id": "x", "client_secret": "s",
         "mail_domains": []}, owners),
        ("DELETE", "/identity-provider", None, (204, 403, 403)),
        ("GET", "/tokens", None, everyone),
        ("POST", "/tokens", {"name": "laptop"}, (201, 201, 201)),
        ("POST", "/password", {"current": "wrong", "new": "battery staple horse"}, (401, 401, 401)),
        ("PATCH", key, {"networks": ["203.0.113.0/24"], "scopes": ["inference"]}, key_managers),
        ("PUT", f"{key}/client-settings", {"quota_status": 429, "cors_origins": ["https://a.example"]}, key_managers),
        ("POST", f"{key}/rotate", {"overlap_s": 60}, key_managers),
        ("POST", f"{key}/revoke", None, key_managers),
        ("PUT", f"{project}/retention", {"responses_kept_days": 0, "reason": "their data"}, owners),
        ("POST", f"{project}/archive", None, owners),
        ("POST", f"{project}/restore", None, owners),
    ]  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_what_it_needs(
    client: httpx.AsyncClient, database: Database, acme: Organisation, role: Role
) -> None:
    call = await caller(client, database, role, acme)
    other = await caller(client, database, "tenant_viewer", acme)
    for method, path, body, statuses in acts(acme, other.user_id):
        answer = await call(method, path, body)
        assert answer.status_code == statuses[ROLES.index(role)], (method, path, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


async def test_an_import_without_a_token_is_not_read_beyond_the_usual_body(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/organization/adapters/import", content=b" " * 100_000)
    assert answer.status_code == 413
    assert (await client.post("/v1/organization/adapters", content=b" " * 100_000)).status_code == 401


async def test_every_route_is_in_the_table_of_roles(client: httpx.AsyncClient, acme: Organisation) -> None:
    app = client._transport.app  # type: ignore[attr-defined]
    listed = {(method, path) for method, path, _, _ in acts(acme, "OTHER")}
    names = {
        str(acme.key_id): "{key_id}",
        str(acme.project_id): "{project_id}",
        str(acme.tenant_id): "{invitation_id}",
        "OTHER": "{user_id}",
    }
    covered = set()
    for method, path in listed:
        for value, name in names.items():
            path = path.replace(value, name)
        path = path.replace("/sessions/{invitation_id}", "/sessions/{session_id}")
        path = path.replace("/adapters/{invitation_id}", "/adapters/{adapter_id}")
        path = path.replace("/limits/key/{key_id}", "/limits/{scope_kind}/{scope_id}")
        path = path.replace("/limits/project/{project_id}", "/limits/{scope_kind}/{scope_id}")
        path = path.replace("/budgets/key/{key_id}", "/budgets/{scope}/{scope_id}")
        path = path.replace("/budgets/project/{project_id}", "/budgets/{scope}/{scope_id}")
        path = path.replace("/budgets/end_user/a/b c", "/budgets/end_user/{name}")
        path = path.replace("/budgets/tag/tag_team=blue", "/budgets/tag/{name}")
        covered.add((method, f"/v1/organization{path}"))
    routes = {
        (method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert routes - covered == {
        ("POST", "/v1/organization/tokens/{token_id}/revoke"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/invitations/accept"),
        ("POST", "/v1/second-factor"),
        *(("POST", f"/v1/second-factor/{act}") for act in ("confirm", "backup-codes", "disable")),
    }


async def test_nobody_else_comes_in(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    stranger = await caller(client, database, "tenant_owner", await make_organisation(database, "Globex"))
    victim = await caller(client, database, "tenant_viewer", acme)
    platform = await caller(client, database, "platform_admin", None)
    for method, path, body, _ in acts(acme, victim.user_id):
        assert (await platform(method, path, body)).status_code == 403
        assert (await Caller(client, acme.key)(method, path, body)).status_code == 403
        anonymous = await client.request(method, f"/v1/organization{path}", json=body)
        assert anonymous.status_code == 401
        if str(acme.key_id) in path or str(acme.project_id) in path or victim.user_id in path:
            assert (await stranger(method, path, body)).status_code == 404, path
    hostile = {"project_id": str(acme.project_id), "name": "theirs"}
    assert (await stranger("POST", "/keys", hostile)).status_code == 404
    assert (await stranger("GET", "/keys")).json()["data"][0]["id"] != str(acme.key_id)


async def test_secrets_are_shown_once_and_each_act_is_in_the_audit_log(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    made = await owner("POST", "/keys", {"project_id": str(acme.project_id), "name": "more"})
    assert made.json()["secret"].startswith("pen_live_")
    assert made.headers["cache-control"] == "no-store"
    assert "secret" not in (await owner("GET", f"/keys/{made.json()['id']}")).json()
    token = (await owner("POST", "/tokens", {"name": "laptop"})).json()
    mine = Caller(client, token["secret"])
    assert (await mine("GET", "")).json()["id"] == str(acme.tenant_id)
    assert (await owner("POST", f"/tokens/{token['id']}/revoke")).status_code == 200
    assert (await mine("GET", "")).status_code == 401
    assert (await audit_actions(database))[-3:] == ["key.create", "token.create", "token.revoke"]
    text = (await owner("GET", "/audit")).text
    assert token["secret"] not in text
    assert made.json()["secret"] not in text


async def test_sessions_are_listed_and_ended_one_by_one(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    async def signed_in(call: Caller, role: Role, email: str) -> Caller:
        answer = await client.post("/v1/sessions", json={"email": email, "password": PASSWORD})
        return Caller(client, answer.json()["secret"], call.user_id)

    owner = await caller(client, database, "tenant_owner", acme)
    viewer = await caller(client, database, "tenant_viewer", acme)
    stranger = await caller(client, database, "tenant_owner", await make_organisation(database, "Globex"))
    email = (await owner("GET", f"/users/{viewer.user_id}")).json()["email"]
    first, second = [await signed_in(viewer, "tenant_viewer", email) for _ in range(2)]
    actor = await admin_users.verify_login(database, email, PASSWORD)
    assert actor is not None
    opened = await console_session(database, actor)

    listed = (await first("GET", "/sessions")).json()
    assert [(one["kind"], one["current"]) for one in listed] == [
        ("console", False),
        ("session", False),
        ("session", True),
    ]
    assert listed[0]["address"] == "192.0.2.1"
    assert listed[0]["client"] == "Firefox"
    assert listed[2]["client"].startswith("python-httpx")
    assert (await viewer("GET", "/tokens")).json()[0]["name"] == "test", "a session is no token"

    console, of_second, of_first = [one["id"] for one in listed]
    developer = await caller(client, database, "tenant_developer", acme)
    for other, status in ((stranger, 404), (developer, 403)):
        assert (await other("POST", f"/sessions/{of_first}/revoke")).status_code == status
        assert (await other("GET", f"/users/{viewer.user_id}/sessions")).status_code == status
    assert (await first("POST", f"/sessions/{of_second}/revoke")).status_code == 204
    assert (await second("GET", "")).status_code == 401
    assert (await first("POST", f"/sessions/{of_second}/revoke")).status_code == 409
    assert (await owner("POST", f"/sessions/{console}/revoke")).status_code == 204
    assert not await is_open(database, opened)
    left = (await owner("GET", f"/users/{viewer.user_id}/sessions")).json()
    assert [(one["id"], one["current"]) for one in left] == [(of_first, False)]
    assert (await audit_actions(database)).count("session.revoke") == 2


async def test_a_page_of_another_site_signs_nobody_in(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    email = (await owner("GET", f"/users/{owner.user_id}")).json()["email"]
    body = {"email": email, "password": PASSWORD}
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = await client.post("/v1/sessions", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    for headers in ({"origin": "http://test", "sec-fetch-site": "same-origin"}, {}):
        assert (await client.post("/v1/sessions", json=body, headers=headers)).status_code == 201


async def test_wrong_passwords_are_counted(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    wrong = {"current": "not this one", "new": "battery staple horse"}
    answers = [(await owner("POST", "/password", wrong)).status_code for _ in range(6)]
    assert answers == [401] * 5 + [429]
    right = {"current": PASSWORD, "new": "battery staple horse"}
    assert (await owner("POST", "/password", right)).status_code == 429
    other = await caller(client, database, "tenant_viewer", acme)
    assert (await other("POST", "/password", right)).status_code == 204
    assert (await other("POST", "/password", right)).status_code == 401


async def test_a_key_is_changed_and_rotated_under_one_id(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    developer = await caller(client, database, "tenant_developer", acme)
    path = f"/keys/{acme.key_id}"
    changed = await developer("PATCH", path, {"regions": ["TOR1", "nyc2"], "gpus": ["B300"]})
    assert (changed.json()["regions"], changed.json()["gpus"]) == (["nyc2", "tor1"], ["b300"])
    assert (await developer("PATCH", path, {"regions": None})).json()["gpus"] == ["b300"]
    assert (await developer("PATCH", path, {"regions": ["no such place"]})).status_code == 400
    changed = await developer("PATCH", path, {"networks": ["10.0.0.0/8", "::1"], "scopes": ["models"]})
    assert changed.json()["networks"] == ["10.0.0.0/8", "::1/128"]
    assert (await developer("PATCH", path, {"networks": None})).json()["scopes"] == ["models"]
    rotated = (await developer("POST", f"{path}/rotate", {"overlap_s": 0})).json()
    assert rotated["id"] == str(acme.key_id)
    assert rotated["secret"][-4:] == rotated["last4"] != acme.key[-4:]
    for wrong in ({"networks": ["10.0.0.1/8"]}, {"scopes": ["everything"]}, {"scopes": []}, {}, {"name": ""}):
        assert (await developer("PATCH", path, wrong)).status_code == 400
    assert (await developer("POST", f"{path}/rotate", {"overlap_s": -1})).status_code == 400
    assert (await developer("POST", f"{path}/revoke")).status_code == 200
    assert (await developer("POST", f"{path}/rotate", {})).status_code == 409
    assert (await developer("PATCH", path, {"name": "dead"})).status_code == 409
    stranger = await caller(client, database, "tenant_owner", await make_organisation(database, "Globex"))
    assert (await stranger("POST", f"{path}/rotate", {})).status_code == 404
    settings = {"quota_status": 429, "cors_origins": ["https://a.example"]}
    told = (await developer("PUT", f"{path}/client-settings", settings)).json()
    assert (told["quota_status"], told["cors_origins"]) == (429, ["https://a.example"])
    assert (await developer("PUT", f"{path}/client-settings", {"quota_status": 500})).status_code == 400
    assert (await stranger("PUT", f"{path}/client-settings", settings)).status_code == 404
    assert rotated["secret"] not in (await developer("GET", "/audit")).text


async def test_an_invited_person_joins_once_and_signs_in(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    wanted = {"email": "New@Example.com", "role": "tenant_developer"}
    first = (await owner("POST", "/invitations", wanted)).json()
    second = (await owner("POST", "/invitations", wanted)).json()
    assert (first["mailed"], first["email"]) == (False, "new@example.com")
    statuses = [one["status"] for one in (await owner("GET", "/invitations")).json()["data"]]
    assert statuses == ["revoked", "open"]
    async with database.system() as connection:
        stored = (await connection.execute(text("SELECT hash FROM invitations"))).scalars().all()
    assert second["secret"].encode() not in stored

    async def accept(secret: str) -> httpx.Response:
        return await client.post("/v1/invitations/accept", json={"secret": secret, "password": PASSWORD})

    refused = [await accept(secret) for secret in (first["secret"], "pen_invite_unknown")]
    assert {(one.status_code, one.json()["error"]["code"]) for one in refused} == {
        (400, "invalid_invitation")
    }
    assert (await accept(second["secret"])).json()["role"] == "tenant_developer"
    assert (await accept(second["secret"])).status_code == 400
    session = await client.post("/v1/sessions", json={"email": "new@example.com", "password": PASSWORD})
    assert session.status_code == 201
    assert session.json()["expires_at"] is not None
    mine = Caller(client, session.json()["secret"])
    assert (await mine("GET", "")).json()["id"] == str(acme.tenant_id)
    assert (await mine("DELETE", "/sessions")).status_code == 204
    assert (await mine("GET", "")).status_code == 401


async def test_signing_in_tells_nothing_about_accounts(
    client: httpx.AsyncClient, database: Database, acme: Organisation
) -> None:
    owner = await caller(client, database, "tenant_owner", acme)
    known = (await owner("GET", f"/users/{owner.user_id}")).json()["email"]
    platform = await admin_users.create_user(
        database, ADMIN, email="root@example.com", password=PASSWORD, role="platform_admin"
    )
    answers = []
    for email, password in (
        (known, "not the password"),
        ("nobody@example.com", PASSWORD),
        (platform.email, PASSWORD),
        ("no address", PASSWORD),
    ):
        answer = await client.post("/v1/sessions", json={"email": email, "password": password})
        answers.append((answer.status_code, answer.text))
    assert len(set(answers)) == 1
    assert answers[0][0] == 401
    for _ in range(6):
        last = await client.post("/v1/sessions", json={"email": known, "password": "wrong"})
    assert last.status_code == 429
    assert "retry-after" in last.headers
