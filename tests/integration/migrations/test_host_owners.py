"""Revision 0057 on intents that share a name."""

import asyncio

import asyncpg
from alembic import command

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


async def test_names_become_unique_and_the_fleet_is_that_of_the_names(services: Services) -> None:
    async with own_database(services, "host_owners") as url:
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0056_added_models")
        connection = await asyncpg.connect(url)
        await connection.execute(_FILL)
        await asyncio.to_thread(command.upgrade, alembic_config(url), "0057_host_owners")
        names = await connection.fetch("SELECT name FROM host_intents ORDER BY requested_at")
        fleets = await connection.fetch("SELECT fleet FROM host_providers ORDER BY provider")
        await connection.close()
    assert [row["name"] for row in names] == ["live-eu-0123456789ab", "live-eu-0123456789ab.2", "stray"]
    assert [row["fleet"] for row in fleets] == ["live-eu", None]
