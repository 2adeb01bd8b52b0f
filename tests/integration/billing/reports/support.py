"""Usage and hosts to report on: random settled requests of the last hours, and hosts with a price."""

import random
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text

from billing.metering.records import OpenRecord, Outcome, PriceVersion, UsageRecord
from billing.metering.settle_calls import settle_row
from core.db import Database
from core.ids import uuid7
from core.tokens import TokenUsage
from tests.integration.billing.support import Customer, settle_json

MODELS = ("river-7b", "lake-70b")


async def now_hour(database: Database) -> datetime:
    async with database.system() as connection:
        found = await connection.execute(text("SELECT date_trunc('hour', clock_timestamp(), 'UTC')"))
        hour: datetime = found.scalar_one()
    return hour


async def settle_some(
    database: Database, rng: random.Random, customers: list[Customer], versions: dict[str, int], count: int
) -> None:
    """Settle `count` random requests that ended in the last 40 hours."""
    hour = await now_hour(database)
    records = []
    for _ in range(count):
        customer, model = rng.choice(customers), rng.choice(MODELS)
        version = PriceVersion(versions[model], 0, 0, 0, 0)
        input_tokens, output_tokens = rng.randrange(1000), rng.randrange(1000)
        opened = OpenRecord(
            request_id=uuid7(),
            tenant_id=customer.tenant_id,
            project_id=customer.project_id,
            key_id=customer.key_id,
            model=model,
            tier="standard",
            region="test",
            price=version,
            list_price=version,
            admitted_at=hour - timedelta(minutes=rng.randrange(-50, 40 * 60)),
            replica_id="h/0",
            boot_id="b",
            simulated=rng.random() < 0.1,
            stream=True,
            gpu=rng.choice(("", "H200", "B300")),
        )
        usage = TokenUsage(
            input=input_tokens,
            cached_input=rng.randrange(input_tokens + 1),
            output=output_tokens,
            reasoning=rng.randrange(output_tokens + 1),
        )
        records.append(
            UsageRecord(
                opened, rng.choice(list(Outcome)), usage, duration_us=rng.randrange(60_000_000), queue_us=500
            )
        )
    async with database.system() as connection:
        body = msgspec.json.encode([settle_row(record)._asdict() for record in records]).decode()
        found = await connection.execute(text(settle_json(":body")), {"body": body})
        assert set(found.scalars()) == {"settled"}


HOST_PRICE = 12_345_678_901_234


async def add_hosts(database: Database, hour: datetime) -> int:
    """Two hosts in two hours; returns their whole cost in picodollars."""
    cost = 0
    async with database.system() as connection:
        await connection.execute(
            text("INSERT INTO host_prices VALUES ('box', :price, '2026-01-01Z', 'test')"),
            {"price": HOST_PRICE},
        )
        for host, back, serving, idle in (("h1", 1, 3000, 600), ("h2", 1, 1111, 77), ("h1", 2, 13, 3587)):
            await connection.execute(
                text(
                    "INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES (:h, 'box', 'test', 8) "
                    "ON CONFLICT DO NOTHING"
                ),
                {"h": host},
            )
            at = hour - timedelta(hours=back)
            for state, seconds in (("serving", serving), ("warm_idle", idle)):
                bound = {"h": host, "at": at, "state": state, "s": seconds}
                await connection.execute(
                    text("INSERT INTO host_seconds VALUES (:h, 'b', :at, :state, :s)"), bound
                )
                await connection.execute(
                    text("INSERT INTO model_seconds VALUES (:h, 'b', :at, 'river-7b', :state, :s)"),
                    {**bound, "s": seconds - 5},
                )
            seconds = serving + idle
            cost += (2 * HOST_PRICE * seconds + 3600) // 7200
    return cost
