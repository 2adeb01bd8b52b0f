"""Trial balance, journal and deferred revenue: they add up to the ledger, and their files open."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import openpyxl
import pytest
from sqlalchemy import text

from admin import ledger as admin_ledger
from admin.actor import Actor, system_actor
from billing.ledger import credits
from billing.ledger.adjustments import adjust
from billing.ledger.journal import CHART, JournalLine, TransferLine
from billing.ledger.journal_files import stream_csv, write
from billing.ledger.transfers import book
from core.db import Database
from core.errors import InvalidRequest, PermissionDenied
from core.ids import uuid7
from tests.integration.billing.support import Customer, make_customer

ADMIN = system_actor("test")
USD = 10**12


async def some_books(database: Database) -> list[Customer]:
    """Two customers with everything the chart has, last month and this one."""
    prepaid, postpaid = await make_customer(database), await make_customer(database, mode="postpaid")
    last_month = datetime.now(UTC).replace(day=1) - timedelta(days=3)
    async with database.system() as connection:
        for amount, kind in ((50 * USD, "purchased"), (10 * USD, "promotional")):
            await credits.add_lot(
                connection,
                lot_id=uuid7(),
                tenant_id=prepaid.tenant_id,
                amount=amount,
                kind=kind,  # type: ignore[arg-type]
                reason="r",
                created_by="t",
            )
        invoice = uuid7()
        for kind, who, debit, credit, amount, at in (
            ("commit", prepaid, "credit", "revenue", 12 * USD + 1, None),
            ("commit", postpaid, "receivable", "revenue", 33 * USD + 7, last_month),
            ("invoice", postpaid, "invoiced", "receivable", 33 * USD + 7, last_month),
            ("rounding", postpaid, "rounding", "invoiced", 7, last_month),
            ("payment", postpaid, "cash", "invoiced", 33 * USD, None),
            ("fee", postpaid, "fees", "cash", 1 * USD, None),
        ):
            await book(connection, kind, who.tenant_id, debit, credit, amount, invoice, at)
            invoice = invoice if kind == "invoice" else uuid7()
        await adjust(
            connection,
            adjustment_id=uuid7(),
            tenant_id=prepaid.tenant_id,
            amount=-60 * USD,
            reason="r",
            created_by="t",
        )
    return [prepaid, postpaid]


def this_month() -> tuple[datetime, datetime]:
    return admin_ledger.period_of(None, None, None)


async def test_the_trial_balance_closes_and_carries_over(database: Database) -> None:
    customers = await some_books(database)
    start, end = this_month()
    balance = await admin_ledger.trial_balance(database, ADMIN, start=start, end=end)
    assert balance.balanced
    assert [line.account for line in balance.lines] == list(CHART)
    lines = {line.account: line for line in balance.lines}
    assert (lines["revenue"].opening_usd, lines["revenue"].type) == ("33.000000000007", "income")
    assert (lines["credit"].opening_usd, lines["credit"].closing_usd) == ("0.00", "0.00")
    assert (lines["cash"].debit_usd, lines["cash"].credit_usd, lines["cash"].closing_usd) == (
        "83.00",
        "1.00",
        "82.00",
    )
    assert lines["rounding"].closing_usd == "-0.000000000007"
    earlier = await admin_ledger.trial_balance(database, ADMIN, start=start - timedelta(days=31), end=start)
    assert {line.account: line.closing_usd for line in earlier.lines} == {
        line.account: line.opening_usd for line in balance.lines
    }
    parts = [
        await admin_ledger.trial_balance(database, ADMIN, start=start, end=end, tenant_id=one.tenant_id)
        for one in customers
    ]
    for at, line in enumerate(balance.lines):
        assert Decimal(line.closing_usd) == sum(Decimal(part.lines[at].closing_usd) for part in parts)


async def test_the_journal_adds_up_and_its_files_open(database: Database) -> None:
    await some_books(database)
    start, end = this_month()
    lines = await admin_ledger.journal_lines(database, ADMIN, start=start, end=end)
    balance = await admin_ledger.trial_balance(database, ADMIN, start=start, end=end)
    debit, credit = (
        sum(Decimal(getattr(line, name)) for line in lines) for name in ("debit_usd", "credit_usd")
    )
    assert debit == credit == Decimal(balance.debit_usd)
    details = [line async for line in admin_ledger.transfers(database, ADMIN, start=start, end=end)]
    assert sum(Decimal(line.amount_usd) for line in details) == debit

    columns = JournalLine.__struct_fields__
    table = list(csv.DictReader(io.StringIO(write(lines, columns, "csv").decode())))
    assert [row["debit_usd"] for row in table] == [line.debit_usd for line in lines]
    assert [row["credit_usd"] for row in json.loads(write(lines, columns, "json"))] == [
        line.credit_usd for line in lines
    ]
    sheet = openpyxl.load_workbook(io.BytesIO(write(lines, columns, "xlsx"))).active
    assert sheet is not None
    head, *rows = sheet.iter_rows(values_only=True)
    assert head == columns
    assert [Decimal(str(row[5])) for row in rows] == [Decimal(line.debit_usd) for line in lines]
    streamed = "".join(
        [
            line
            async for line in stream_csv(
                admin_ledger.transfers(database, ADMIN, start=start, end=end), TransferLine.__struct_fields__
            )
        ]
    )
    assert streamed.encode() == write(details, TransferLine.__struct_fields__, "csv")
    with pytest.raises(InvalidRequest, match="more than 2"):
        async for _ in admin_ledger.transfers(database, ADMIN, start=start, end=end, limit=2):
            pass


async def test_deferred_revenue_is_the_ledgers_liability_at_any_time(database: Database) -> None:
    customer = await make_customer(database)
    marks = []

    async def mark() -> None:
        async with database.system() as connection:
            row = (
                await connection.execute(
                    text(
                        "SELECT clock_timestamp() AS at, balance FROM billing_accounts WHERE tenant_id = :id"
                    ),
                    {"id": customer.tenant_id},
                )
            ).one()
            marks.append((row.at, int(row.balance)))

    for kind, amount in (("purchased", 50), ("promotional", 20)):
        async with database.system() as connection:
            await credits.add_lot(
                connection,
                lot_id=uuid7(),
                tenant_id=customer.tenant_id,
                amount=amount,
                kind=kind,  # type: ignore[arg-type]
                reason="r",
                created_by="t",
            )
        await mark()
    async with database.system() as connection:
        await book(connection, "commit", customer.tenant_id, "credit", "revenue", 30, uuid7())
    await mark()
    assert await credits.allocate_all(database) == 1
    assert await credits.allocate_all(database) == 0
    await mark()
    for at, balance in marks:
        lines = await admin_ledger.deferred_revenue(database, ADMIN, at=at)
        assert sum(Decimal(line.unused_usd) for line in lines) == Decimal(balance) / USD
    kinds = [(line.kind, line.unused_usd) for line in lines]
    assert kinds == [("purchased", "0.00000000004")]
    before = await admin_ledger.deferred_revenue(database, ADMIN, at=marks[2][0])
    assert {line.kind for line in before} == {"purchased", "promotional", "used, not allocated"}


async def test_only_the_platform_reads_the_books(database: Database) -> None:
    customer = await make_customer(database)
    start, end = this_month()
    owner = Actor(kind="user", id="u", label="u", role="tenant_owner", tenant_id=customer.tenant_id)
    facts: dict[str, Any] = {"start": start, "end": end, "tenant_id": customer.tenant_id}
    for act in (
        admin_ledger.trial_balance(database, owner, **facts),
        admin_ledger.journal_lines(database, owner, **facts),
        admin_ledger.deferred_revenue(database, owner, tenant_id=customer.tenant_id),
        admin_ledger.verify_ledger(database, owner),
        anext(aiter(admin_ledger.transfers(database, owner, **facts))),
    ):
        with pytest.raises(PermissionDenied):
            await act
    with pytest.raises(InvalidRequest):
        await admin_ledger.trial_balance(database, ADMIN, start=end, end=start)
