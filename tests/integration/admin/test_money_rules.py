"""The rules about money are the database's, and take two people to change."""

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from typer.testing import CliRunner

from admin import decisions, money_rules
from admin import users as admin_users
from admin.audit import list_audit
from cli.commands import roles
from cli.main import app as penstock
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied, WaitsForApproval
from core.settings import Settings
from tests.integration.admin.two_people import (
    BOB,
    grant,
    person,
    run,
)
from tests.integration.billing.support import make_customer
from tests.support.tenancy import ADMIN


async def test_the_limit_is_the_databases_and_takes_two_people_to_change(database: Database) -> None:
    ada, bob = (
        await person(database, "ada@example.com", "platform_admin"),
        await person(database, "b@example.com"),
    )
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await money_rules.set_rules(database, ada, approval_limit_usd="1000000", reason="more")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "101", ada)
    [change, _] = await decisions.list_approvals(database, ada)
    assert change.kind == "money_rules.set"
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, ada, approval_id=change.id, approve=True)
    with pytest.raises(PermissionDenied):
        await money_rules.set_rules(database, bob, approval_limit_usd="5", reason="r")
    decided = await decisions.decide(database, bob, approval_id=change.id, approve=True)
    assert decided.result is not None
    assert decided.result["approval_limit_usd"] == "1000000.00"
    await grant(database, customer, "1000000", ada)
    rows = await list_audit(database, ADMIN, action="money_rules.set")
    [row] = [row for row in rows if row.action == "money_rules.set"]
    assert row.before is not None
    assert row.after == row.before | {"approval_limit_usd": "1000000.00"}


async def test_the_only_person_of_a_platform_sets_the_limit(database: Database) -> None:
    ada = await person(database, "ada@example.com", "platform_admin")
    assert (
        await money_rules.set_rules(database, ada, approval_limit_usd="7", reason="r")
    ).approval_limit_usd == "7.00"
    gone = await person(database, "gone@example.com")
    await admin_users.disable_user(database, ada, user_id=UUID(gone.id))
    with pytest.raises(WaitsForApproval):  # a person who was disabled counts
        await money_rules.set_rules(database, ada, approval_limit_usd="8", reason="r")


def test_a_commands_environment_sets_no_limit(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_APPROVAL_LIMIT_USD", "50")
    asyncio.run(roles._migrate(pg_url, Settings()))
    monkeypatch.setenv("PENSTOCK_APPROVAL_LIMIT_USD", "1000000")
    run("tenants", "create", "Acme")
    assert run("approvals", "rules")["approval_limit_usd"] == "50.00"
    for words in (("credits", "grant"), ("adjustments", "request")):
        refused = CliRunner().invoke(penstock, [*words, "acme", "51", "--reason", "r"])
        assert (refused.exit_code, "takes two people" in refused.stderr) == (2, True)
    warnings = asyncio.run(roles._migrate(pg_url, Settings()))
    assert "this platform's is 50.00" in str(warnings)
    assert run("approvals", "rules")["approval_limit_usd"] == "50.00"


def test_a_commands_environment_sets_no_credit_limit(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PENSTOCK_DEFAULT_CREDIT_LIMIT_USD", "25.5")
    asyncio.run(roles._migrate(pg_url, Settings()))
    monkeypatch.setenv("PENSTOCK_DEFAULT_CREDIT_LIMIT_USD", "1000000")
    tenant = run("tenants", "create", "Acme", "--billing", "postpaid")
    assert run("credits", "show", "acme")["credit_limit_usd"] == "25.50"
    changed = run("approvals", "set-rules", "--default-credit-limit", "30", "--reason", "r")
    assert changed["default_credit_limit_usd"] == "30.00"
    run("tenants", "create", "Globex", "--billing", "postpaid")
    assert run("credits", "show", "globex")["credit_limit_usd"] == "30.00"
    assert run("credits", "show", tenant["id"])["credit_limit_usd"] == "25.50"
    [warning] = asyncio.run(roles._migrate(pg_url, Settings()))
    assert "PENSTOCK_DEFAULT_CREDIT_LIMIT_USD is 1000000, but this platform's is 30.00" in warning


async def test_a_larger_default_credit_limit_takes_two_people(database: Database) -> None:
    ada = await person(database, "ada@example.com", "platform_admin")
    await person(database, "b@example.com")
    with pytest.raises(WaitsForApproval):
        await money_rules.set_rules(database, ada, default_credit_limit_usd="1000000", reason="r")
    assert (await money_rules.get_rules(database)).default_credit_limit_usd == "1000.00"


async def test_people_say_how_long_an_act_may_wait(database: Database) -> None:
    ada = await person(database, "ada@example.com", "platform_admin")
    await money_rules.set_rules(database, ada, approval_days=3, reason="r")
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "500", ada)
    [one] = await decisions.list_approvals(database, BOB)
    assert one.expires_at is not None
    waits = datetime.fromisoformat(one.expires_at) - datetime.fromisoformat(one.requested_at)
    assert timedelta(days=2, hours=23) < waits < timedelta(days=3, hours=1)
    with pytest.raises(InvalidRequest, match="1 to 366"):
        await money_rules.set_rules(database, ada, approval_days=0, reason="r")
