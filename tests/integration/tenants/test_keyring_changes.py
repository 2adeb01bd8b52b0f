"""KeyRing follows changes: revoked, expired and changed keys, by push and by poll."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, TenantSuspended
from tenants import changes, key_store
from tenants.changes import CHANNEL, announce, prune_changes
from tenants.principal import Limits
from tests.integration.tenants.support import NEVER_S, revoke, ring
from tests.support.clock import ManualClock
from tests.support.ports import free_port
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation
from tests.support.waiting import until


async def suspend(database: Database, acme: Organisation) -> None:
    await admin_tenants.suspend_tenant(database, ADMIN, tenant_id=acme.tenant_id, reason="test")


async def archive(database: Database, acme: Organisation) -> None:
    await admin_projects.archive_project(
        database, ADMIN, tenant_id=acme.tenant_id, project_id=acme.project_id
    )


async def delete_behind_our_back(database: Database, acme: Organisation) -> None:
    """No function of Penstock does this, but the trigger records it."""
    async with database.engine.begin() as connection:
        await connection.execute(text("DELETE FROM api_keys WHERE id = :id"), {"id": acme.key_id})


@pytest.mark.promise(26)
@pytest.mark.parametrize("way", ["poll", "push"])
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (revoke, AuthenticationFailed),
        (suspend, TenantSuspended),
        (archive, AuthenticationFailed),
        (delete_behind_our_back, AuthenticationFailed),
    ],
)
async def test_an_inactive_key_is_refused_and_reported(
    database: Database,
    redis_client: Redis,
    way: str,
    act: Callable[[Database, Organisation], Awaitable[None]],
    error: type[Exception],
) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    push = way == "push"
    if push:
        database.after_change = partial(announce, redis_client)
    async with ring(database, redis_client if push else None, poll_s=NEVER_S if push else 0.05) as keys:
        reported: set[UUID] = set()
        keys.on_revoked(reported.update)
        await keys.authenticate(acme.key)
        kept = await keys.authenticate(other.key)
        if push:
            await until(lambda: _subscribed(redis_client))
        await act(database, acme)
        if push and act is delete_behind_our_back:
            await announce(redis_client)
        await until(lambda: acme.key_id in reported)
        assert keys.authenticate_cached(acme.key) is None
        with pytest.raises(error):
            await keys.authenticate(acme.key)
        assert reported == {acme.key_id}
        assert keys.authenticate_cached(other.key) == kept


async def _subscribed(redis: Redis) -> bool:
    ((_, subscribers),) = await redis.pubsub_numsub(CHANNEL)
    return bool(subscribers)


async def test_a_key_that_is_not_cached_is_reported_too(database: Database) -> None:
    acme = await make_organisation(database)
    async with ring(database, poll_s=0.05) as keys:
        reported: set[UUID] = set()
        keys.on_revoked(reported.update)
        await revoke(database, acme)
        await until(lambda: acme.key_id in reported)


async def test_a_resumed_organisation_and_new_limits_arrive(database: Database) -> None:
    acme = await make_organisation(database)
    await suspend(database, acme)
    async with ring(database, poll_s=0.05) as keys:
        with pytest.raises(TenantSuspended):
            await keys.authenticate(acme.key)
        await admin_tenants.resume_tenant(database, ADMIN, tenant_id=acme.tenant_id)

        async def works() -> bool:
            try:
                await keys.authenticate(acme.key)
            except TenantSuspended:
                return False
            return True

        await until(works)
        await admin_limits.set_limits(
            database,
            ADMIN,
            tenant_id=acme.tenant_id,
            scope_kind="key",
            scope_id=acme.key_id,
            limits=Limits(concurrency=2),
        )

        async def limited() -> bool:
            return (await keys.authenticate(acme.key)).key_limits == Limits(concurrency=2)

        await until(limited)


@pytest.mark.promise(26)
async def test_a_late_commit_of_an_early_change_is_not_skipped(database: Database) -> None:
    """Ids are assigned before commits: a reader that continues from the highest id would miss the first change."""
    first, second = await make_organisation(database), await make_organisation(database, "Second")
    async with ring(database, poll_s=0.05) as keys:
        reported: set[UUID] = set()
        keys.on_revoked(reported.update)
        async with database.system() as slow:
            await key_store.mark_revoked(slow, first.tenant_id, first.key_id)
            await revoke(database, second)
            await until(lambda: second.key_id in reported)
            assert first.key_id not in reported
        await until(lambda: first.key_id in reported)


async def test_expiry_is_refused_and_reported(database: Database) -> None:
    clock = ManualClock(datetime.now(UTC))
    acme = await make_organisation(database)
    brief = await admin_keys.create_key(
        database,
        ADMIN,
        pepper=PEPPER,
        tenant_id=acme.tenant_id,
        project_id=acme.project_id,
        name="brief",
        expires_at=clock.now() + timedelta(seconds=60),
        clock=clock,
    )
    async with ring(database, clock=clock, poll_s=0.05) as keys:
        reported: set[UUID] = set()
        keys.on_revoked(reported.update)
        await keys.authenticate(brief.secret)
        await keys.authenticate(acme.key)
        clock.advance(60)
        assert keys.authenticate_cached(brief.secret) is None
        with pytest.raises(AuthenticationFailed, match="expired"):
            await keys.authenticate(brief.secret)
        await until(lambda: reported)
        assert reported == {brief.view.id}
        assert keys.authenticate_cached(acme.key) is not None


async def test_a_throttle_caps_the_tenant_until_it_ends(database: Database) -> None:
    clock = ManualClock(datetime.now(UTC))
    acme = await make_organisation(database)
    await admin_tenants.throttle_tenant(
        database,
        ADMIN,
        tenant_id=acme.tenant_id,
        minutes=1,
        requests_per_min=9,
        concurrency=1,
        reason="test",
        clock=clock,
    )
    async with ring(database, clock=clock) as keys:
        assert (await keys.authenticate(acme.key)).tenant_limits == Limits(requests_per_min=9, concurrency=1)
        clock.advance(60)
        assert (await keys.authenticate(acme.key)).tenant_limits == Limits()


async def test_a_changed_share_reaches_cached_keys(database: Database) -> None:
    acme = await make_organisation(database)
    async with ring(database, poll_s=0.05) as keys:
        assert (await keys.authenticate(acme.key)).share_percent == 100
        await admin_tenants.set_share(database, ADMIN, tenant_id=acme.tenant_id, percent=250, reason="test")
        await until(
            lambda: (found := keys.authenticate_cached(acme.key)) is None or found.share_percent == 250
        )
        assert (await keys.authenticate(acme.key)).share_percent == 250
        for percent in (0, 10_001):
            with pytest.raises(InvalidRequest, match="1 to 10000"):
                await admin_tenants.set_share(
                    database, ADMIN, tenant_id=acme.tenant_id, percent=percent, reason="test"
                )


async def test_changed_tiers_and_retention_reach_cached_keys(database: Database) -> None:
    acme = await make_organisation(database)
    async with ring(database, poll_s=0.05) as keys:
        before = await keys.authenticate(acme.key)
        assert (before.highest_tier, before.responses_kept_days) == ("", None)
        assert (before.responses_kept(30), before.responses_kept(0)) == (30, 0)
        await admin_tenants.set_highest_tier(
            database, ADMIN, tenant_id=acme.tenant_id, tier="priority", reason="test"
        )
        await admin_projects.set_retention(
            database, ADMIN, tenant_id=acme.tenant_id, project_id=acme.project_id, days=7
        )

        async def changed() -> bool:
            found = await keys.authenticate(acme.key)
            return (found.highest_tier, found.responses_kept_days) == ("priority", 7)

        await until(changed)
        after = await keys.authenticate(acme.key)
        assert (after.responses_kept(30), after.responses_kept(3)) == (7, 3), "never longer than the platform"


async def test_without_redis_the_poll_finds_changes(database: Database) -> None:
    acme = await make_organisation(database)
    unavailable = Redis.from_url(f"redis://127.0.0.1:{free_port()}/0")
    database.after_change = partial(announce, unavailable)
    async with ring(database, unavailable, poll_s=0.05) as keys:
        await keys.authenticate(acme.key)
        await revoke(database, acme)
        await until(lambda: keys.authenticate_cached(acme.key) is None)
    await unavailable.aclose()


@pytest.mark.parametrize("trouble", [RuntimeError("the handler is closed"), KeyError("a bug")])
async def test_no_error_ends_the_poll(
    database: Database, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """A process that stopped following would accept revoked keys for ever."""
    acme = await make_organisation(database)
    async with ring(database, poll_s=0.05) as keys:
        await keys.authenticate(acme.key)
        struck = 0

        async def strike(*_: object) -> list[changes.Change]:
            nonlocal struck
            struck += 1
            raise trouble

        with monkeypatch.context() as patch:
            patch.setattr(changes, "changes_since", strike)
            await until(lambda: struck >= 2, what="a further look")
        await revoke(database, acme)
        await until(lambda: keys.authenticate_cached(acme.key) is None)


async def test_old_changes_are_pruned(database: Database) -> None:
    await make_organisation(database)
    async with database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE tenancy_changes SET at = now() - interval '8 days' WHERE kind = 'tenant'")
        )
    async with database.system() as connection:
        assert await prune_changes(connection) == 1
        assert await prune_changes(connection) == 0
