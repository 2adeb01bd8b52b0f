"""Every change over the admin REST leaves exactly one audit row."""

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from fastapi import FastAPI
from redis.asyncio import Redis
from sqlalchemy import text

from admin import adjustments as admin_adjustments
from admin import contracts as admin_contracts
from admin import payments as admin_payments
from admin import prices as admin_prices
from admin import sessions as admin_sessions
from admin import tenants as admin_tenants
from admin import users as admin_users
from admin.actor import actor_of
from core.db import Database
from tenants.admin_tokens import NOT_KNOWN
from tenants.changes import CHANNEL
from tests.integration.admin.people import signed_in
from tests.integration.admin.rest import NOBODY, PASSWORD, Caller
from tests.integration.billing.payments.support import buy, gateway_to
from tests.support.approving import SECOND, set_limit
from tests.support.provider_hosts import add_host
from tests.support.stripe_sim import FakeStripe
from tests.support.tenancy import ADMIN, audit_actions, make_organisation
from workers import host_credentials
from workers.providers.store import DatabaseIntents

PROVIDER = {"issuer": "https://login.example.com", "client_id": "penstock", "client_secret": "secret"}
HOST_CONTRACT = {
    "kind": "gpu-h100x8-640gb",
    "count": 1,
    "usd_per_hour": "30",
    "source": "contract 17",
    "reason": "x",
}
CHANGES: list[tuple[str, str, object, int, str]] = [
    ("POST", "/tenants", {"name": "Beta"}, 201, "tenant.create"),
    ("PATCH", "/tenants/{tenant_id}", {"name": "Acme 2"}, 200, "tenant.rename"),
    ("POST", "/tenants/{tenant_id}/tier", {"tier": "batch", "reason": "x"}, 202, "tenant.set_tier.request"),
    (
        "POST",
        "/tenants/{tenant_id}/highest-tier",
        {"highest_tier": "priority", "reason": "x"},
        202,
        "tenant.set_highest_tier.request",
    ),
    ("POST", "/tenants/{tenant_id}/share", {"share_percent": 250, "reason": "x"}, 200, "tenant.set_share"),
    ("POST", "/tenants/{tenant_id}/suspend", {"reason": "x"}, 200, "tenant.suspend"),
    ("POST", "/tenants/{tenant_id}/resume", None, 200, "tenant.resume"),
    ("POST", "/tenants/{tenant_id}/throttle", {"reason": "x"}, 200, "tenant.throttle"),
    ("POST", "/tenants/{tenant_id}/projects", {"name": "two"}, 201, "project.create"),
    ("POST", "/tenants/{tenant_id}/projects/{project_id}/archive", {"reason": "x"}, 200, "project.archive"),
    ("POST", "/tenants/{tenant_id}/projects/{project_id}/restore", {}, 200, "project.restore"),
    (
        "PUT",
        "/tenants/{tenant_id}/projects/{project_id}/retention",
        {"responses_kept_days": 7, "reason": "x"},
        200,
        "project.set_retention",
    ),
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
    ("POST", "/sessions/{session_id}/revoke", None, 204, "session.revoke"),
    ("DELETE", "/users/{user_id}/sessions", None, 204, "session.end_all"),
    ("PUT", "/sign-in", {"rule": "password"}, 200, "sign_in.set_rule"),
    ("PUT", "/maintenance", {"notice": "Upgrade."}, 200, "maintenance.begin"),
    ("POST", "/maintenance/end", {"reason": "done"}, 200, "maintenance.end"),
    ("PUT", "/tenants/{tenant_id}/sign-in", {"rule": "second_factor"}, 200, "sign_in.set_rule"),
    ("PUT", "/identity-provider", {**PROVIDER, "mail_domains": ["a.example"]}, 200, "sign_in.set_provider"),
    ("DELETE", "/identity-provider", None, 204, "sign_in.remove_provider"),
    (
        "PUT",
        "/tenants/{tenant_id}/identity-provider",
        {**PROVIDER, "mail_domains": []},
        200,
        "sign_in.set_provider",
    ),
    ("DELETE", "/tenants/{tenant_id}/identity-provider", None, 204, "sign_in.remove_provider"),
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
    (
        "PUT",
        "/models/scaling",
        {"model": "deepseek-v3.2", "min_awake": 1, "budget_usd_per_hour": "128.00"},
        200,
        "model.set_scaling",
    ),
    (
        "PUT",
        "/models/scaling/holds",
        {"model": "deepseek-v3.2", "awake": 1, "seconds": 60, "reason": "x"},
        200,
        "model.hold_replicas",
    ),
    (
        "POST",
        "/models/scaling/holds/release",
        {"model": "deepseek-v3.2", "reason": "x"},
        200,
        "model.release_replicas",
    ),
    (
        "PUT",
        "/models/wake-deadlines",
        {"model": "deepseek-v3.2", "wake_deadline_s": 300},
        200,
        "model.set_wake_deadline",
    ),
    ("PUT", "/pools/acting", {"acting": "dry-run", "reason": "x"}, 200, "pools.set_acting"),
    ("POST", "/pools/contracts", HOST_CONTRACT, 201, "host_contract.add"),
    ("POST", "/pools/contracts/{host_contract_id}/end", {"reason": "x"}, 200, "host_contract.end"),
    ("POST", "/hosts/invitations", {"host": "b300-1", "reason": "x"}, 201, "hosts.invite"),
    ("POST", "/hosts/{joined_host}/rotate", {"reason": "x"}, 202, "hosts.rotate"),
    ("POST", "/hosts/{host}/revoke", {"reason": "x"}, 200, "hosts.revoke"),
    (
        "POST",
        "/hosts/{billed_host}/reclaim",
        {"at": "{soon}", "reason": "x"},
        200,
        "hosts.note_reclaim",
    ),
    ("POST", "/hosts/{billed_host}/reclaim/cancel", {"reason": "x"}, 200, "hosts.note_reclaim"),
    (
        "PUT",
        "/hosts/desired",
        {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x8-640gb", "count": 1, "reason": "x"},
        200,
        "hosts.set_desired",
    ),
    (
        "PUT",
        "/hosts/desired/image",
        {
            "provider": "digitalocean",
            "region": "nyc2",
            "kind": "gpu-h100x8-640gb",
            "image": "1",
            "reason": "x",
        },
        200,
        "hosts.set_image",
    ),
    (
        "POST",
        "/hosts/desired/release",
        {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x8-640gb", "reason": "x"},
        200,
        "hosts.release_desired",
    ),
    (
        "POST",
        "/hosts/adopt",
        {"provider": "digitalocean", "fleet": "production", "account": "a1", "reason": "x"},
        200,
        "hosts.adopt",
    ),
    ("POST", "/models/scaling/reset", {"model": "deepseek-v3.2"}, 200, "model.reset_scaling"),
    (
        "POST",
        "/models/rollouts",
        {
            "model": "deepseek-v3.2",
            "engine_version": "0.33.0",
            "args": {"max-num-seqs": 8},
            "strategy": {"canary_percent": 10},
            "reason": "x",
        },
        201,
        "model.rollout_start",
    ),
    (
        "POST",
        "/models/rollouts/promote",
        {"model": "deepseek-v3.2", "reason": "x"},
        200,
        "model.rollout_promote",
    ),
    ("POST", "/models/rollouts/abort", {"model": "deepseek-v3.2", "reason": "x"}, 200, "model.rollout_abort"),
    ("POST", "/models", {"name": "llama-3.3-70b"}, 201, "model.add"),
    (
        "POST",
        "/models/deprecate",
        {"name": "deepseek-v3.2", "retires_at": "2999-01-01", "replacement": "llama-3.3-70b"},
        200,
        "model.deprecate",
    ),
    ("POST", "/prices", {"model": "llama-3.3-70b", "input": "5.00", "output": "15.00"}, 201, "price.set"),
    (
        "POST",
        "/models/replace",
        {"name": "deepseek-v3.2", "replacement": "llama-3.3-70b", "accept_loss": True},
        200,
        "model.replace",
    ),
    ("POST", "/models/retire", {"name": "deepseek"}, 200, "model.retire"),
    ("POST", "/prices", {"model": "deepseek-v3.2", "input": "5.00", "output": "15.00"}, 201, "price.set"),
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

SAME = {
    "joined_host": "host",
    "billed_host": "host",
    "host_contract_id": "contract_id",
    "postpaid_id": "tenant_id",
    "signing_key_id": "key_id",
    "refund_approval_id": "approval_id",
}
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
    ("POST", "/users/{user_id}/second-factor/remove"),  # of somebody who has one: test_second_factor.py
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
    ("POST", "/models/added"),  # asks an engine's parser: test_added_models.py
    ("POST", "/models/removed"),
    ("POST", "/adapters/{adapter_id}/delete"),  # test_adapters.py
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


async def _joined(database: Database) -> str:
    """A host with a secret of its own."""
    async with database.system() as connection:
        await host_credentials.invite(connection, "b300-2", b"token", timedelta(hours=1))
        assert await host_credentials.join(connection, "b300-2", b"token", b"secret") == ""
    return "b300-2"


def _as_served(path: str) -> str:
    """A path of CHANGES as the document has it."""
    for here, there in SAME.items():
        path = path.replace(f"{{{here}}}", f"{{{there}}}")
    return path.partition("?")[0]


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
        "session_id": await _session_of_the_caller(database),
        "scope_kind": "tenant",
        "scope_id": acme.tenant_id,
        "name": "usage-daily",
        "host": "b300-1",
        "joined_host": await _joined(database),
        "host_contract_id": (await admin("POST", "/pools/contracts", HOST_CONTRACT)).json()["contract_id"],
        "billed_host": (await add_host(database, "fleet-1", datetime.now(UTC))).name,
        "soon": (datetime.now(UTC) + timedelta(hours=2)).isoformat(),
        **await _money_to_decide(database, acme.tenant_id),
        **await _bought(database, request.getfixturevalue("fake_stripe"), acme.tenant_id),
        **await _to_decide(admin, database),
    }
    await DatabaseIntents(database).notice("digitalocean", "another account")
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


async def _session_of_the_caller(database: Database) -> UUID:
    """A session of the console of the person who calls."""
    [admin] = [
        each for each in await admin_users.list_users(database, ADMIN) if each.role == "platform_admin"
    ]
    opened = await admin_sessions.open_console_session(
        database,
        await signed_in(database, actor_of("user", admin)),
        token_hash=b"hash",
        opened=NOT_KNOWN,
        now=datetime.now(UTC),
    )
    return opened.id


def _filled(body: object, ids: dict[str, object]) -> object:
    """`body` with the ids that it names."""
    text = json.dumps(body)
    for name in ("project_id", "tenant_id", "payment", "soon"):
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
