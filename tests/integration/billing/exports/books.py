"""A busy month to export: usage at list and contract prices, credit, corrections, a shortfall, hosts."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from billing.exports.datasets import DatasetQuery
from billing.ledger.adjustments import adjust
from billing.ledger.credits import add_lot
from billing.ledger.transfers import book
from core.db import Database
from core.ids import uuid7
from core.money import usd_to_pico
from tests.integration.billing.reports.support import add_hosts, now_hour, settle_some
from tests.integration.billing.support import Customer, make_customer, price


@dataclass
class Busy:
    """The organisations and the start of their usage."""

    customers: list[Customer]
    start: datetime
    end: datetime
    gpu_cost: int

    @property
    def last_day(self) -> datetime:
        """The day of the last usage, which is not over; `end` may be the next day's first hour."""
        return (self.end - timedelta(hours=1)).replace(hour=0)

    def query(self, dataset: str, **more: object) -> DatasetQuery:
        """A data set of the whole time."""
        return DatasetQuery(dataset, self.start, self.end, **more)  # type: ignore[arg-type]


async def busy(database: Database, seed: int = 1, *, requests: int = 120) -> Busy:
    """Three organisations: rich and prepaid, poor and prepaid (some usage is uncollectible), postpaid."""
    rng = random.Random(seed)
    versions = {
        "river-7b": await price(database),
        "lake-70b": await price(database, model="lake-70b", input="0.123457", output="7.654321"),
    }
    customers = [
        await make_customer(database, "1000", name="=Rich, Inc."),
        await make_customer(database, "0.01", name="Poor"),
        await make_customer(database, name="Große Post GmbH", mode="postpaid"),
    ]
    hour = await now_hour(database)
    gpu_cost = await add_hosts(database, hour)
    await settle_some(database, rng, customers, versions, requests)
    rich, poor, post = customers
    month = hour.date().replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    async with database.system() as connection:
        for tenant, amount, corrects in (
            (rich, "1.23456789", before),
            (post, "-0.5", None),
            (poor, "-0.25", before),
        ):
            await adjust(
                connection,
                adjustment_id=uuid7(),
                tenant_id=tenant.tenant_id,
                amount=usd_to_pico(amount),
                reason="wrong price",
                created_by="tester",
                corrects=corrects,
            )
        await add_lot(
            connection, lot_id=uuid7(), tenant_id=rich.tenant_id, amount=usd_to_pico("5"), kind="promotional",
            reason="welcome", created_by="tester",
        )  # fmt: skip
        await add_lot(
            connection, lot_id=uuid7(), tenant_id=rich.tenant_id, amount=usd_to_pico("50"), kind="purchased",
            reason="top-up", created_by="tester",
        )  # fmt: skip
        await book(
            connection, "commit", post.tenant_id, "receivable", "revenue", usd_to_pico("12.34"), uuid7()
        )
        await book(
            connection, "sla_credit", post.tenant_id, "sla_credits", "receivable", usd_to_pico("2"), uuid7()
        )
    return Busy(customers, hour - timedelta(days=3), hour + timedelta(hours=1), gpu_cost)


async def ledger(database: Database, **codes: int) -> int:
    """The sum over accounts of sign x (credits - debits), in picodollars: `revenue=1, promotions=1`."""
    async with database.system() as connection:
        rows = await connection.execute(
            text("SELECT code, sum(credit - debit) AS net FROM ledger_balances GROUP BY code")
        )
        net = {row.code: int(row.net) for row in rows}
    return sum(sign * net.get(code, 0) for code, sign in codes.items())
