"""Sessions and live limits against a real Redis and PostgreSQL."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from redis.asyncio import Redis

from admin import users as admin_users
from admin.actor import Actor
from console.live_limits import limits_in_use
from console.sessions import IDLE_TIMEOUT_S, MAX_AGE_S, SessionStore
from core.clock import SystemClock
from core.db import Database
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.rates import RateLimiter
from tests.support.clock import ManualClock
from tests.support.tenancy import ADMIN, make_organisation

SECRET = b"secret"


@pytest.fixture
async def actor(database: Database) -> Actor:
    """A person of finance."""
    user = await admin_users.create_user(
        database, ADMIN, email="fin@penstock.local", password="a password of length", role="finance"
    )
    found = await admin_users.current_actor(database, user.id)
    assert found is not None
    return found


async def test_a_session_lives_by_use_and_not_for_ever(
    database: Database, redis_client: Redis, actor: Actor
) -> None:
    clock = ManualClock()
    store = SessionStore(redis_client, database, SECRET, clock)
    token = await store.open(actor)
    session = await store.use(token)
    assert session is not None
    assert session.actor == actor
    (key,) = await redis_client.keys("penstock:console:session:*")
    assert token not in key.decode()
    assert 0 < await redis_client.ttl(key) <= IDLE_TIMEOUT_S
    clock.advance(MAX_AGE_S - 60)
    assert await store.use(token) is not None
    assert await redis_client.ttl(key) <= 60
    clock.advance(61)
    assert await store.use(token) is None


async def test_looking_does_not_keep_a_session_alive(
    database: Database, redis_client: Redis, actor: Actor
) -> None:
    store = SessionStore(redis_client, database, SECRET, ManualClock())
    token = await store.open(actor)
    (key,) = await redis_client.keys("penstock:console:session:*")
    await redis_client.expire(key, 100)
    assert await store.is_alive(token)
    assert await redis_client.ttl(key) <= 100


async def test_a_role_is_read_afresh_and_a_disabled_person_is_out(
    database: Database, redis_client: Redis, actor: Actor
) -> None:
    store = SessionStore(redis_client, database, SECRET, ManualClock())
    token = await store.open(actor)
    await admin_users.set_role(database, ADMIN, user_id=UUID(actor.id), role="platform_admin")
    session = await store.use(token)
    assert session is not None
    assert session.actor.role == "platform_admin"
    await admin_users.create_user(
        database, ADMIN, email="other@penstock.local", password="a password of length", role="platform_admin"
    )
    await admin_users.disable_user(database, ADMIN, user_id=UUID(actor.id))
    assert await store.use(token) is None
    assert not await store.is_alive(token)


async def test_tokens_of_another_secret_or_shape_open_nothing(
    database: Database, redis_client: Redis, actor: Actor
) -> None:
    store = SessionStore(redis_client, database, SECRET, ManualClock())
    token = await store.open(actor)
    assert await SessionStore(redis_client, database, b"other", ManualClock()).use(token) is None
    assert await store.use("") is None
    assert await store.use("x" * 10_000) is None
    await store.end(token)
    assert await store.use(token) is None


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
