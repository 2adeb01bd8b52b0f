"""Bad input over the admin REST gets an answer and leaves nothing."""

import json
from collections.abc import AsyncIterator

import pytest

from api.admin.deps import MAX_BODY_BYTES
from core.db import Database
from tests.integration.admin.rest import NOBODY, PASSWORD, Caller
from tests.support.tenancy import audit_actions, make_organisation


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/tenants", {"name": "Acme"}, 409),
        ("POST", "/tenants", {"name": "ACME!"}, 409),
        ("POST", "/tenants", {"name": ""}, 400),
        ("POST", "/tenants", {"name": "a\x00b"}, 400),
        ("POST", "/tenants", {"name": "x" * 101}, 400),
        ("POST", "/tenants", {"name": "New", "status": "active"}, 400),
        ("POST", "/tenants", {"name": "New", "tier": "gold"}, 400),
        ("POST", "/tenants", [], 400),
        ("GET", "/tenants?limit=0", None, 400),
        ("GET", "/tenants?limit=100000", None, 400),
        ("GET", "/tenants?after=x", None, 400),
        ("GET", "/tenants/not-an-id", None, 400),
        ("GET", f"/tenants/{NOBODY}", None, 404),
        ("GET", f"/tenants/{NOBODY}/keys", None, 404),
        ("GET", f"/tenants/{NOBODY}/limits", None, 404),
        ("GET", f"/tenants/{NOBODY}/projects", None, 404),
        ("GET", f"/keys/{NOBODY}", None, 404),
        ("GET", "/audit?action=%00", None, 400),
        ("GET", "/prices?model=%00", None, 400),
        ("POST", "/models", {"name": "a\x00b"}, 400),
        ("POST", "/models/retire", {"name": "a\x00b"}, 400),
        ("POST", "/models", {"name": "deepseek-v3.2", "note": "a\x00b"}, 400),
        ("POST", "/prices", {"model": "a\x00b", "input": "1", "output": "1"}, 400),
        ("POST", "/prices", {"model": "m", "input": "-1", "output": "1"}, 400),
        ("POST", "/tenants/{tenant}/credits", {"amount_usd": "5", "reason": "a\x00b"}, 400),
        ("POST", "/tenants/{tenant}/credits", {"amount_usd": "NaN", "reason": "x"}, 400),
        ("PUT", "/tenants/{tenant}/budget", {"budget_usd": "1e99"}, 400),
        ("GET", "/audit?object_id=a%00b", None, 400),
        ("POST", "/tenants/{tenant}/projects", {"name": "default"}, 409),
        ("PUT", "/tenants/{tenant}/projects/{project}/retention", {}, 400),
        ("PUT", "/tenants/{tenant}/projects/{project}/retention", {"responses_kept_days": -1}, 400),
        ("PUT", "/tenants/{tenant}/projects/{project}/retention", {"responses_kept_days": 3_651}, 400),
        ("PUT", f"/tenants/{{tenant}}/projects/{NOBODY}/retention", {"responses_kept_days": 1}, 404),
        ("PUT", f"/tenants/{NOBODY}/projects/{{project}}/retention", {"responses_kept_days": 1}, 404),
        ("POST", "/tenants/{tenant}/suspend", {}, 400),
        ("POST", "/tenants/{tenant}/resume", {}, 409),
        ("POST", "/tenants/{tenant}/throttle", {"minutes": -1, "reason": "x"}, 400),
        ("POST", "/tenants/{tenant}/share", {"share_percent": 0, "reason": "x"}, 400),
        ("POST", "/tenants/{tenant}/share", {"share_percent": 10_001, "reason": "x"}, 400),
        ("POST", "/tenants/{tenant}/keys", {"project_id": NOBODY, "name": "k"}, 404),
        ("POST", "/tenants/{tenant}/keys", {"project_id": "{project}", "name": "k", "hash": "x"}, 400),
        ("POST", "/tenants/{tenant}/keys", {"project_id": "{project}", "name": "k", "kind": "root"}, 400),
        (
            "POST",
            "/tenants/{tenant}/keys",
            {"project_id": "{project}", "name": "k", "expires_at": "2001-01-01T00:00:00Z"},
            400,
        ),
        (
            "POST",
            "/tenants/{tenant}/keys",
            {"project_id": "{project}", "name": "k", "expires_at": "2999-01-01T00:00:00"},
            400,
        ),
        (
            "POST",
            "/tenants/{tenant}/keys",
            {"project_id": "{project}", "name": "k", "allowed_models": []},
            400,
        ),
        ("PUT", "/tenants/{tenant}/limits/tenant/{tenant}", {"concurrency": 0}, 400),
        ("PUT", "/tenants/{tenant}/limits/tenant/{tenant}", {"concurrency": 1.5}, 400),
        ("PUT", "/tenants/{tenant}/limits/tenant/{tenant}", {"concurency": 1}, 400),
        ("PUT", "/tenants/{tenant}/limits/galaxy/{tenant}", {}, 400),
        ("PUT", "/tenants/{tenant}/limits/key/{project}", {}, 404),
        ("POST", "/users", {"email": "x", "password": PASSWORD, "role": "finance"}, 400),
        ("POST", "/users", {"email": "x@example.com", "password": "short", "role": "finance"}, 400),
        ("POST", "/users", {"email": "x@example.com", "password": PASSWORD, "role": "root"}, 400),
        ("POST", "/users", {"email": "x@example.com", "password": PASSWORD, "role": "tenant_owner"}, 400),
        (
            "POST",
            "/users",
            {"email": "x@example.com", "password": PASSWORD, "role": "finance", "tenant_id": "{tenant}"},
            400,
        ),
        (
            "POST",
            "/users",
            {
                "email": "x@example.com",
                "password": PASSWORD,
                "role": "tenant_owner",
                "tenant_id": NOBODY,
            },
            404,
        ),
    ],
)
async def test_bad_input_gets_an_answer_and_leaves_nothing(
    admin: Caller, database: Database, method: str, path: str, body: object, status: int
) -> None:
    acme = await make_organisation(database)
    before = await audit_actions(database)
    ids = {"{tenant}": str(acme.tenant_id), "{project}": str(acme.project_id)}
    encoded = json.dumps(body)
    for name, value in ids.items():
        path, encoded = path.replace(name, value), encoded.replace(name, value)
    response = await admin(method, path, json.loads(encoded))
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert await audit_actions(database) == before


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b'{"name": "\\ud800"}', b"[" * 5000, b'{"name": NaN}', b""]
)
async def test_what_is_no_json_gets_400(admin: Caller, content: bytes) -> None:
    response = await admin.client.post(
        "/admin/v1/tenants", content=content, headers={**admin.headers, "content-type": "application/json"}
    )
    assert response.status_code == 400


async def test_a_body_is_read_up_to_its_cap_only(admin: Caller) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"name": "'
        for _ in range(10_000):
            sent += 1024
            yield b"x" * 1024

    response = await admin.client.post("/admin/v1/tenants", content=endless(), headers=admin.headers)
    assert response.status_code == 413, response.text
    assert response.json()["error"]["message"]
    announced = await admin("POST", "/tenants", {"name": "x" * 2 * MAX_BODY_BYTES})
    assert announced.status_code == 413
    assert announced.json()["error"]["message"]
    assert sent <= MAX_BODY_BYTES + 2048
