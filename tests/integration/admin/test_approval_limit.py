"""Money that one person may move alone: nothing beyond the limit, in one act or in many, by whichever door."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from typer.testing import CliRunner

from admin import accounts as admin_accounts
from admin import adjustments as admin_adjustments
from admin import contracts as admin_contracts
from admin import credits as admin_credits
from admin import decisions, money_rules
from admin import invoices as admin_invoices
from admin import prices as admin_prices
from admin import tenants as admin_tenants
from admin import users as admin_users
from admin.actor import Actor
from admin.approval_limit import expire_all_waiting
from admin.audit import list_audit
from billing.ledger.approvals import WINDOW
from cli.commands import roles
from cli.main import app as penstock
from core.db import Database
from core.errors import Conflict, InvalidRequest, PermissionDenied, WaitsForApproval
from core.ids import uuid7
from core.settings import Settings
from tests.integration.billing.support import Customer, account, make_customer, price
from tests.support.tenancy import ADMIN, PEPPER, audit_actions

ADA = Actor(kind="user", id=str(uuid7()), label="ada@example.com", role="finance")
BOB = Actor(kind="user", id=str(uuid7()), label="bob@example.com", role="finance")
PICO = 10**12
PASSWORD = "correct horse battery"


async def person(database: Database, email: str, role: str = "finance") -> Actor:
    user = await admin_users.create_user(database, ADMIN, email=email, password=PASSWORD, role=role)
    return Actor(kind="user", id=str(user.id), label=email, role=role)  # type: ignore[arg-type]


def shell(name: str) -> Actor:
    return Actor(kind="cli", id=name, label=name, role="platform_admin")


async def grant(
    database: Database, customer: Customer, usd: str, actor: Actor = ADA, **facts: Any
) -> admin_accounts.AccountView:
    return await admin_credits.grant_credit(
        database, actor, tenant_id=customer.tenant_id, amount_usd=usd, reason="friends", **facts
    )


async def waiting(database: Database) -> list[str]:
    return [one.kind for one in await decisions.list_approvals(database, BOB)]


async def only(database: Database) -> UUID:
    [one] = await decisions.list_approvals(database, BOB)
    return one.id


async def test_finance_alone_grants_no_million(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval) as waits:
        await grant(database, customer, "1000000")
    assert int((await account(database, customer)).balance) == 0
    approval_id = await only(database)
    assert waits.value.details["approval_id"] == str(approval_id)
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, ADA, approval_id=approval_id, approve=True)
    token = Actor(kind="token", id=ADA.id, label="ada.other@example.com", role="platform_admin")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, token, approval_id=approval_id, approve=True)
    done = await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    assert done.result is not None
    assert done.result["balance_usd"] == "1000000.00"
    assert int((await account(database, customer)).balance) == 1_000_000 * PICO
    with pytest.raises(Conflict, match="already"):
        await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    actions = set((await audit_actions(database))[-3:])
    assert actions == {"credit.grant.request", "credit.grant", "credit.grant.approve"}


async def test_a_hundred_small_grants_are_one_large_one(database: Database) -> None:
    customer, other = await make_customer(database), await make_customer(database, name="Other")
    outcomes = await asyncio.gather(
        *(grant(database, customer, "30") for _ in range(10)), return_exceptions=True
    )
    alone = [one for one in outcomes if not isinstance(one, BaseException)]
    assert (len(alone), int((await account(database, customer)).balance)) == (3, 90 * PICO)
    assert await waiting(database) == ["credit.grant"] * 7
    with pytest.raises(WaitsForApproval):  # other acts count too
        await grant(database, customer, "10.01", kind="purchased")
    adjusted = await admin_adjustments.request_adjustment(
        database, ADA, tenant_id=customer.tenant_id, amount_usd="-11", reason="r"
    )
    assert adjusted.status == "waiting"
    await grant(database, customer, "10")
    await grant(database, other, "100")  # another organisation, and another person, have a limit of their own
    await grant(database, customer, "100", BOB)


async def test_what_another_person_approved_uses_up_no_limit(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await grant(database, customer, "100")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "0.01")


async def test_the_window_rolls(database: Database, pg_url: str) -> None:
    customer = await make_customer(database)
    await grant(database, customer, "100")
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1")
    await as_owner(
        pg_url, f"UPDATE approvals SET requested_at = requested_at - interval '{WINDOW.days} days'"
    )
    await grant(database, customer, "1")


async def as_owner(pg_url: str, sql: str) -> None:
    connection = await asyncpg.connect(pg_url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


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


async def test_what_waits_too_long_expires(database: Database, pg_url: str) -> None:
    customer, grant_id = await make_customer(database), uuid7()
    for _ in range(2):
        with pytest.raises(WaitsForApproval):
            await grant(database, customer, "500", grant_id=grant_id)
        approval_id = await only(database)
        await as_owner(pg_url, "UPDATE approvals SET expires_at = expires_at - interval '14 days'")
        with pytest.raises(Conflict, match="waited too long and expired"):
            await decisions.decide(database, BOB, approval_id=approval_id, approve=True)
    assert await expire_all_waiting(database) == 1  # the second request had expired the first
    assert await expire_all_waiting(database) == 0
    assert await waiting(database) == []
    expired = await decisions.list_approvals(database, BOB, expired=True)
    assert [(one.decision, one.decided_by) for one in expired] == [("expired", "penstock.approvals")] * 2
    for approve in (True, False):
        with pytest.raises(Conflict, match="request it again"):
            await decisions.decide(database, BOB, approval_id=approval_id, approve=approve)
    assert (await audit_actions(database)).count("credit.grant.expire") == 2
    assert int((await account(database, customer)).balance) == 0
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "500", grant_id=grant_id)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert int((await account(database, customer)).balance) == 500 * PICO


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


def run(*words: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    result = CliRunner().invoke(penstock, [*words, "--json"])
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


async def test_the_same_grant_again_is_one(database: Database) -> None:
    customer, grant_id = await make_customer(database), uuid7()
    for _ in range(2):
        await grant(database, customer, "60", grant_id=grant_id)
    await grant(database, customer, "40")
    assert int((await account(database, customer)).balance) == 100 * PICO
    with pytest.raises(Conflict):
        await grant(database, customer, "1000000", grant_id=grant_id)
    large = uuid7()
    for _ in range(2):
        with pytest.raises(WaitsForApproval):
            await grant(database, customer, "500", grant_id=large)
    with pytest.raises(Conflict):
        await grant(database, customer, "600", grant_id=large)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    await grant(database, customer, "500", grant_id=large)
    assert int((await account(database, customer)).balance) == 600 * PICO
    adjustment_id = uuid7()
    for _ in range(2):
        await admin_adjustments.request_adjustment(
            database,
            BOB,
            tenant_id=customer.tenant_id,
            amount_usd="1",
            reason="r",
            adjustment_id=adjustment_id,
        )
    actions = await audit_actions(database)
    assert actions.count("credit.grant") == 3, "one row for each act, however often it was sent"
    assert actions.count("adjustment.book") == 1


async def test_a_repeated_request_is_one_request(database: Database) -> None:
    await price(database)
    customer, ids = await make_customer(database), [uuid7(), uuid7()]
    for _ in range(2):
        with pytest.raises(WaitsForApproval) as granting:
            await grant(database, customer, "500", grant_id=ids[0])
        with pytest.raises(WaitsForApproval) as pricing:
            await _price(database, customer)
        adjusted = await admin_adjustments.request_adjustment(
            database,
            ADA,
            tenant_id=customer.tenant_id,
            amount_usd="500",
            reason="r",
            adjustment_id=ids[1],
        )
    assert len(await waiting(database)) == 3
    actions = await audit_actions(database)
    for requested in ("credit.grant.request", "price.set.request", "adjustment.request"):
        assert actions.count(requested) == 1, requested
    first = {granting.value.details["approval_id"], pricing.value.details["approval_id"], str(adjusted.id)}
    assert first == {str(one.id) for one in await decisions.list_approvals(database, BOB)}
    await decisions.decide(
        database, BOB, approval_id=UUID(pricing.value.details["approval_id"]), approve=False
    )
    with pytest.raises(WaitsForApproval):
        await _price(database, customer)
    assert (await audit_actions(database)).count("price.set.request") == 2


Act = Callable[[Database, Customer], Awaitable[Any]]


async def _price(database: Database, customer: Customer) -> Any:
    return await admin_prices.set_price(database, ADA, model="river-7b", input="0", output="0")


async def _own_price(database: Database, customer: Customer) -> Any:
    return await admin_prices.set_price(
        database, ADA, model="river-7b", tenant_id=customer.tenant_id, input="0", output="0"
    )


async def _end_price(database: Database, customer: Customer) -> Any:
    return await admin_prices.end_price(database, ADA, model="river-7b", reason="r")


async def _discount(database: Database, customer: Customer) -> Any:
    return await admin_contracts.add_contract(
        database, ADA, tenant_id=customer.tenant_id, discount_bps=10_000, reason="friends"
    )


async def _credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_accounts.set_credit_limit(
        database, ADA, tenant_id=customer.tenant_id, usd="1000000", reason="r"
    )


async def _no_credit_limit(database: Database, customer: Customer) -> Any:
    return await admin_accounts.set_credit_limit(
        database, ADA, tenant_id=customer.tenant_id, usd=None, reason="r"
    )


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (_price, "price.set"),
        (_own_price, "price.set"),
        (_end_price, "price.end"),
        (_discount, "contract.add"),
        (_credit_limit, "credit_limit.set"),
        (_no_credit_limit, "credit_limit.set"),
    ],
)
async def test_terms_without_a_bound_take_two_people(database: Database, act: Act, kind: str) -> None:
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    await admin_accounts.set_credit_limit(database, ADMIN, tenant_id=customer.tenant_id, usd="10", reason="r")
    before = await _terms(database)
    with pytest.raises(WaitsForApproval):
        await act(database, customer)
    assert await waiting(database) == [kind]
    assert await _terms(database) == before
    with pytest.raises(Conflict):
        await decisions.decide(database, ADA, approval_id=await only(database), approve=True)
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert await _terms(database) != before


async def _terms(database: Database) -> list[Any]:
    async with database.system() as connection:
        found: list[Any] = []
        for sql in (
            "SELECT id, effective::text FROM price_versions ORDER BY id",
            "SELECT id, effective::text FROM contracts ORDER BY id",
            "SELECT tenant_id, credit_limit FROM billing_accounts ORDER BY 1",
        ):
            found += [tuple(row) for row in await connection.execute(text(sql))]
    return found


async def test_ending_a_contract_takes_two_people(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    contract = await admin_contracts.add_contract(
        database, ADMIN, tenant_id=customer.tenant_id, commit_monthly_usd="5000", reason="deal"
    )
    with pytest.raises(WaitsForApproval) as waits:
        await admin_contracts.end_contract(database, ADA, contract_id=contract.id, reason="friends")
    assert "of its committed spend remains due" in (waits.value.details or {})["warning"]
    assert (await _terms(database))[0][1].endswith(",)")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert not (await _terms(database))[0][1].endswith(",)")


async def test_the_first_list_price_of_a_model_and_smaller_limits_need_one_person(database: Database) -> None:
    made = await admin_prices.set_price(database, ADA, model="new", input="1", output="2")
    assert made.status == "current"
    customer = await make_customer(database, mode="postpaid")
    for usd in ("1000", "1100", "50"):  # a first limit, a raise by 100, a cut
        await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=customer.tenant_id, usd=usd, reason="r"
        )
    with pytest.raises(WaitsForApproval):
        await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=customer.tenant_id, usd="50.01", reason="r"
        )
    assert await waiting(database) == ["credit_limit.set"]


async def test_a_new_postpaid_organisation_has_a_credit_limit_whose_raise_counts(database: Database) -> None:
    admin = Actor(kind="user", id=ADA.id, label=ADA.label, role="platform_admin")
    tenants = [
        await admin_tenants.create_tenant(database, admin, name="Acme", billing_mode="postpaid"),
        await admin_tenants.create_tenant(database, admin, name="Paid", billing_mode="prepaid"),
    ]
    views = [await admin_accounts.get_account(database, ADA, tenant_id=one.id) for one in tenants]
    assert [one.credit_limit_usd for one in views] == ["1000.00", None]
    assert views[0].available_usd == "1000.00"

    async def limit(usd: str | None) -> Any:
        return await admin_accounts.set_credit_limit(
            database, ADA, tenant_id=tenants[0].id, usd=usd, reason="r"
        )

    await limit("1100")
    for usd in ("1100.01", None):
        with pytest.raises(WaitsForApproval):
            await limit(usd)
    assert await waiting(database) == ["credit_limit.set"] * 2


async def test_another_tier_takes_two_people(database: Database) -> None:
    admin = Actor(kind="user", id=ADA.id, label=ADA.label, role="platform_admin")
    customer = await make_customer(database)

    async def move(tier: str) -> Any:
        return await admin_tenants.set_tier(
            database, admin, tenant_id=customer.tenant_id, tier=tier, reason="friends"
        )

    async def tier() -> str:
        return (await admin_tenants.get_tenant(database, admin, tenant_id=customer.tenant_id)).tier

    assert (await move("standard")).tier == "standard"  # the tier that it is in
    with pytest.raises(WaitsForApproval):
        await move("batch")
    assert (await waiting(database), await tier()) == (["tenant.set_tier"], "standard")
    with pytest.raises(Conflict, match="another person"):
        await decisions.decide(database, admin, approval_id=await only(database), approve=True)
    [request] = await decisions.list_approvals(database, BOB)
    assert (request.tenant_id, request.facts["previous_tier"]) == (customer.tenant_id, "standard")
    await admin_tenants.set_tier(
        database, ADMIN, tenant_id=customer.tenant_id, tier="priority", reason="meanwhile"
    )
    with pytest.raises(Conflict, match="in the tier priority now"):
        await decisions.decide(database, BOB, approval_id=request.id, approve=True)
    await decisions.decide(database, BOB, approval_id=request.id, approve=False)
    with pytest.raises(WaitsForApproval):
        await move("batch")
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert await tier() == "batch"


async def test_ends_and_withdrawals_name_their_organisation_and_terms(database: Database) -> None:
    await price(database)
    customer = await make_customer(database, mode="postpaid")
    contract = await admin_contracts.add_contract(
        database, ADMIN, tenant_id=customer.tenant_id, discount_bps=1500, reason="deal"
    )
    later = datetime.now(UTC) + timedelta(days=30)
    scheduled = await admin_prices.set_price(
        database, ADMIN, model="river-7b", tenant_id=customer.tenant_id, input="3", output="4",
        reasoning="5", effective_from=later,
    )  # fmt: skip
    with pytest.raises(WaitsForApproval):
        await admin_contracts.end_contract(database, ADA, contract_id=contract.id, reason="r")
    with pytest.raises(WaitsForApproval):
        await admin_prices.withdraw_price(database, ADA, version=scheduled.id, reason="r")
    ended, withdrawn = await decisions.list_approvals(database, BOB)
    assert {ended.tenant_id, withdrawn.tenant_id} == {customer.tenant_id}
    assert ended.facts["discount_bps"] == 1500
    assert (withdrawn.facts["model"], withdrawn.facts["reasoning"]) == ("river-7b", "5.00")
    assert datetime.fromisoformat(withdrawn.facts["effective_from"]) == later
    for one in (ended, withdrawn):
        await decisions.decide(database, BOB, approval_id=one.id, approve=True)


async def test_an_act_that_would_fail_is_refused_and_not_stored(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    with pytest.raises(Conflict, match="postpaid"):
        await grant(database, customer, "1000")
    with pytest.raises(InvalidRequest):
        await admin_contracts.add_contract(
            database, ADA, tenant_id=customer.tenant_id, discount_bps=20_000, reason="r"
        )
    assert await waiting(database) == []


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
    assert [(row.actor_kind, row.actor_label) for row in rows] == [("token", "ada@example.com")] * 4
    await asyncio.to_thread(run, "approvals", "set-rules", "--approval-limit", "7", "--reason", "r")
    [row] = await list_audit(database, ADMIN, action="money_rules.set", limit=1)
    assert (row.actor_kind, row.actor_label) == ("token", "ada@example.com")


async def test_the_database_refuses_an_approval_by_the_same_person(database: Database) -> None:
    customer = await make_customer(database)
    with pytest.raises(WaitsForApproval):
        await grant(database, customer, "1000")
    with pytest.raises(IntegrityError, match="ck_approvals_two_people"):
        async with database.system() as connection:
            await connection.execute(
                text(
                    "UPDATE approvals SET decision = 'approved', decided_by = 'somebody else', "
                    "decided_by_id = requested_by_id, decided_at = now()"
                )
            )


async def test_write_offs_come_under_the_limit(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    small, large = await _invoice(database, customer, 4_000), await _invoice(database, customer, 100_000)
    done = await admin_invoices.write_off_invoice(database, ADA, ref=str(small), reason="insolvent")
    assert done.status == "uncollectible"
    with pytest.raises(WaitsForApproval):
        await admin_invoices.write_off_invoice(database, ADA, ref=str(large), reason="insolvent")
    assert (await admin_invoices.show_invoice(database, BOB, ref=str(large))).invoice.status == "open"
    await decisions.decide(database, BOB, approval_id=await only(database), approve=True)
    assert (
        await admin_invoices.show_invoice(database, BOB, ref=str(large))
    ).invoice.status == "uncollectible"


async def test_a_write_off_is_for_at_most_what_was_approved(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    grown, shrunk = await _invoice(database, customer, 100_000), await _invoice(database, customer, 200_000)
    for ref in (grown, shrunk):
        with pytest.raises(WaitsForApproval):
            await admin_invoices.write_off_invoice(database, ADA, ref=str(ref), reason="insolvent")
    waits = {one.facts["invoice_id"]: one for one in await decisions.list_approvals(database, BOB)}
    assert [waits[str(one)].facts["amount_usd"] for one in (grown, shrunk)] == ["1000.00", "2000.00"]
    async with database.system() as connection:  # what is open changes while the requests wait
        for invoice_id, cents in ((grown, -5_000), (shrunk, 5_000)):
            await connection.execute(
                text("UPDATE invoices SET applied_cents = :cents WHERE id = :id"),
                {"cents": cents, "id": invoice_id},
            )
    with pytest.raises(Conflict, match=r"\$1050\.00 .* is open, and a write-off of \$1000\.00 was requested"):
        await decisions.decide(database, BOB, approval_id=waits[str(grown)].id, approve=True)
    assert (await admin_invoices.show_invoice(database, BOB, ref=str(grown))).invoice.status == "open"
    await decisions.decide(database, BOB, approval_id=waits[str(shrunk)].id, approve=True)
    async with database.read() as connection:
        booked = await connection.scalar(
            text("SELECT amount FROM ledger_transfers WHERE kind = 'write_off' AND source_id = :id"),
            {"id": shrunk},
        )
    assert booked == 1950 * PICO


async def test_the_amount_of_a_write_off_is_read_under_the_lock_of_its_invoice(database: Database) -> None:
    customer = await make_customer(database, mode="postpaid")
    invoice_id = await _invoice(database, customer, 10_000)

    async def write_off() -> Any:
        return await admin_invoices.write_off_invoice(database, ADA, ref=str(invoice_id), reason="insolvent")

    async with database.system() as raising:  # the amount exceeds the limit once this commits
        await raising.execute(
            text("UPDATE invoices SET applied_cents = -5000 WHERE id = :id"), {"id": invoice_id}
        )
        writing = asyncio.create_task(write_off())
        waits = text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        async with database.engine.connect() as looking:
            while not await looking.scalar(waits):
                await looking.rollback()
    with pytest.raises(WaitsForApproval):
        await writing
    [one] = await decisions.list_approvals(database, BOB)
    assert one.facts["amount_usd"] == "150.00"


async def _invoice(database: Database, customer: Customer, cents: int) -> UUID:
    """An open invoice with its booking."""
    invoice_id = uuid7()
    async with database.system() as connection:
        values = {
            "id": invoice_id,
            "tenant": customer.tenant_id,
            "exact": cents * PICO // 100,
            "cents": cents,
            "month": date(2026, 1 + cents // 50_000, 1),
            "number": f"PS-{cents}",
        }
        await connection.execute(
            text(
                "INSERT INTO invoices (id, tenant_id, month, kind, status, exact, total_cents, number, finalized_at) "
                "VALUES (:id, :tenant, CAST(:month AS date), 'postpaid', "
                "'open', :exact, :cents, :number, now())"
            ),
            values,
        )
        await connection.execute(
            text("SELECT penstock_book('invoice', :tenant, 'invoiced', 'receivable', :exact, :id)"), values
        )
    return invoice_id
