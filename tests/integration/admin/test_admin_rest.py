"""The admin REST over HTTP: every route against every kind of caller, and one audit row for each change."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from redis.asyncio import Redis
from sqlalchemy import text

from admin import adjustments as admin_adjustments
from admin import contracts as admin_contracts
from admin import limits as admin_limits
from admin import payments as admin_payments
from admin import prices as admin_prices
from admin import tenants as admin_tenants
from admin import users as admin_users
from admin.users import create_admin_token
from api import app as api_app
from api.admin.deps import MAX_BODY_BYTES, AdminDeps
from api.admin.routers import admin_routers
from core.db import Database
from core.settings import Settings
from tenants.changes import CHANNEL
from tenants.key_format import new_key
from tenants.principal import default_limits
from tenants.roles import Role
from tests.integration.billing.payments.support import buy, gateway_to
from tests.support.approving import SECOND, set_limit
from tests.support.stripe_sim import FakeStripe, fake_stripe
from tests.support.tenancy import ADMIN, PEPPER, Organisation, audit_actions, make_organisation

__all__ = ["fake_stripe"]
PASSWORD = "correct horse battery"
NOBODY = "0198c0de-dead-7000-8000-000000000000"
"""The id of nothing; fixed, because test names must not differ between workers."""


class Caller:
    """HTTP calls with one token."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self.client = client
        self.headers = {"authorization": f"Bearer {token}"}

    async def __call__(
        self, method: str, path: str, body: object = None, **options: object
    ) -> httpx.Response:
        return await self.client.request(
            method, f"/admin/v1{path}", json=body, headers=self.headers, **options
        )


async def token_of(database: Database, role: Role, acme: Organisation | None = None) -> str:
    user = await admin_users.create_user(
        database,
        ADMIN,
        email=f"{role}-{uuid4().hex[:8]}@example.com",
        password=PASSWORD,
        role=role,
        tenant_id=None if acme is None else acme.tenant_id,
    )
    made = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="test")
    return made.secret


@pytest.fixture(scope="module")
def routes_and_deps() -> tuple[FastAPI, AdminDeps]:
    """The admin REST and what its routes use, which `app` fills in anew: 130 routes take half a second to make."""
    app, deps = FastAPI(), AdminDeps.__new__(AdminDeps)
    for router in admin_routers(deps):
        app.include_router(router)
    api_app._install_error_handlers(app)
    return app, deps


@pytest.fixture
def app(
    routes_and_deps: tuple[FastAPI, AdminDeps],
    database: Database,
    redis_client: Redis,
    fake_stripe: FakeStripe,
    tmp_path: Path,
) -> FastAPI:
    app, deps = routes_and_deps
    settings = Settings.model_construct(
        data_dir=tmp_path, stripe_api_key=SecretStr(fake_stripe.api_key), stripe_base_url=fake_stripe.url
    )
    AdminDeps.__init__(deps, database, redis_client, PEPPER, settings=settings)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        yield client


@pytest.fixture
async def admin(client: httpx.AsyncClient, database: Database) -> Caller:
    return Caller(client, await token_of(database, "platform_admin"))


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
        ("POST", "/users", {"email": "x@example.com", "password": PASSWORD, "role": "finance"}),
    ):
        assert (await finance(method, path, body)).status_code == 403, path
    assert await audit_actions(database) == before


CHANGES: list[tuple[str, str, object, int, str]] = [
    ("POST", "/tenants", {"name": "Beta"}, 201, "tenant.create"),
    ("PATCH", "/tenants/{tenant_id}", {"name": "Acme 2"}, 200, "tenant.rename"),
    ("POST", "/tenants/{tenant_id}/tier", {"tier": "batch", "reason": "x"}, 202, "tenant.set_tier.request"),
    ("POST", "/tenants/{tenant_id}/share", {"share_percent": 250, "reason": "x"}, 200, "tenant.set_share"),
    ("POST", "/tenants/{tenant_id}/suspend", {"reason": "x"}, 200, "tenant.suspend"),
    ("POST", "/tenants/{tenant_id}/resume", None, 200, "tenant.resume"),
    ("POST", "/tenants/{tenant_id}/throttle", {"reason": "x"}, 200, "tenant.throttle"),
    ("POST", "/tenants/{tenant_id}/projects", {"name": "two"}, 201, "project.create"),
    ("POST", "/tenants/{tenant_id}/projects/{project_id}/archive", {"reason": "x"}, 200, "project.archive"),
    ("POST", "/tenants/{tenant_id}/projects/{project_id}/restore", {}, 200, "project.restore"),
    (
        "POST",
        "/tenants/{tenant_id}/keys",
        {"project_id": "{project_id}", "name": "k", "allowed_models": ["m"]},
        201,
        "key.create",
    ),
    (
        "PUT",
        "/keys/{key_id}/client-settings",
        {"quota_status": 429, "cors_origins": ["https://app.example.com"]},
        200,
        "key.client_settings",
    ),
    ("POST", "/keys/{key_id}/revoke", {"reason": "x"}, 200, "key.revoke"),
    ("PUT", "/tenants/{tenant_id}/limits/{scope_kind}/{scope_id}", {"concurrency": 5}, 200, "limits.set"),
    (
        "POST",
        "/users",
        {"email": "eve@example.com", "password": PASSWORD, "role": "finance"},
        201,
        "user.create",
    ),
    ("POST", "/users/{user_id}/role", {"role": "tenant_owner"}, 200, "user.set_role"),
    ("POST", "/users/{user_id}/password", {"password": PASSWORD + "2"}, 200, "user.reset_password"),
    ("POST", "/tokens", {"name": "more"}, 201, "token.create"),
    ("POST", "/tokens/{token_id}/revoke", None, 200, "token.revoke"),
    ("POST", "/models", {"name": "deepseek-v3.2"}, 201, "model.add"),
    ("PUT", "/models/alias", {"name": "deepseek", "target": "deepseek-v3.2"}, 200, "model.alias"),
    (
        "PUT",
        "/models/targets",
        {"model": "deepseek-v3.2", "tier": "batch", "ttft_s": 90},
        200,
        "model.set_targets",
    ),
    (
        "POST",
        "/models/targets/reset",
        {"model": "deepseek-v3.2", "tier": "batch"},
        200,
        "model.reset_targets",
    ),
    ("POST", "/models/deprecate", {"name": "deepseek-v3.2"}, 200, "model.deprecate"),
    ("POST", "/models/retire", {"name": "deepseek"}, 200, "model.retire"),
    ("POST", "/prices", {"model": "deepseek-v3.2", "input": "0.50", "output": "1.50"}, 201, "price.set"),
    ("POST", "/prices/{version}/withdraw", {"reason": "x"}, 202, "price.withdraw.request"),
    ("POST", "/prices/end", {"model": "deepseek-v3.2", "reason": "x"}, 202, "price.end.request"),
    ("POST", "/contracts/{contract_id}/end", {"reason": "x"}, 202, "contract.end.request"),
    (
        "POST",
        "/tenants/{postpaid_id}/contracts",
        {"discount_bps": 5, "reason": "x"},
        202,
        "contract.add.request",
    ),
    (
        "POST",
        "/tenants/{tenant_id}/adjustments",
        {"amount_usd": "5", "reason": "x"},
        201,
        "adjustment.book",
    ),
    ("POST", "/adjustments/{approval_id}/decision", {"approve": True}, 200, "adjustment.approve"),
    ("PATCH", "/money-rules", {"approval_limit_usd": "200", "reason": "x"}, 200, "money_rules.set"),
    ("PUT", "/starter-credit", {"amount_usd": "5", "reason": "x"}, 200, "starter_credit.set"),
    ("POST", "/tenants/{tenant_id}/credits", {"amount_usd": "5", "reason": "x"}, 201, "credit.grant"),
    ("PUT", "/tenants/{tenant_id}/budget", {"budget_usd": "100"}, 200, "budget.set"),
    (
        "PUT",
        "/tenants/{postpaid_id}/credit-limit",
        {"credit_limit_usd": "100", "reason": "x"},
        200,
        "credit_limit.set",
    ),
    ("POST", "/exports", {"name": "usage-daily", "destination": "usage"}, 201, "export.create"),
    ("PATCH", "/exports/{name}", {"enabled": False, "reason": "x"}, 200, "export.disable"),
    ("PUT", "/tenants/{tenant_id}/alerts", {"thresholds": [60]}, 200, "alert.set"),
    ("DELETE", "/tenants/{tenant_id}/alerts?kind=budget", None, 204, "alert.remove"),
    (
        "POST",
        "/alert-endpoints",
        {"tenant_id": "{tenant_id}", "channel": "email", "target": "a@example.com"},
        201,
        "alert_endpoint.add",
    ),
    ("DELETE", "/alert-endpoints/{endpoint_id}", None, 204, "alert_endpoint.remove"),
    ("POST", "/notices/test", {"tenant_id": "{tenant_id}"}, 202, "alert.test"),
    (
        "POST",
        "/economics/host-prices",
        {"host_kind": "gpu-h200x8-1128gb", "usd_per_hour": "32.10", "source": "contract 17"},
        201,
        "host_price.set",
    ),
    (
        "POST",
        "/economics/provider-invoices",
        {
            "provider": "digitalocean",
            "number": "17",
            "month": "2026-01",
            "total_usd": "5",
            "lines": [{"amount_usd": "5"}],
        },
        201,
        "provider_invoice.enter",
    ),
    (
        "POST",
        "/economics/provider-invoices/{invoice_id}/void",
        {"reason": "x"},
        200,
        "provider_invoice.void",
    ),
    ("POST", "/reconcile/engines/{boot_id}/accept", {"reason": "x"}, 200, "reconciliation.accept"),
    ("POST", "/sla", {"month": "2026-01", "dry_run": False}, 200, "sla.run"),
    ("POST", "/signing-keys/rotate", {"reason": "x"}, 200, "signing_key.rotate"),
    ("POST", "/signing-keys/{signing_key_id}/retire", {"reason": "x"}, 200, "signing_key.retire"),
    (
        "PUT",
        "/tenants/{tenant_id}/auto-topup",
        {"enabled": False, "threshold_usd": "1", "amount_usd": "5", "monthly_cap_usd": "10"},
        200,
        "auto_topup.set",
    ),
    (
        "POST",
        "/tenants/{tenant_id}/topups",
        {"amount_usd": "25", "return_url": "https://example.com"},
        201,
        "topup.start",
    ),
    ("PUT", "/tenants/{tenant_id}/tax-id", {"kind": "eu_vat", "value": "DE123456789"}, 204, "tax_id.set"),
    (
        "POST",
        "/tenants/{tenant_id}/refunds",
        {"payment_intent": "{payment}", "amount_usd": "1", "reason": "x"},
        201,
        "payment.refund",
    ),
    (
        "POST",
        "/payments/refunds/{refund_approval_id}/decision",
        {"approve": True},
        200,
        "payment.refund.approve",
    ),
    (
        "POST",
        "/parked-records/{request_id}/write-off",
        {"reason": "x"},
        202,
        "parked_record.write_off.request",
    ),
]
"""Method, route, body, status, and the action of the one row it leaves."""

SAME = {"postpaid_id": "tenant_id", "signing_key_id": "key_id", "refund_approval_id": "approval_id"}
"""What two routes call alike and is another thing here: its name here, and theirs."""

UNCHANGING = {
    ("POST", "/key-search"),
    ("POST", "/corrections/dry-run"),
    ("POST", "/payments/comparisons/{month}"),  # compares, as a job does every hour, and keeps what it found
    ("POST", "/reconcile/run"),  # the same, every minute
}
TESTED_APART = {
    (
        "POST",
        "/approvals/{approval_id}/decision",
    ),  # two rows, of the act and of the decision: test_approval_limit.py
    # These need a month with usage: billing/invoicing/test_surfaces.py counts their rows.
    ("POST", "/invoices/make"),
    ("POST", "/invoices/{ref}/void"),
    ("POST", "/invoices/{ref}/write-off"),
    ("POST", "/periods/{month}/close"),
    ("POST", "/corrections"),
    ("POST", "/corrections/{correction_id}/decision"),
    ("POST", "/corrections/{correction_id}/reversal"),
    ("POST", "/tenants/{tenant_id}/statements/{month}"),  # below
    ("POST", "/users/{user_id}/disable"),
    ("POST", "/users/{user_id}/enable"),
    ("POST", "/pools/replicas/{replica_id}/{action}"),  # needs a scheduler: tests of admin/pools.py
    ("POST", "/exports/{name}/runs"),  # writes files: tests of billing/exports
}


def test_the_list_of_changes_is_complete(app: FastAPI) -> None:
    tested = {(method, _as_served(path)) for method, path, *_ in CHANGES}
    served = {
        (method.upper(), path.removeprefix("/admin/v1"))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method != "get"
    }
    assert served - UNCHANGING - TESTED_APART == tested


def _as_served(path: str) -> str:
    """A path of CHANGES as the document has it."""
    for here, there in SAME.items():
        path = path.replace(f"{{{here}}}", f"{{{there}}}")
    return path.partition("?")[0]


async def test_a_new_organisation_has_the_default_limits(admin: Caller, database: Database) -> None:
    made = (await admin("POST", "/tenants", {"name": "Acme"})).json()
    [scope] = await admin_limits.list_limits(database, ADMIN, tenant_id=UUID(made["id"]))
    assert scope.limits == default_limits(Settings.model_construct())
    assert scope.limits.requests_per_min


async def test_every_change_leaves_exactly_one_row(
    admin: Caller, database: Database, redis_client: Redis, request: pytest.FixtureRequest
) -> None:
    acme = await make_organisation(database)
    postpaid = await admin_tenants.create_tenant(database, ADMIN, name="Later", billing_mode="postpaid")
    person = await admin_users.create_user(
        database,
        ADMIN,
        email="bob@example.com",
        password=PASSWORD,
        role="tenant_viewer",
        tenant_id=acme.tenant_id,
    )
    ids = {
        "tenant_id": acme.tenant_id,
        "postpaid_id": postpaid.id,
        "project_id": acme.project_id,
        "key_id": acme.key_id,
        "user_id": person.id,
        "token_id": (await admin("POST", "/tokens", {"name": "spare"})).json()["id"],
        "scope_kind": "tenant",
        "scope_id": acme.tenant_id,
        "name": "usage-daily",
        **await _money_to_decide(database, acme.tenant_id),
        **await _bought(database, request.getfixturevalue("fake_stripe"), acme.tenant_id),
        **await _to_decide(admin, database),
    }
    hints = redis_client.pubsub()
    await hints.subscribe(CHANNEL)
    assert await hints.get_message(timeout=60)
    for method, pattern, body, status, action in CHANGES:
        before = await audit_actions(database)
        filled = _filled(body, ids)
        response = await admin(method, pattern.format(**ids), filled)
        assert response.status_code == status, f"{method} {pattern}: {response.text}"
        assert await audit_actions(database) == [*before, action], f"{method} {pattern}"
        assert await hints.get_message(timeout=60), f"{method} {pattern} was not announced"
    await hints.aclose()
    await _the_last_owner_stays(admin, database, str(person.id))


def _filled(body: object, ids: dict[str, object]) -> object:
    """`body` with the ids that it names."""
    text = json.dumps(body)
    for name in ("project_id", "tenant_id", "payment"):
        text = text.replace(f"{{{name}}}", str(ids[name]))
    filled: object = json.loads(text)
    return filled


async def _bought(database: Database, fake: FakeStripe, tenant_id: UUID) -> dict[str, object]:
    """Bought credit, and a refund of it that waits for a second person."""
    async with gateway_to(fake) as gateway:
        intent = await buy(database, gateway, fake, tenant_id)
        other = await buy(database, gateway, fake, tenant_id)
    await set_limit(database, "1")
    asked = await admin_payments.refund(
        database,
        SECOND,
        tenant_id=tenant_id,
        payment_intent=other,
        amount_usd="9",
        reason="x",
    )
    await set_limit(database, "100")
    return {"payment": intent, "refund_approval_id": asked.id}


async def _to_decide(admin: Caller, database: Database) -> dict[str, object]:
    """A provider's invoice, an endpoint, a signing key, an engine that does not come out, and a parked record."""
    entered = await admin(
        "POST",
        "/economics/provider-invoices",
        {
            "provider": "p",
            "number": "1",
            "month": "2026-01",
            "total_usd": "5",
            "lines": [{"amount_usd": "5"}],
        },
    )
    endpoint = await admin("POST", "/alert-endpoints", {"channel": "email", "target": "ops@example.com"})
    keys = await admin("POST", "/signing-keys/rotate", {"reason": "first"})
    async with database.system() as connection:
        for statement in _ODD_ENGINE:
            await connection.execute(text(statement))
        await connection.execute(_PARKED, {"id": NOBODY})
    return {
        "invoice_id": entered.json()["id"],
        "endpoint_id": endpoint.json()["endpoint"]["id"],
        "signing_key_id": keys.json()["keys"][0]["key_id"],
        "boot_id": "boot-1",
        "request_id": NOBODY,
    }


_ODD_ENGINE = (
    "INSERT INTO engine_counters (boot_id, replica_id, model, engine, simulated, last_seen, scraped_at, prompt_tokens, "
    "generation_tokens, cached_prompt_tokens, warmup_prompt_tokens, warmup_generation_tokens) "
    "VALUES ('boot-1', 'r', 'm', 'vllm', true, now(), now(), 5, 0, 0, 0, 0)",
    "INSERT INTO reconciliations (boot_id, counter, from_at, replica_id, model, simulated, requests, engine, billed, "
    "engine_failed, zero_output, cancelled_tail, retried, choices, warmup, probe, unobserved, unexplained) "
    "VALUES ('boot-1', 'prompt', now(), 'r', 'm', true, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5)",
)
_PARKED = text("INSERT INTO settle_errors (request_id, reason, record) VALUES (:id, 'x', '{}')")


async def test_a_statement_issued_again_leaves_one_row(admin: Caller, database: Database) -> None:
    acme = await make_organisation(database)
    before = await audit_actions(database)
    response = await admin("POST", f"/tenants/{acme.tenant_id}/statements/2026-01")
    assert response.status_code == 200, response.text
    assert await audit_actions(database) == [*before, "statement.issue"]


async def _money_to_decide(database: Database, tenant_id: UUID) -> dict[str, object]:
    """A scheduled price, a contract, and an adjustment that waits for a second person."""
    later = datetime.now(UTC) + timedelta(days=9)
    price = await admin_prices.set_price(
        database, ADMIN, model="later", input="1", output="1", effective_from=later
    )
    contract = await admin_contracts.add_contract(database, ADMIN, tenant_id=tenant_id, reason="deal")
    waiting = await admin_adjustments.request_adjustment(
        database, SECOND, tenant_id=tenant_id, amount_usd="500", reason="x"
    )
    return {"version": price.id, "contract_id": contract.id, "approval_id": waiting.id}


async def _the_last_owner_stays(admin: Caller, database: Database, user_id: str) -> None:
    """Disabling the only owner is refused; after another one exists it goes, once, and comes back, once."""
    before = await audit_actions(database)
    assert (await admin("POST", f"/users/{user_id}/disable")).status_code == 409
    assert await audit_actions(database) == before
    user = (await admin("GET", f"/users/{user_id}")).json()
    await admin_users.create_user(
        database,
        ADMIN,
        email="second@example.com",
        password=PASSWORD,
        role="tenant_owner",
        tenant_id=user["tenant_id"],
    )
    before = await audit_actions(database)
    for act in ("disable", "enable"):
        assert (await admin("POST", f"/users/{user_id}/{act}")).status_code == 200
        assert (await admin("POST", f"/users/{user_id}/{act}")).status_code == 409
    assert await audit_actions(database) == [*before, "user.disable", "user.enable"]


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
    assert (await other("POST", "/tenants", {"name": "New"})).status_code == 403
    assert (await admin("POST", f"/users/{them}/disable")).status_code == 200
    assert (await other("GET", "/tenants")).status_code == 401


def test_the_document_tells_of_every_route(app: FastAPI) -> None:
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), f"{method} {path}"
            assert operation["security"] == [{"Admin token": []}], f"{method} {path}"
            assert {"401", "403"} <= operation["responses"].keys()
