"""KeyRing with a real PostgreSQL and Redis: look-ups, cache, invalidation and outages."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy import event, text

from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from core.clock import SystemClock
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, TenantSuspended, Unavailable
from core.ids import uuid7
from tenants import changes, key_store
from tenants import keys as tenant_keys
from tenants.changes import CHANNEL, announce, prune_changes
from tenants.key_format import ALPHABET, checksum, hash_key, new_key
from tenants.keys import KeyRing
from tenants.principal import NO_LIMITS, Limits
from tenants.resolve import TEST_LIMITS
from tests.support.clock import ManualClock
from tests.support.ports import free_port
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation
from tests.support.waiting import until

NEVER_S = 3600.0


@asynccontextmanager
async def ring(
    database: Database, redis: Redis | None = None, **options: float | int | ManualClock
) -> AsyncIterator[KeyRing]:
    clock = options.pop("clock", None) or SystemClock()
    keys = KeyRing(database, database, redis, PEPPER, clock, **options)  # type: ignore[arg-type]  # numbers of the right kind
    await keys.start()
    try:
        yield keys
    finally:
        await keys.close()


class Queries:
    """Counts the statements that a database executes."""

    def __init__(self, database: Database) -> None:
        self.statements: list[str] = []
        event.listen(database.engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, conn: object, cursor: object, statement: str, *rest: object) -> None:
        self.statements.append(statement)

    def on_keys(self) -> int:
        return sum("api_keys" in statement for statement in self.statements)


async def test_a_key_is_looked_up_once_and_then_cached(database: Database) -> None:
    acme = await make_organisation(database)
    await admin_limits.set_limits(
        database,
        ADMIN,
        tenant_id=acme.tenant_id,
        scope_kind="project",
        scope_id=acme.project_id,
        limits=Limits(requests_per_min=7),
    )
    async with ring(database) as keys:
        assert keys.authenticate_cached(acme.key) is None
        principal = await keys.authenticate(acme.key)
        queries = Queries(database)
        assert keys.authenticate_cached(acme.key) is principal
        assert await keys.authenticate(acme.key) is principal
        assert queries.on_keys() == 0
    assert (principal.key_id, principal.project_id, principal.tenant_id) == (
        acme.key_id,
        acme.project_id,
        acme.tenant_id,
    )
    assert (principal.tenant, principal.kind, principal.tier) == ("Acme", "live", "standard")
    assert principal.last4 == acme.key[-4:]
    assert principal.project_limits == Limits(requests_per_min=7)
    assert principal.key_limits == principal.tenant_limits == Limits()
    assert principal.allowed_models is None


async def test_a_look_up_that_waits_for_ever_is_answered_in_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await make_organisation(database)
    monkeypatch.setattr(tenant_keys, "LOOKUP_TIMEOUT_S", 0.05)
    async with ring(database) as keys:
        async with database.engine.begin() as owner:
            await owner.execute(text("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE"))
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(keys.authenticate(acme.key), 20)
        monkeypatch.setattr(tenant_keys, "LOOKUP_TIMEOUT_S", 60.0)
        assert (await keys.authenticate(acme.key)).key_id == acme.key_id


@pytest.mark.parametrize("raw", ["", "pen_live_x", "sk-123", "pen_live_" + "A" * 38, "\ud800", "x" * 100_000])
async def test_malformed_keys_are_refused_without_a_query(database: Database, raw: str) -> None:
    async with ring(database) as keys:
        queries = Queries(database)
        with pytest.raises(AuthenticationFailed, match="keys look like"):
            await keys.authenticate(raw)
        assert queries.on_keys() == 0


def made_up(kind: str = "live") -> str:
    """A key as anyone can write it: the right shape and checksum, and no tag. Keys of before the tag look the same."""
    body = f"pen_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(32))
    return body + checksum(body)


async def make_untagged(database: Database, acme: Organisation, kind: str = "live") -> str:
    """A key of `acme` as they were made before keys had a tag."""
    raw = made_up(kind)
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO api_keys (id, tenant_id, project_id, name, kind, hash, last4) "
                "VALUES (:id, :tenant, :project, 'old', :kind, :hash, :last4)"
            ),
            {
                "id": uuid7(),
                "tenant": acme.tenant_id,
                "project": acme.project_id,
                "kind": kind,
                "hash": hash_key(raw, PEPPER),
                "last4": raw[-4:],
            },
        )
    return raw


@pytest.mark.promise(29)
async def test_a_flood_of_made_up_keys_delays_no_cold_key(database: Database) -> None:
    real = [(await make_organisation(database, f"Org {number}")).key for number in range(7)]
    async with ring(database) as keys:
        queries = Queries(database)
        flood = [asyncio.create_task(keys.authenticate(made_up())) for _ in range(600)]
        found = await asyncio.gather(*(keys.authenticate(key) for key in real))
        refusals = await asyncio.gather(*flood, return_exceptions=True)
        assert queries.on_keys() == len(real), "no made-up key was looked up"
    assert [principal.tenant for principal in found] == [f"Org {number}" for number in range(7)]
    assert {type(refusal) for refusal in refusals} == {AuthenticationFailed}


async def test_keys_of_before_the_tag_go_on_working(database: Database) -> None:
    acme = await make_organisation(database)
    old = await make_untagged(database, acme)
    async with ring(database, poll_s=0.05) as keys:
        assert (await keys.authenticate(old)).tenant == "Acme"
        late = await make_untagged(database, acme)  # by a process of an earlier version

        async def accepted() -> bool:
            try:
                return bool(await keys.authenticate(late))
            except AuthenticationFailed:
                return False

        await until(accepted)


async def test_only_its_own_limits_hold_for_a_test_key(database: Database) -> None:
    acme = await make_organisation(database)
    await admin_limits.set_limits(
        database,
        ADMIN,
        tenant_id=acme.tenant_id,
        scope_kind="tenant",
        scope_id=acme.tenant_id,
        limits=Limits(requests_per_min=1),
    )
    made = await admin_keys.create_key(
        database,
        ADMIN,
        pepper=PEPPER,
        tenant_id=acme.tenant_id,
        project_id=acme.project_id,
        name="t",
        kind="test",
    )
    untagged = await make_untagged(database, acme, "test")
    async with ring(database) as keys:
        who = await keys.authenticate(made.secret)
        assert (who.kind, who.tenant_limits, who.project_limits) == ("test", NO_LIMITS, NO_LIMITS)
        assert who.key_limits == TEST_LIMITS
        assert (await keys.authenticate(untagged)).kind == "test"
    with pytest.raises(InvalidRequest, match="live or test"):
        await admin_keys.create_key(
            database,
            ADMIN,
            pepper=PEPPER,
            tenant_id=acme.tenant_id,
            project_id=acme.project_id,
            name="t",
            kind="x",
        )


async def test_an_unknown_key_is_looked_up_once(database: Database) -> None:
    raw = new_key("live", PEPPER)
    async with ring(database) as keys:
        queries = Queries(database)
        results = await asyncio.gather(*(keys.authenticate(raw) for _ in range(50)), return_exceptions=True)
        for _ in range(3):
            with pytest.raises(AuthenticationFailed) as caught:
                await keys.authenticate(raw)
            assert raw not in caught.value.message
            assert raw[-4:] not in caught.value.message
        assert queries.on_keys() == 1
    assert {type(result) for result in results} == {AuthenticationFailed}


async def test_an_admin_token_is_no_key(database: Database) -> None:
    async with ring(database) as keys:
        with pytest.raises(AuthenticationFailed):
            await keys.authenticate(new_key("admin", PEPPER))


async def revoke(database: Database, acme: Organisation) -> None:
    await admin_keys.revoke_key(database, ADMIN, key_id=acme.key_id)


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


async def test_without_postgresql_cached_keys_work_and_others_are_not_refused(
    database: Database, pg_url: str
) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    cut = Database(pg_url)
    async with ring(cut, poll_s=0.05) as keys:
        principal = await keys.authenticate(acme.key)
        unavailable = Database(f"postgresql://nobody:x@127.0.0.1:{free_port()}/nothing")
        keys._database, real = unavailable, keys._database  # the server goes away
        try:
            with pytest.raises(Unavailable) as caught:
                await keys.authenticate(other.key)
            assert caught.value.retry_after_s
            with pytest.raises(Unavailable):
                await keys.authenticate(new_key("live", PEPPER))
            assert await keys.authenticate(acme.key) == principal
        finally:
            keys._database = real
            await unavailable.close()
        assert (await keys.authenticate(other.key)).tenant == "Other"
    await cut.close()


async def test_a_frozen_database_gives_unavailable_and_a_flood_stays_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.keys.LOOKUP_TIMEOUT_S", 0.2)
    acme = await make_organisation(database)
    async with ring(database) as keys:
        async with database.engine.begin() as lock:
            await lock.execute(text("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE"))
            results = await asyncio.gather(
                *(keys.authenticate(new_key("live", PEPPER)) for _ in range(400)), return_exceptions=True
            )
            assert {type(result) for result in results} == {Unavailable}
            assert len(keys._lookups) <= 256
        await until(lambda: not keys._lookups)
        assert (await keys.authenticate(acme.key)).tenant == "Acme"


async def test_the_caches_are_bounded(database: Database) -> None:
    acme = await make_organisation(database)
    made_keys = [acme.key]
    for number in range(4):
        made = await admin_keys.create_key(
            database,
            ADMIN,
            pepper=PEPPER,
            tenant_id=acme.tenant_id,
            project_id=acme.project_id,
            name=f"key {number}",
        )
        made_keys.append(made.secret)
    async with ring(database, cache_size=3, refused_size=2) as keys:
        for _ in range(2):
            for secret in made_keys:
                await keys.authenticate(secret)
            for _ in range(5):
                with pytest.raises(AuthenticationFailed):
                    await keys.authenticate(new_key("live", PEPPER))
        assert len(keys._cache) == 5


async def test_last_use_is_written_in_batches_and_makes_no_change(database: Database) -> None:
    acme = await make_organisation(database)
    async with database.read() as connection:
        changes = await connection.scalar(text("SELECT count(*) FROM tenancy_changes"))
    async with ring(database, poll_s=0.05, flush_s=NEVER_S) as keys:
        queries = Queries(database)
        for _ in range(100):
            await keys.authenticate(acme.key)
        assert not any("last_used_at = greatest" in statement for statement in queries.statements)
    assert sum("last_used_at = greatest" in statement for statement in queries.statements) == 1
    view = await admin_keys.get_key(database, ADMIN, key_id=acme.key_id)
    assert view.last_used_at is not None
    async with database.system() as connection:
        await key_store.touch(connection, {acme.key_id: view.last_used_at - timedelta(days=1)})
    assert (await admin_keys.get_key(database, ADMIN, key_id=acme.key_id)).last_used_at == view.last_used_at
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM tenancy_changes")) == changes


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


@pytest.mark.promise(25)
async def test_the_raw_key_is_in_no_table_and_no_log(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    acme = await make_organisation(database)
    async with ring(database, poll_s=0.05) as keys:
        await keys.authenticate(acme.key)
        await revoke(database, acme)
        await until(lambda: keys.authenticate_cached(acme.key) is None)
        with pytest.raises(AuthenticationFailed):
            await keys.authenticate(acme.key)
    random_part = acme.key[len("pen_live_") : -4]
    async with database.engine.connect() as connection:
        tables = await connection.execute(
            text(
                "SELECT format('%I', relname) FROM pg_class"
                " WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
            )
        )
        names = list(tables.scalars())
        assert "api_keys" in names
        assert "audit_log" in names
        for name in names:
            rows = (await connection.execute(text(f"SELECT t::text FROM {name} t"))).scalars().all()
            assert not any(random_part in row or random_part.encode().hex() in row for row in rows), name
    assert random_part not in caplog.text
    created = admin_keys.CreatedKey(
        view=await admin_keys.get_key(database, ADMIN, key_id=acme.key_id), secret=acme.key
    )
    assert random_part not in repr(created)
