"""Jobs on Stripe. An advisory lock runs one at a time on the whole platform; without a Stripe key they do nothing.

The comparison with Stripe only reads. It has a lock of its own, so that webhooks, invoices and refunds do not wait for
it.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from sqlalchemy import text

from billing.payments import (
    auto_topup,
    dunning,
    events,
    meter_events,
    push_credit_notes,
    push_invoices,
    refund_requests,
    refunds,
    stripe_reconciliation,
)
from billing.payments.stripe_compared import CallBudget
from billing.payments.stripe_gateway import StripeGateway, open_gateway
from core.db import Database
from core.settings import Settings
from jobs import outbox

log = logging.getLogger(__name__)

_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext(:name))")
_CHANGES = "penstock_stripe"
_COMPARISON = "penstock_stripe_compare"
"""Names of the two locks: of the jobs that change something here or in Stripe, and of the comparison."""
_TOPICS = (
    "stripe.push_invoice",
    "stripe.push_credit_note",
    "stripe.void_invoice",
    "stripe.write_off_invoice",
    refund_requests.TOPIC,
)

MAX_SENT_PER_RUN = 20
"""Objects sent in one run, which bounds how long the other Stripe jobs wait."""

MAX_COMPARED_CALLS = 6_000
"""Calls of Stripe in one run of the comparison: some minutes. 10,000 new invoices take five runs."""

OpenGateway = Callable[[Settings], AbstractAsyncContextManager[StripeGateway]]


async def _exclusively(
    database: Database,
    settings: Settings,
    work: Callable[[StripeGateway], Awaitable[int]],
    open_: OpenGateway = open_gateway,
    *,
    lock_name: str = _CHANGES,
) -> int:
    """Run `work` and return its count; 0 when another Stripe job of `lock_name` runs, or without a key."""
    if not settings.stripe_api_key.get_secret_value():
        return 0
    async with database.system() as lock:
        if not await lock.scalar(_LOCK, {"name": lock_name}):
            return 0
        async with database.system() as connection:
            await connection.execute(
                text("UPDATE stripe_state SET used_since = clock_timestamp() WHERE used_since IS NULL")
            )
        async with open_(settings) as gateway:
            return await work(gateway)


async def apply_events(database: Database, settings: Settings) -> int:
    """Apply the events that webhooks and the event list recorded."""
    async with database.read() as connection:
        if not await events.count_due(connection):
            return 0
    return await _exclusively(database, settings, lambda gateway: events.apply_due(database, gateway))


async def find_missed(database: Database, settings: Settings) -> int:
    """Record the events of Stripe's list that no webhook delivered."""
    return await _exclusively(database, settings, lambda gateway: events.record_missed(database, gateway))


async def send(database: Database, settings: Settings) -> int:
    """Send the invoices, credit notes and refunds of the outbox."""
    async with database.read() as connection:
        waiting = await connection.execute(
            text(
                "SELECT count(*) FROM outbox WHERE done_at IS NULL AND next_at <= clock_timestamp() "
                "AND topic = ANY(CAST(:topics AS text[]))"
            ),
            {"topics": list(_TOPICS)},
        )
        if not waiting.scalar_one():
            return 0

    async def work(gateway: StripeGateway) -> int:
        return await outbox.dispatch(database, handlers(database, gateway), limit=MAX_SENT_PER_RUN)

    return await _exclusively(database, settings, work)


def handlers(database: Database, gateway: StripeGateway) -> dict[str, outbox.Handler]:
    """The handlers of the outbox topics that concern Stripe."""

    async def push_invoice(payload: dict[str, Any]) -> object:
        return await push_invoices.push_invoice(database, gateway, UUID(payload["invoice_id"]))

    async def push_credit_note(payload: dict[str, Any]) -> object:
        return await push_credit_notes.push_credit_note(database, gateway, UUID(payload["credit_note_id"]))

    async def void_invoice(payload: dict[str, Any]) -> object:
        return await push_invoices.void_invoice(database, gateway, UUID(payload["invoice_id"]))

    async def write_off_invoice(payload: dict[str, Any]) -> object:
        return await push_invoices.write_off_invoice(database, gateway, UUID(payload["invoice_id"]))

    async def send_refund(payload: dict[str, Any]) -> object:
        return await refunds.send_refund(database, gateway, UUID(payload["refund_id"]))

    works = (push_invoice, push_credit_note, void_invoice, write_off_invoice, send_refund)
    return dict(zip(_TOPICS, works, strict=True))


async def top_up(database: Database, settings: Settings) -> int:
    """Top up the accounts whose credit is below their threshold."""
    return await _exclusively(database, settings, lambda gateway: auto_topup.run(database, gateway))


async def send_meter(database: Database, settings: Settings) -> int:
    """Send the tokens of closed hours to Stripe's billing meter."""
    return await _exclusively(database, settings, lambda gateway: meter_events.run(database, gateway))


async def follow_overdue(database: Database, settings: Settings) -> int:
    """Block new requests of customers with overdue invoices, and unblock them after payment."""
    return await dunning.run(database)


async def compare(database: Database, settings: Settings) -> int:
    """Compare what changed of invoiced open months with Stripe; returns how many differ.

    A difference is looked at twice, because events are applied meanwhile. A run makes MAX_COMPARED_CALLS calls at most;
    the next one goes on.
    """

    async def work(gateway: StripeGateway) -> int:
        async with database.read() as connection:
            months = await stripe_reconciliation.months_to_compare(connection)
        budget = CallBudget(MAX_COMPARED_CALLS)
        differ = 0
        for month in months:
            for _ in range(2):
                found = await stripe_reconciliation.compare_month(
                    database, gateway, month, only_changed=True, budget=budget
                )
                if not found.problems:
                    break
            else:
                differ += 1
                log.warning("%s differs from Stripe: %s", month, "; ".join(found.problems[:3]))
            if found.waiting:
                log.info("%d objects of %s wait for the next comparison with Stripe", found.waiting, month)
        return differ

    return await _exclusively(database, settings, work, lock_name=_COMPARISON)
