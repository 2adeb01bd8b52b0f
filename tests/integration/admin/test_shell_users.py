"""Shell users without a token are one person, who takes no part in acts of two."""

import asyncio
import json
from uuid import UUID

import pytest
from typer.testing import CliRunner

from admin import contracts as admin_contracts
from admin import decisions
from admin import users as admin_users
from admin.actor import Actor
from admin.audit import list_audit
from cli.context import os_user
from cli.main import app as penstock
from core.db import Database
from core.errors import Conflict, PermissionDenied, WaitsForApproval
from tests.integration.admin.two_people import (
    BOB,
    PASSWORD,
    as_owner,
    grant,
    only,
    person,
    run,
    waiting,
)
from tests.integration.billing.support import make_customer
from tests.support.tenancy import ADMIN, PEPPER


def shell(name: str) -> Actor:
    return Actor(kind="cli", id=name, label=name, role="platform_admin")


async def test_shell_users_without_a_token_are_one_and_take_no_part_in_acts_of_two(
    database: Database,
) -> None:
    customer = await make_customer(database)
    await grant(database, customer, "60", shell("ops"))
    await grant(database, customer, "40", shell("root"))
    for name in ("ops", "another"):
        with pytest.raises(PermissionDenied, match="set PENSTOCK_ADMIN_TOKEN"):
            await grant(database, customer, "1", shell(name))
    with pytest.raises(PermissionDenied, match="set PENSTOCK_ADMIN_TOKEN"):
        await admin_contracts.add_contract(
            database, shell("ops"), tenant_id=customer.tenant_id, discount_bps=10_000, reason="friends"
        )
    assert await waiting(database) == []
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    approval_id = await only(database)
    with pytest.raises(PermissionDenied, match="set PENSTOCK_ADMIN_TOKEN"):
        await decisions.decide(database, shell("ops"), approval_id=approval_id, approve=True)
    await decisions.decide(database, shell("ops"), approval_id=approval_id, approve=False)


async def test_a_waiting_request_of_a_shell_user_can_only_be_rejected(
    database: Database, pg_url: str
) -> None:
    """Requests from before commands knew people by tokens."""
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    await as_owner(pg_url, "UPDATE approvals SET requested_by_id = 'shell', requested_by = 'ops'")
    with pytest.raises(Conflict, match="without a token"):
        await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=False)


async def test_a_shell_makes_a_token_for_the_person_who_knows_the_password(
    database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await person(database, "ada@example.com", "platform_admin")
    with pytest.raises(PermissionDenied, match="only that person"):
        await admin_users.create_admin_token(
            database, shell("ops"), pepper=PEPPER, user_id=UUID(ada.id), name="mine"
        )
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_KEY_PEPPER", PEPPER.decode())
    words = ("users", "token", "ada@example.com", "--name", "shell")
    wrong = await asyncio.to_thread(CliRunner().invoke, penstock, words, "a guess")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    made = await asyncio.to_thread(CliRunner().invoke, penstock, [*words, "--json"], PASSWORD)
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", json.loads(made.stdout)["secret"])
    for words in (
        ("tenants", "create", "Acme"),
        ("projects", "create", "acme", "web"),
        ("limits", "set", "acme", "--concurrency", "3"),
        ("models", "add", "river-7b", "--context-len", "4096"),
    ):
        await asyncio.to_thread(run, *words)
    rows = await list_audit(database, ADMIN, limit=4)
    assert {row.actor_kind for row in rows} == {"token"}
    assert [row.actor_label for row in reversed(rows)] == [
        f"ada@example.com (penstock {command})"
        for command in ("tenants create", "projects create", "limits set", "models add")
    ]
    await asyncio.to_thread(run, "approvals", "set-rules", "--approval-limit", "7", "--reason", "r")
    [row] = await list_audit(database, ADMIN, action="money_rules.set", limit=1)
    assert (row.actor_kind, row.actor_label) == ("token", "ada@example.com (penstock approvals set-rules)")
    monkeypatch.delenv("PENSTOCK_ADMIN_TOKEN")
    await asyncio.to_thread(run, "tenants", "create", "Globex")
    [row] = await list_audit(database, ADMIN, action="tenant.create", limit=1)
    assert (row.actor_kind, row.actor_id) == ("cli", os_user())
    assert row.actor_label == f"{os_user()} (penstock tenants create)"
