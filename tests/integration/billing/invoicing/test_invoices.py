"""Invoices: display, the requests behind a line, void and write-off."""

from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from billing.invoicing.run import make_invoices
from billing.invoicing.status_changes import void_invoice, write_off_invoice
from billing.invoicing.views import TraceRow, find_invoice, list_invoices, trace_line
from billing.ledger.months import bounds
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import PICO_PER_CENT
from tests.integration.billing.invoicing.support import Platform
from tests.integration.billing.support import make_customer, price


async def every_row(platform: Platform, line_id: UUID, limit: int = 2) -> list[TraceRow]:
    rows: list[TraceRow] = []
    after = None
    while True:
        async with platform.database.read() as connection:
            page = await trace_line(connection, line_id, limit=limit, after=after)
        rows += page.rows
        after = page.next
        if after is None:
            return rows
        assert len(page.rows) == limit


async def test_every_line_is_the_sum_of_its_requests(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    other = await make_customer(platform.database, name="Other", mode="postpaid")
    late_end = bounds(platform.month)[0] - timedelta(days=4)
    for i in range(5):
        await platform.use(acme, input=1_000_000 + i, cached=i, output=10 * i, reasoning=i)
        await platform.use(other, input=999)
    await platform.use(acme, input=3, outcome="zero_output")
    late = await platform.use(acme, input=50, ended_at=late_end)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    async with platform.database.read() as connection:
        detail = await find_invoice(connection, str((await platform.invoice(acme, month)).id))
        assert await find_invoice(connection, detail.invoice.number or "") == detail
    assert len(detail.lines) == 5
    for line in detail.lines:
        rows = await every_row(platform, line.id)
        assert sum(Decimal(row.exact_usd) for row in rows) == Decimal(line.exact_usd)
        assert sum(row.tokens for row in rows) == line.tokens
    assert [row.request_id for row in await every_row(platform, detail.lines[-1].id)] == [late]
    assert detail.lines[-1].kind == "late_usage"
    total = sum(Decimal(line.exact_usd) for line in detail.lines)
    assert total == Decimal(detail.invoice.exact_usd)


async def test_a_tenants_session_sees_its_own_invoices_only(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    other = await make_customer(platform.database, name="Other", mode="postpaid")
    for customer in (acme, other):
        await platform.use(customer, input=1_000_000)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    foreign = await platform.invoice(other, month)
    async with platform.database.tenant(acme.tenant_id) as connection:
        (mine,) = await list_invoices(connection)
        assert mine.tenant_id == acme.tenant_id
        with pytest.raises(NotFound):
            await find_invoice(connection, str(foreign.id))
    async with platform.database.read() as connection:
        assert len(await list_invoices(connection, month=month, status="open")) == 2
        first, second = await list_invoices(connection)
        assert await list_invoices(connection, after=first.id) == [second]
        assert await list_invoices(connection, after=second.id) == []
        with pytest.raises(NotFound):
            await trace_line(connection, uuid7())


async def test_a_void_invoice_comes_again_with_the_next(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_234_567)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    invoice = await platform.invoice(acme, month)
    async with platform.database.system() as connection:
        await void_invoice(connection, invoice.id)
    assert await platform.balance(acme, "invoiced") == 0
    assert await platform.balance(acme, "receivable") == 1_234_567_000_000
    assert await platform.balance(acme, "rounding") == 0
    with pytest.raises(Conflict, match="is void"):
        async with platform.database.system() as connection:
            await void_invoice(connection, invoice.id)
    second = await platform.end_month()
    await make_invoices(platform.database, second)
    (line,) = await platform.lines(acme, second)
    assert (line.kind, line.cents, line.description) == (
        "carried",
        123,
        f"Carried over from invoice {invoice.number}",
    )
    assert await platform.balance(acme, "invoiced") == 123 * PICO_PER_CENT
    async with platform.database.read() as connection:
        with pytest.raises(InvalidRequest, match="no requests stand behind"):
            await trace_line(connection, line.id)
    await platform.is_sound()


async def test_what_is_written_off_is_an_expense(platform: Platform) -> None:
    await price(platform.database)
    acme = await make_customer(platform.database, mode="postpaid")
    await platform.use(acme, input=1_234_567)
    month = await platform.end_month()
    await make_invoices(platform.database, month)
    invoice = await platform.invoice(acme, month)
    async with platform.database.system() as connection:
        assert await write_off_invoice(connection, invoice.id) == 123
    assert (await platform.invoice(acme, month)).status == "uncollectible"
    assert await platform.balance(acme, "invoiced") == 0
    assert await platform.balance(acme, "uncollectible") == 123 * PICO_PER_CENT
    with pytest.raises(Conflict, match="is uncollectible"):
        async with platform.database.system() as connection:
            await write_off_invoice(connection, invoice.id)
    await platform.is_sound()
