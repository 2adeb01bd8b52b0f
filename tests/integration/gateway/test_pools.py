"""Connections apart by purpose: what exhausts those of one purpose delays no other, above all no revocation.

Nothing depends on the speed of the machine: the connections of one purpose are held until the others have answered.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from admin import users as admin_users
from admin.logins import create_admin_token
from core.db import Database
from tenants import keys as tenants_keys
from tenants.key_format import ALPHABET, RANDOM_LENGTH, TAG_LENGTH, checksum
from tests.support.api_process import MODEL, Api, api_process
from tests.support.tenancy import ADMIN, PEPPER, make_organisation
from tests.support.waiting import until

HELLO = [{"role": "user", "content": "Say something about water."}]
BODY = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
LISTING_CLIENTS = 500
FORGED_KEYS = 600


@pytest.fixture
async def api(pg_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    limits = {"listings_per_min": 0, "invalid_per_address_per_min": 0}
    async with api_process(pg_url, redis_url, tmp_path, **limits) as made:
        yield made


@asynccontextmanager
async def many_clients(count: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose requests wait for no connection of their own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=count)) as session:
        yield session


@asynccontextmanager
async def exhausted(pool: Database) -> AsyncIterator[None]:
    """Hold every connection of a pool in an open transaction."""
    size = pool.engine.pool.size() + pool.engine.pool._max_overflow  # type: ignore[attr-defined]
    async with contextlib.AsyncExitStack() as held:
        for _ in range(size):
            connection = await held.enter_async_context(pool.read())
            await connection.execute(text("SELECT 1"))
        yield


async def admin_token(api: Api) -> str:
    admin = await admin_users.create_user(
        api.database, ADMIN, email="root@example.com", password="correct horse battery", role="platform_admin",
        tenant_id=None,
    )  # fmt: skip
    return (await create_admin_token(api.database, ADMIN, pepper=PEPPER, user_id=admin.id, name="t")).secret


async def revoke(api: Api, token: str) -> int:
    """Revoke the organisation's key over the admin REST; the status of the answer."""
    url = f"{api.url}/admin/v1/keys/{api.organisation.key_id}/revoke"
    async with api.session.post(url, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status


async def get_models(session: aiohttp.ClientSession, api: Api, key: str) -> int:
    async with session.get(f"{api.url}/v1/models", headers={"Authorization": f"Bearer {key}"}) as answer:
        return answer.status


@pytest.mark.promise(26, 29)
async def test_a_key_is_revoked_and_models_are_listed_while_every_connection_is_taken(api: Api) -> None:
    token, other = await admin_token(api), await make_organisation(api.database, "Other")
    assert (await api.post(BODY))[0] == 200
    pools = api.deps.pools
    async with many_clients(LISTING_CLIENTS) as session, contextlib.AsyncExitStack() as held:
        for pool in (pools.models, pools.customers, pools.exports, pools.admin):
            await held.enter_async_context(exhausted(pool))
        assert await get_models(session, api, other.key) == 200
        listings = [get_models(session, api, other.key) for _ in range(LISTING_CLIENTS)]
        assert set(await asyncio.gather(*listings)) == {200}
        assert await revoke(api, token) == 200

        async def refused() -> bool:
            return (await api.post(BODY))[0] == 401

        await until(refused, what="the revoked key is refused")


def forged(number: int) -> str:
    """A key as anyone can write it: the right shape and checksum, and no tag."""
    body = "pen_live_" + "".join(
        ALPHABET[(number // len(ALPHABET) ** place) % len(ALPHABET)]
        for place in range(RANDOM_LENGTH + TAG_LENGTH)
    )
    return body + checksum(body)


@pytest.mark.promise(26, 29)
async def test_look_ups_that_take_every_connection_delay_neither_known_nor_forged_nor_revoked_keys(
    api: Api,
) -> None:
    token, cold = await admin_token(api), await make_organisation(api.database, "Cold")
    known = await make_organisation(api.database, "Known")
    assert await get_models(api.session, api, known.key) == 200
    assert (await api.post(BODY))[0] == 200
    async with many_clients(FORGED_KEYS + 1) as session, contextlib.AsyncExitStack() as held:
        await held.enter_async_context(exhausted(api.deps.pools.keys))
        first = asyncio.create_task(get_models(session, api, cold.key))
        *refusals, served = await asyncio.gather(
            *(get_models(session, api, forged(number)) for number in range(FORGED_KEYS)),
            get_models(api.session, api, known.key),
        )
        assert set(refusals) == {401}, "a forged key is refused without a look-up"
        assert served == 200
        assert await revoke(api, token) == 200

        async def refused() -> bool:
            return (await api.post(BODY))[0] in (401, 503)

        await until(refused, what="the revoked key runs nothing")
        assert await first == 503, "a key that cannot be looked up is not called wrong"
        await held.aclose()
        assert await get_models(session, api, cold.key) == 200


async def test_a_flood_of_forged_keys_leaves_the_last_connection_to_cold_keys(api: Api) -> None:
    real = [await make_organisation(api.database, f"Org {number}") for number in range(5)]
    async with many_clients(FORGED_KEYS + len(real)) as session, contextlib.AsyncExitStack() as held:
        for _ in range(tenants_keys.MAX_LOOKUPS_RUNNING - 1):
            await held.enter_async_context(api.deps.pools.keys.read())
        flood = [
            asyncio.create_task(get_models(session, api, forged(number))) for number in range(FORGED_KEYS)
        ]
        answers = await asyncio.gather(*(get_models(session, api, one.key) for one in real))
        assert answers == [200] * len(real)
        assert set(await asyncio.gather(*flood)) == {401}
