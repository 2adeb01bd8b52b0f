"""Revision 0057 on intents that share a name, and 0079 on hosts of kinds that were contracted."""

import asyncio

import asyncpg
from alembic import command

from core.money import usd_to_pico
from core.services import alembic_config
from tests.support.schema import own_database
from tests.support.services import Services

_FILL = """
    INSERT INTO host_providers (provider) VALUES ('digitalocean'), ('local');
    INSERT INTO host_intents (intent_id, provider, region, kind, model, name, requested_at, wanted, why, state, calls,
                              failures, provider_id, status, billed, end_recorded)
    SELECT gen_random_uuid(), 'digitalocean', 'r', 'k', '', name, now() + n * interval '1 minute', true, '', 'exists',
           calls, 0, n::text, '', true, false
    FROM (VALUES (1, 'live-eu-0123456789ab', 1), (2, 'live-eu-0123456789ab', 0), (3, 'stray', 0)) v (n, name, calls)
"""
_HOSTS = """
    INSERT INTO hosts (host_id, host_kind, region, gpus, last_seen)
    VALUES ('a', 'gpu-b300x8-2304gb-contracted', 'r', 8, now()), ('b', 'gpu-b300x8-2304gb-contracted', 's', 8, now()),
           ('gone', 'gpu-b300x8-2304gb-contracted', 'r', 8, now() - interval '2 days'),
           ('c', 'gb200-nvl4', 'r', 4, now()), ('other', 'gpu-b300x8-2304gb-spot', 'r', 8, now())
"""


async def test_names_become_unique_and_what_was_contracted_gets_a_contract(services: Services) -> None:
    async with own_database(services, "host_owners") as url:
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0056_added_models")
        connection = await asyncpg.connect(url)
        await connection.execute(_FILL)
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0057_host_owners")
        names = await connection.fetch("SELECT name FROM host_intents ORDER BY requested_at")
        fleets = await connection.fetch("SELECT fleet FROM host_providers ORDER BY provider")
        await connection.execute(_HOSTS)
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0079_host_contracts")
        contracts = await connection.fetch("SELECT * FROM host_contracts ORDER BY kind")
        await connection.close()
    assert [
        (row["kind"], row["region"], row["count"], int(row["usd_pico_per_hour"])) for row in contracts
    ] == [
        ("gb200-nvl4", "", 1, 0),
        ("gpu-b300x8-2304gb-contracted", "", 2, usd_to_pico("64")),
    ]
    assert [row["ends_at"] for row in contracts] == [None, None]
    assert [row["name"] for row in names] == ["live-eu-0123456789ab", "live-eu-0123456789ab.2", "stray"]
    assert [row["fleet"] for row in fleets] == ["live-eu", None]
