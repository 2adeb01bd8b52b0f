"""Sessions against a real PostgreSQL, and live limits against a real Redis."""

import asyncio
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from admin import users as admin_users
from admin.actor import Actor
from admin.sessions import SESSION_LIFE
from console.live_limits import limits_in_use
from console.sessions import SessionStore
from core.clock import SystemClock
from core.db import Database
from tenants.admin_tokens import CONSOLE_IDLE
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rates import RateLimiter
from tests.integration.admin.people import person, signed_in
from tests.support.clock import ManualClock
from tests.support.tenancy import ADMIN, make_organisation

SECRET = b"secret"


@pytest.fixture
async def actor(database: Database) -> Actor:
    """A person of finance."""
    return await person(database, "finance")


async def test_a_session_lives_by_use_and_not_for_ever(database: Database, actor: Actor) -> None:
    clock = ManualClock()
    store = SessionStore(database, SECRET, clock)
    token = await store.open(await signed_in(database, actor))
    session = await store.use(token)
    assert session is not None
    assert (session.actor.id, session.actor.role) == (actor.id, "finance")
    async with database.read() as connection:
        rows = (await connection.execute(text("SELECT t::text FROM admin_tokens t"))).scalars().all()
    assert not any(token in row or token.encode().hex() in row for row in rows)
    step = CONSOLE_IDLE - timedelta(minutes=1)
    for _ in range(SESSION_LIFE // step):
        clock.advance(step.total_seconds())
        assert await store.use(token) is not None
    clock.advance((SESSION_LIFE % step).total_seconds())
    assert await store.use(token) is None


async def test_looking_does_not_keep_a_session_alive(database: Database, actor: Actor) -> None:
    clock = ManualClock()
    store = SessionStore(database, SECRET, clock)
    token = await store.open(await signed_in(database, actor))
    clock.advance(CONSOLE_IDLE.total_seconds() - 1)
    assert await store.is_alive(token)
    clock.advance(2)
    assert not await store.is_alive(token)
    assert await store.use(token) is None


async def test_a_page_that_is_open_ends_with_the_role_and_the_person(
    database: Database, actor: Actor
) -> None:
    store = SessionStore(database, SECRET, SystemClock())
    await person(database, "platform_admin")
    tokens = []
    for act in (
        partial(admin_users.set_role, database, ADMIN, user_id=UUID(actor.id), role="platform_admin"),
        partial(admin_users.disable_user, database, ADMIN, user_id=UUID(actor.id)),
    ):
        tokens.append(await store.open(await signed_in(database, actor)))
        assert await store.is_alive(tokens[-1])
        await act()
        assert not await store.is_alive(tokens[-1])
        assert await store.use(tokens[-1]) is None
    await admin_users.enable_user(database, ADMIN, user_id=UUID(actor.id))
    assert [await store.use(token) for token in tokens] == [None, None], "none works again"


async def test_tokens_of_another_secret_or_shape_open_nothing(database: Database, actor: Actor) -> None:
    store = SessionStore(database, SECRET, ManualClock())
    token = await store.open(await signed_in(database, actor))
    assert await SessionStore(database, b"other", ManualClock()).use(token) is None
    assert await store.use("") is None
    assert await store.use("x" * 10_000) is None
    await store.end(token)
    assert await store.use(token) is None
    await store.end(token)


async def test_live_use_is_what_admission_counts(database: Database, redis_client: Redis) -> None:
    organisation = await make_organisation(database)
    limits = Limits(
        requests_per_min=60,
        input_tokens_per_min=60_000,
        output_tokens_per_min=None,
        concurrency=4,
        tokens_per_day=1_000_000,
    )
    principal = Principal(
        key_id=organisation.key_id,
        project_id=organisation.project_id,
        tenant_id=organisation.tenant_id,
        tenant="Acme",
        last4="abcd",
        kind="live",
        tier="standard",
        key_limits=NO_LIMITS,
        project_limits=NO_LIMITS,
        tenant_limits=limits,
        allowed_models=None,
        cache_salt="",
    )

    async def nothing_yet(*_: object) -> dict[UUID, int]:
        return {}

    clock = SystemClock()
    limiter = RateLimiter(redis_client, clock, nothing_yet)
    await limiter.start()
    try:
        grants = await asyncio.gather(*(limiter.acquire(f"r{n}", principal, 500, 100) for n in range(3)))
        scopes = [("tenant", organisation.tenant_id, limits), ("key", organisation.key_id, NO_LIMITS)]
        used = await limits_in_use(redis_client, organisation.tenant_id, scopes, clock.now())
        tenant = used[organisation.tenant_id]
        assert tenant.requests_per_min in (2, 3)
        assert 1_000 <= (tenant.input_tokens_per_min or 0) <= 1_500
        assert tenant.output_tokens_per_min is None
        assert tenant.concurrency == 3
        assert tenant.tokens_per_day == 1_800
        assert used[organisation.key_id].concurrency is None
        later = await limits_in_use(
            redis_client, organisation.tenant_id, scopes, clock.now() + timedelta(minutes=2)
        )
        assert later[organisation.tenant_id].requests_per_min == 0
        for grant in grants:
            limiter.settle(grant, 500, 10)
    finally:
        await limiter.close()
