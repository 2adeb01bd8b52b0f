"""Refunds above the limit, also in several parts, need a second person; nothing is booked before."""

from typing import Any
from uuid import UUID

import pytest

from admin import payments as admin_payments
from admin.actor import Actor
from billing.payments.refund_requests import RequestedRefund
from core.db import Database
from core.errors import Conflict
from core.ids import uuid7
from tests.integration.billing.payments.support import (
    books,
    buy,
    drain,
    equals_stripe,
    gateway_to,
    prepaid,
    send,
    spend,
)
from tests.support.approving import set_limit
from tests.support.stripe_sim import FakeStripe
from tests.support.tenancy import ADMIN, audit_actions

FINA = Actor(kind="user", id=str(uuid7()), label="fina@example.com", role="finance")
BOB = Actor(kind="user", id=str(uuid7()), label="bob@example.com", role="finance")


async def ask(
    database: Database, actor: Actor, tenant_id: UUID, intent: str, usd: str | None, **more: Any
) -> RequestedRefund:
    return await admin_payments.refund(
        database, actor, tenant_id=tenant_id, payment_intent=intent, amount_usd=usd, reason="unhappy", **more,
    )  # fmt: skip


async def test_a_second_person_agrees(database: Database, fake_stripe: FakeStripe) -> None:
    await set_limit(database, "10")
    tenant_id, refund_id = await prepaid(database), uuid7()
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        asked = await ask(database, FINA, tenant_id, intent, "10.01", refund_id=refund_id)
        assert (asked.status, asked.amount_usd) == ("waiting", "10.01")
        assert await ask(database, FINA, tenant_id, intent, "10.01", refund_id=refund_id) == asked
        assert await admin_payments.list_waiting_refunds(database, ADMIN) == [asked]
        assert (await books(database, tenant_id))["credit"] == -2500
        with pytest.raises(Conflict, match="another person"):
            await admin_payments.decide_refund(database, FINA, approval_id=asked.id, approve=True)
        made = await admin_payments.decide_refund(database, BOB, approval_id=asked.id, approve=True)
        assert (made.id, made.status) == (refund_id, "requested")
        with pytest.raises(Conflict):
            await admin_payments.decide_refund(database, BOB, approval_id=asked.id, approve=True)
        assert await ask(database, FINA, tenant_id, intent, "10.01", refund_id=refund_id) == made
        await send(database, gateway)
        await drain(database, gateway)
        await equals_stripe(database, gateway)
        assert (await books(database, tenant_id))["credit"] == -1499
    actions = [action for action in await audit_actions(database) if action.startswith("payment.refund")]
    assert actions == ["payment.refund.request", "payment.refund.approve"]


async def test_small_refunds_add_up(database: Database, fake_stripe: FakeStripe) -> None:
    await set_limit(database, "10")
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
        other = await buy(database, gateway, fake_stripe, tenant_id)
    assert (await ask(database, FINA, tenant_id, intent, "6")).status == "requested"
    assert (await ask(database, FINA, tenant_id, intent, "6")).status == "waiting"
    assert (
        await ask(database, BOB, tenant_id, intent, "5")
    ).status == "waiting"  # the purchase's refunds are one
    assert (
        await ask(database, FINA, tenant_id, other, "6")
    ).status == "waiting"  # so are those of one person
    assert (await ask(database, BOB, tenant_id, other, "6")).status == "requested"
    assert (await ask(database, FINA, tenant_id, other, None)).status == "waiting"


async def test_what_was_used_meanwhile_is_not_refunded(database: Database, fake_stripe: FakeStripe) -> None:
    await set_limit(database, "10")
    tenant_id = await prepaid(database)
    async with gateway_to(fake_stripe) as gateway:
        intent = await buy(database, gateway, fake_stripe, tenant_id)
    asked = await ask(database, FINA, tenant_id, intent, None)
    await spend(database, tenant_id, 1)
    with pytest.raises(Conflict, match=r"24\.99"):
        await admin_payments.decide_refund(database, BOB, approval_id=asked.id, approve=True)
    assert await admin_payments.list_waiting_refunds(database, ADMIN) == [asked]
    refused = await admin_payments.decide_refund(
        database, FINA, approval_id=asked.id, approve=False, reason="used"
    )
    assert refused.status == "rejected"
    assert await admin_payments.list_waiting_refunds(database, ADMIN) == []
    assert (await books(database, tenant_id))["credit"] == -2499
