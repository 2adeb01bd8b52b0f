"""A contract for hosts costs its price in every hour of its term, and hosts that it covers cost nothing else."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from billing.economics.close_checks import hosts_priced
from billing.economics.gpu_cost import host_hours
from billing.economics.host_bills import HOST_HOURS, covered_parts, host_bounds
from billing.economics.provider_invoices import accounted, host_states
from billing.reports.margin import economics_report
from billing.usage.query import bucket_start
from core.db import Database
from core.money import usd_to_pico
from tests.integration.billing.economics.test_host_bills import beat
from tests.support.provider_hosts import add_host
from workers.acting.contract_store import add_contract
from workers.acting.contracts import HostContract
from workers.providers.costs import host_cost_pico
from workers.providers.intents import Intent

HOUR = timedelta(hours=1)
KIND = "gpu-h100x1-80gb"
START = datetime(2026, 10, 10, 5, tzinfo=UTC)


async def agree(
    database: Database, number: int, count: int, hours: tuple[int, int | None], price: int, region: str = ""
) -> HostContract:
    """A contract for `count` hosts of KIND in the hours [first, last) from START on."""
    first, last = START + hours[0] * HOUR, None if hours[1] is None else START + hours[1] * HOUR
    contract = HostContract(UUID(int=number), KIND, region, count, first, last, price, "17")
    async with database.system() as connection:
        await add_contract(connection, contract)
    return contract


async def test_a_covered_host_costs_its_share_and_unused_hours_are_a_line(database: Database) -> None:
    """Two hosts under a contract at 2 for three hours; one runs for the first hour and a half, at 3.60 without it."""
    await agree(database, 1, 2, (0, 3), usd_to_pico("2"))
    await add_host(database, "fleet-1", START, price=usd_to_pico("3.60"), ended_at=START + 1.5 * HOUR)
    async with database.system() as connection:
        await beat(connection, "fleet-1", KIND, START, serving=2_700, warm_idle=900)
        rows = await economics_report(connection, START, START + 4 * HOUR, ("model",))
        assert {(row.line, row.model, row.gpu_cost_usd) for row in rows} == {
            ("serving", "m", "1.50"),
            ("warm_idle", "m", "0.50"),
            ("no_agent", "m", "1.00"),
            ("contract_unused", None, "9.00"),
        }
        shown = await host_states(connection, START, START + 4 * HOUR)
        assert {(row.host_kind, row.state, row.hours, row.cost_usd) for row in shown} == {
            (KIND, "serving", "0.750", "1.50"),
            (KIND, "warm_idle", "0.250", "0.50"),
            (KIND, "no_agent", "0.500", "1.00"),
            (KIND, "contract_unused", "4.500", "9.00"),
        }
        month = bucket_start(START, "month").date()
        seconds, costs = await accounted(connection, month, gpus_only=True)
        assert (seconds, costs) == ({KIND: 6 * 3_600}, {KIND: usd_to_pico("12")})
        covered = await covered_parts(connection, START, START + 4 * HOUR)
        assert covered == {"fleet-1": usd_to_pico("5.40")}, "its whole bill"


async def test_a_joined_host_needs_no_price_while_a_contract_covers_it(database: Database) -> None:
    contract = await agree(database, 1, 1, (0, 1), usd_to_pico("2"), region="r")
    async with database.system() as connection:
        await connection.execute(text("DELETE FROM host_prices"))
        await beat(connection, "rack-1", KIND, START, serving=3_605)
        month = bucket_start(START, "month").date()
        assert (await hosts_priced(connection, month)).ok
        [row] = await host_states(connection, START, START + 2 * HOUR)
        assert (row.state, row.cost_usd) == ("serving", "2.00"), (
            "an hour of heartbeats may be a little longer"
        )
        await beat(connection, "rack-1", KIND, contract.starts_at + HOUR, serving=60)
        assert not (await hosts_priced(connection, month)).ok


async def test_the_present_hour_of_a_contract_costs_what_has_passed_of_it(database: Database) -> None:
    async with database.system() as connection:
        now: datetime = (await connection.execute(text("SELECT now()"))).scalar_one()
        hour = bucket_start(now, "hour")
        await add_contract(connection, HostContract(UUID(int=1), KIND, "", 3, hour - HOUR, None, 3_600, "17"))
        found = await host_hours(connection, hour - HOUR, hour + 5 * HOUR)
        passed = int((now - hour).total_seconds())
        cost = {at: use.unused["", "contract_unused"].cost for at, use in found.items() if use.unused}
        assert cost.pop(hour - HOUR) == 3 * 3_600
        assert cost == ({hour: 3 * passed} if passed else {})


async def random_fleet(database: Database, rng: random.Random) -> list[Intent]:
    """Hosts of one kind in two regions that live for parts of ten hours, of which heartbeats tell in part."""
    hosts = []
    for number in range(8):
        born = START + timedelta(seconds=rng.randrange(30_000))
        ended = born + timedelta(seconds=rng.randrange(20_000))
        host = await add_host(
            database, f"fleet-{number}", born, price=rng.choice((0, 1, usd_to_pico("3.39"))), ended_at=ended
        )
        region = rng.choice(("nyc2", "TOR1"))
        async with database.system() as connection:
            await connection.execute(
                text("UPDATE host_intents SET region = :region WHERE name = :name"),
                {"region": region, "name": host.name},
            )
            await beat(connection, host.name, KIND, bucket_start(born, "hour"), serving=rng.randrange(600))
        hosts.append(host)
    return hosts


@pytest.mark.parametrize("seed", range(4))
async def test_costs_are_the_bills_without_what_is_covered_and_the_contracts(
    database: Database, seed: int
) -> None:
    rng = random.Random(seed)
    hosts = await random_fleet(database, rng)
    contracts = []
    for number in range(4):
        first = rng.randrange(12)
        contracts.append(
            await agree(
                database, number, rng.randrange(1, 3), (first, first + rng.randrange(1, 8)),
                rng.choice((0, 1, 7, usd_to_pico("2.7182818"))), rng.choice(("", "nyc2", "tor1")),
            )
        )  # fmt: skip
    agreed: dict[datetime, int] = defaultdict(int)
    for contract in contracts:
        hour = contract.starts_at
        assert contract.ends_at is not None
        while hour < contract.ends_at:
            agreed[hour] += contract.count * contract.usd_pico_per_hour
            hour += HOUR
    async with database.system() as connection:
        for number in range(24):
            hour = START + number * HOUR
            bills = sum(host_cost_pico(one, hour, hour + HOUR) for one in hosts)
            covered = await covered_parts(connection, hour, hour + HOUR)
            expected = bills - sum(covered.values()) + agreed[hour]
            use = (await host_hours(connection, hour, hour + HOUR)).get(hour)
            parts = [] if use is None else [*use.serving.values(), *use.unused.values()]
            assert sum(part.cost for part in parts) == expected
            assert all(part.cost >= 0 for part in parts)
            rows = await host_states(connection, hour, hour + HOUR)
            assert sum(usd_to_pico(row.cost_usd) for row in rows) == expected
            await check_draws(connection, contracts, hour)


async def check_draws(connection: object, contracts: list[HostContract], hour: datetime) -> None:
    """The oldest hosts have drawn first, from their region first: the same rule, host by host."""
    query = text(
        f"WITH {HOST_HOURS} SELECT *, wants - near - anywhere AS rest FROM covered ORDER BY since, host"
    )
    rows = (await connection.execute(query, host_bounds(hour, hour + HOUR))).all()  # type: ignore[attr-defined]
    pools: dict[str, int] = defaultdict(int)
    for one in contracts:
        if one.runs(hour):
            pools[one.region] += one.count * 3_600
    left = []
    for row in rows:
        near = min(int(row.wants), pools[row.region]) if row.region else 0
        pools[row.region] -= near
        assert near == row.near
        left.append((row, int(row.wants) - near))
    for row, wants in left:
        anywhere = min(wants, pools[""])
        pools[""] -= anywhere
        assert anywhere == row.anywhere
