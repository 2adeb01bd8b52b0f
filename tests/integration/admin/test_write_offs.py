"""Write-offs above the limit, for at most what another person approved."""

import asyncio
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from admin import decisions
from admin import invoices as admin_invoices
from core.db import Database
from core.errors import Conflict, WaitsForApproval
from core.ids import uuid7
from tests.integration.admin.two_people import (
    ADA,
    BOB,
    PICO,
    only,
)
from tests.integration.billing.support import Customer, make_customer


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
