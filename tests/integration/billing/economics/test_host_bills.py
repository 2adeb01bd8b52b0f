"""The lines of a host add up to its provider's bill to the picodollar, whatever its heartbeats and its end were."""

import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.close_checks import hosts_priced
from billing.economics.gpu_cost import host_hours
from billing.economics.provider_invoices import accounted, host_states
from billing.exports.datasets import DatasetQuery
from billing.exports.focus_gpu import focus_gpu
from billing.reports.margin import economics_report
from billing.usage.query import bucket_start
from core.db import Database
from core.money import pico_to_usd, usd_to_pico
from tests.support.provider_hosts import add_host
from workers.providers.costs import host_cost_pico
from workers.providers.intents import Intent

HOUR = timedelta(hours=1)
PRICES = (0, 1, 10**10, usd_to_pico("0.76"), usd_to_pico("3.39"), usd_to_pico("35.7654321"))
LIVES = (0.0, 0.4, 7.0, 59.9, 61.0, 1_800.0, 3_600.0, 100_000.5)


async def beat(connection: AsyncConnection, host: str, kind: str, hour: datetime, **states: int) -> None:
    """Seconds of heartbeats of a host in an hour by state, all for the model `m`."""
    bound: dict[str, Any] = {"host": host, "kind": kind, "hour": hour}
    await connection.execute(
        text(
            "INSERT INTO hosts (host_id, host_kind, region, gpus) VALUES (:host, :kind, 'r', 8) ON CONFLICT DO NOTHING"
        ),
        bound,
    )
    for state, seconds in states.items():
        for table, columns in (("host_seconds", ""), ("model_seconds", "'m', ")):
            await connection.execute(
                text(f"INSERT INTO {table} VALUES (:host, 'b', :hour, {columns}:state, :seconds)"),
                {**bound, "state": state, "seconds": seconds},
            )


async def random_host(database: Database, rng: random.Random, number: int, now: datetime) -> Intent:
    """A host of a kind of its own, with heartbeats in some of its hours, and at times after its end."""
    created = now - timedelta(seconds=rng.uniform(0, 300_000))
    ended = min(created + timedelta(seconds=rng.choice(LIVES)), now)
    intent = await add_host(
        database, f"fleet-{number}", created, kind=f"k{number}", model=rng.choice(["", "m"]), price=rng.choice(PRICES),
        ended_at=rng.choice([None, ended, ended]),
    )  # fmt: skip
    host = rng.choice([intent.name, f"sim-{intent.name}"])
    hour = bucket_start(created, "hour")
    async with database.system() as connection:
        while hour <= ended:
            if rng.random() < 0.7:
                await beat(
                    connection, host, "said", hour, serving=rng.randrange(1801), loading=rng.randrange(1801)
                )
            hour += HOUR
    return intent


@pytest.mark.parametrize("seed", range(4))
async def test_the_lines_of_a_host_add_up_to_its_bill(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    hosts = [await random_host(database, rng, number, datetime.now(UTC)) for number in range(30)]
    async with database.system() as connection:
        now: datetime = (await connection.execute(text("SELECT now()"))).scalar_one()
        end = bucket_start(now, "hour") + HOUR
        start = end - timedelta(hours=100)
        cuts = [start, *sorted(rng.sample([start + n * HOUR for n in range(1, 100)], 3)), end]
        for first, last in [(start, end), *itertools.pairwise(cuts)]:
            bills = {one.kind: host_cost_pico(one, first, min(last, now)) for one in hosts}
            lines: dict[str, int] = dict.fromkeys(bills, 0)
            for row in await host_states(connection, first, last):
                lines[row.host_kind] += usd_to_pico(row.cost_usd)
            assert lines == bills
            hours = await host_hours(connection, first, last)
            split = [
                part.cost for use in hours.values() for part in (*use.serving.values(), *use.unused.values())
            ]
            assert sum(split) == sum(bills.values())
            assert all(cost >= 0 for cost in split)
    whole = {one.kind: host_cost_pico(one, None, now) for one in hosts}
    assert whole == {one.kind: host_cost_pico(one, start, now) for one in hosts}


async def test_time_without_an_agent_is_a_line_of_reports_and_exports(database: Database) -> None:
    """One host for two hours at 3.60 an hour: its agent reports from the tenth minute on, for an hour."""
    created = datetime(2026, 10, 10, 5, tzinfo=UTC)
    end = created + 2 * HOUR
    await add_host(database, "fleet-1", created, price=usd_to_pico("3.60"), ended_at=end)
    async with database.system() as connection:
        await beat(connection, "fleet-1", "gpu-h100x1-80gb", created, serving=2_400, warm_idle=600)
        await beat(connection, "fleet-1", "gpu-h100x1-80gb", created + HOUR, serving=600)
        rows = await economics_report(connection, created, end + HOUR, ("model",))
        assert {(row.line, row.model, row.gpu_cost_usd, row.gpu_seconds) for row in rows} == {
            ("no_agent", "m", "3.60", f"{8 * 3_600}.000000"),
            ("serving", "m", "3.00", f"{8 * 3_000}.000000"),
            ("warm_idle", "m", "0.60", f"{8 * 600}.000000"),
        }
        shown = await host_states(connection, created, end)
        assert [(row.state, row.hours, row.cost_usd) for row in shown] == [
            ("no_agent", "1.000", "3.60"),
            ("serving", "0.833", "3.00"),
            ("warm_idle", "0.167", "0.60"),
        ]
        exported = focus_gpu(connection, DatasetQuery("focus_gpu", created, end, with_gpu=True))
        names = [column.name for column in exported.columns]
        found = [dict(zip(names, row, strict=True)) async for block in exported.blocks for row in block]
        assert {row["x_State"]: pico_to_usd(int(row["BilledCost"].scaleb(12))) for row in found} == {  # type: ignore[union-attr]
            "no_agent": "3.60",
            "serving without requests": "3.00",
            "warm_idle": "0.60",
        }
        month = bucket_start(created, "month").date()
        assert (await accounted(connection, month))[1] == {"gpu-h100x1-80gb": usd_to_pico("7.20")}
        assert (await hosts_priced(connection, month)).ok, "the provider's price is enough"
