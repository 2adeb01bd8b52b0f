"""The starter credit: set by two people, given once to each new prepaid organisation, visible in the ledger."""

from uuid import UUID

import pytest
from sqlalchemy import text

from admin import credits as admin_credits
from admin import decisions
from admin import tenants as admin_tenants
from admin.actor import Actor
from admin.starter_credit import get_starter_credit, set_starter_credit
from billing.ledger import starter_credit
from billing.ledger.starter_credit import StarterCredit
from core.db import Database
from core.errors import InvalidRequest, PermissionDenied, WaitsForApproval
from tests.support.approving import SECOND, token_of
from tests.support.tenancy import ADMIN, PEPPER, make_organisation, member

FIRST = Actor(kind="user", id=str(UUID(int=1)), label="first@example.com", role="platform_admin")


async def test_a_new_prepaid_organisation_gets_it_once_as_a_promotional_lot(database: Database) -> None:
    before = await make_organisation(database, "Before")
    await set_starter_credit(database, ADMIN, amount_usd="5", expires_days=30, reason="launch")
    after = await admin_tenants.create_tenant(database, ADMIN, name="After")
    (lot,) = await admin_credits.list_lots(database, ADMIN, tenant_id=after.id)
    assert (lot.kind, lot.amount_usd, lot.reason) == ("promotional", "5.00", "starter credit")
    assert lot.expires_at is not None
    async with database.system() as connection:
        assert await starter_credit.grant(connection, after.id, "again") is None
        booked = await connection.execute(
            text("SELECT kind, amount FROM ledger_transfers WHERE tenant_id = :id"), {"id": after.id}
        )
        assert [(row.kind, int(row.amount)) for row in booked] == [("grant", 5 * 10**12)]
    assert await admin_credits.list_lots(database, ADMIN, tenant_id=before.tenant_id) == []


async def test_without_the_setting_and_for_postpaid_ones_there_is_none(database: Database) -> None:
    assert await get_starter_credit(database, ADMIN) == StarterCredit("0.00", None)
    plain = await admin_tenants.create_tenant(database, ADMIN, name="Plain")
    await set_starter_credit(database, ADMIN, amount_usd="5", expires_days=None, reason="launch")
    owing = await admin_tenants.create_tenant(database, ADMIN, name="Owing", billing_mode="postpaid")
    for tenant in (plain, owing):
        assert await admin_credits.list_lots(database, ADMIN, tenant_id=tenant.id) == []


async def test_on_a_platform_with_two_people_another_person_approves_the_amount(database: Database) -> None:
    for name in ("ada", "bob"):
        await token_of(database, PEPPER, f"{name}@example.com")
    with pytest.raises(WaitsForApproval) as waits:
        await set_starter_credit(database, FIRST, amount_usd="5", expires_days=None, reason="launch")
    assert (await get_starter_credit(database, ADMIN)).amount_usd == "0.00"
    await decisions.decide(
        database, SECOND, approval_id=UUID(waits.value.details["approval_id"]), approve=True, reason="fine"
    )
    assert (await get_starter_credit(database, ADMIN)).amount_usd == "5.00"
    off = await set_starter_credit(database, FIRST, amount_usd="0", expires_days=None, reason="enough")
    assert off.amount_usd == "0.00"


async def test_members_may_not_set_it_and_wrong_values_are_refused(database: Database) -> None:
    acme = await make_organisation(database)
    with pytest.raises(PermissionDenied):
        await set_starter_credit(
            database, member(acme.tenant_id), amount_usd="5", expires_days=None, reason="please"
        )
    for amount, days in (("-1", None), ("x", None), ("5", 0), ("5", 100_000)):
        with pytest.raises(InvalidRequest):
            await set_starter_credit(database, ADMIN, amount_usd=amount, expires_days=days, reason="x")
