"""The jobs on Stripe as the jobs role runs them, and the roles that may start them through admin/."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from admin import payments as admin_payments
from billing.payments.stripe_gateway import open_gateway
from core.db import Database
from core.errors import Conflict, PermissionDenied, Unavailable
from core.settings import Settings
from jobs import payments
from tests.integration.billing.payments.support import books, one, prepaid
from tests.support.stripe_sim import FakeStripe, fake_stripe
from tests.support.tenancy import ADMIN, audit_actions, member

__all__ = ["fake_stripe"]
URL = "http://127.0.0.1:8001/billing"
JOBS = (
    payments.find_missed,
    payments.apply_events,
    payments.send,
    payments.top_up,
    payments.send_meter,
    payments.follow_overdue,
    payments.compare,
)


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings for the Stripe simulator."""
    fake: FakeStripe = request.getfixturevalue("fake_stripe")
    return Settings.model_construct(
        stripe_api_key=SecretStr(fake.api_key), stripe_base_url=fake.url, data_dir=tmp_path
    )


async def test_an_owner_buys_the_jobs_book_and_the_platform_refunds(
    database: Database, settings: Settings, request: pytest.FixtureRequest
) -> None:
    fake: FakeStripe = request.getfixturevalue("fake_stripe")
    tenant_id, other = await prepaid(database), await prepaid(database, "Other")
    owner = member(tenant_id)
    async with open_gateway(settings) as gateway:
        for actor in (
            member(tenant_id, "tenant_developer"),
            member(tenant_id, "tenant_viewer"),
            member(other),
        ):
            with pytest.raises(PermissionDenied):
                await admin_payments.start_topup(
                    database, actor, gateway, tenant_id=tenant_id, amount_usd="25", return_url=URL
                )
        started = await admin_payments.start_topup(
            database, owner, gateway, tenant_id=tenant_id, amount_usd="25", return_url=URL
        )
    fake.pay(started.url.rsplit("/", 1)[1])
    for _ in range(2):
        for job in JOBS:
            await job(database, settings)
    assert (await books(database))["credit"] == -2500
    (bought,) = await admin_payments.list_payments(database, owner)
    assert bought.amount_usd == "25.00"
    assert await admin_payments.list_payments(database, member(other)) == []
    with pytest.raises(PermissionDenied):
        await admin_payments.refund(
            database,
            owner,
            tenant_id=tenant_id,
            payment_intent=bought.payment_intent,
            amount_usd="1",
            reason="r",
        )
    await admin_payments.refund(
        database, ADMIN, tenant_id=tenant_id, payment_intent=bought.payment_intent, amount_usd="5", reason="r",
    )  # fmt: skip
    assert await payments.send(database, settings) == 1
    assert await payments.send(database, settings) == 0
    (refund,) = await admin_payments.list_refunds(database, ADMIN)
    assert (refund.status, refund.amount_usd) == ("succeeded", "5.00")
    assert {"topup.start", "payment.refund"} <= set(await audit_actions(database))
    (payer,) = await admin_payments.list_customers(database, owner)
    assert (payer.card or "").startswith("visa 4242 (")
    assert await admin_payments.list_events(database, ADMIN, only_open=True) == []
    with pytest.raises(PermissionDenied):
        await admin_payments.list_events(database, owner)


async def test_without_a_key_nothing_runs_and_a_second_runner_waits(
    database: Database, settings: Settings
) -> None:
    off = settings.model_copy(update={"stripe_api_key": SecretStr("")})
    for job in JOBS:
        assert await job(database, off) == 0
    assert (await one(database, "SELECT used_since FROM stripe_state")).used_since is None
    with pytest.raises(Unavailable):
        async with open_gateway(off):
            pass
    async with database.system() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('penstock_stripe'))"))
        assert await payments.find_missed(database, settings) == 0
        assert (await one(database, "SELECT used_since FROM stripe_state")).used_since is None
    await payments.find_missed(database, settings)
    assert (await one(database, "SELECT used_since FROM stripe_state")).used_since is not None


async def test_a_rule_is_set_by_the_owner_and_needs_a_card(database: Database) -> None:
    tenant_id = await prepaid(database)
    with pytest.raises(Conflict):
        await admin_payments.set_auto_topup(
            database, member(tenant_id), tenant_id=tenant_id, enabled=True, threshold_usd="1", amount_usd="5",
            monthly_cap_usd="10",
        )  # fmt: skip
    rule = await admin_payments.set_auto_topup(
        database, member(tenant_id), tenant_id=tenant_id, enabled=False, threshold_usd="1", amount_usd="5",
        monthly_cap_usd="10",
    )  # fmt: skip
    assert rule == await admin_payments.get_auto_topup(database, member(tenant_id), tenant_id=tenant_id)
