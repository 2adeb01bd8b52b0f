"""KeyRing with a real PostgreSQL and Redis: look-ups, cache and outages."""

import asyncio
import logging
import secrets
from datetime import timedelta

import pytest
from sqlalchemy import event, text

from admin import keys as admin_keys
from admin import limits as admin_limits
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, Unavailable
from core.ids import uuid7
from tenants import key_store
from tenants import keys as tenant_keys
from tenants.key_format import ALPHABET, checksum, hash_key, new_key
from tenants.principal import NO_LIMITS, Limits
from tenants.resolve import TEST_LIMITS
from tests.integration.tenants.support import NEVER_S, revoke, ring
from tests.support.ports import free_port
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation
from tests.support.waiting import until


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
                    await asyncio.wait_for(keys.authenticate(acme.key), 60)
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
