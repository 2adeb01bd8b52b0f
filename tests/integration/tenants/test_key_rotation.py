"""A rotated key: both secrets for the overlap, one key id, and a revocation that ends both."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

import pytest
from sqlalchemy import text

from admin import keys as admin_keys
from core.db import Database
from core.errors import AuthenticationFailed
from tenants import key_store
from tenants.key_format import hash_key
from tenants.resolve import Admission, Refusal, resolve_key
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation, member

HOUR = timedelta(hours=1)


async def verdict(database: Database, secret: str, after: timedelta = timedelta(0)) -> Admission | Refusal:
    async with database.system() as connection:
        now = datetime.now(UTC) + after
        return await resolve_key(connection, hash_key(secret, PEPPER), PEPPER, now)


async def rotated(database: Database, acme: Organisation, overlap: timedelta = HOUR) -> str:
    actor = member(acme.tenant_id, "tenant_developer")
    made = await admin_keys.rotate_key(database, actor, pepper=PEPPER, key_id=acme.key_id, overlap=overlap)
    return made.secret


async def test_both_secrets_work_for_the_overlap_under_one_id(database: Database) -> None:
    acme = await make_organisation(database)
    fresh = await rotated(database, acme)
    old, new = await verdict(database, acme.key), await verdict(database, fresh)
    assert isinstance(old, Admission)
    assert isinstance(new, Admission)
    assert old.principal == new.principal
    assert new.expires_at is None
    assert old.at(datetime.now(UTC)) is not None
    assert old.at(datetime.now(UTC) + 2 * HOUR) is None
    late = await verdict(database, acme.key, after=2 * HOUR)
    assert isinstance(late, Refusal)
    with pytest.raises(AuthenticationFailed) as refused:
        raise late.error()
    assert refused.value.code == "api_key_rotated"
    assert isinstance(await verdict(database, fresh, after=2 * HOUR), Admission)


async def test_another_rotation_or_none_overlap_ends_the_older_secret(database: Database) -> None:
    acme = await make_organisation(database)
    second = await rotated(database, acme)
    third = await rotated(database, acme, timedelta(0))
    assert isinstance(await verdict(database, acme.key), Refusal)
    assert isinstance(await verdict(database, second), Refusal)
    assert isinstance(await verdict(database, third), Admission)


async def test_a_revocation_ends_both_secrets_and_a_leaked_old_one_is_found(database: Database) -> None:
    acme = await make_organisation(database)
    fresh = await rotated(database, acme)
    found = await admin_keys.find_key(database, ADMIN, pepper=PEPPER, raw=acme.key)
    assert found.id == acme.key_id
    await admin_keys.revoke_key(database, ADMIN, key_id=acme.key_id)
    for secret in (acme.key, fresh):
        assert await verdict(database, secret) == Refusal("revoked", acme.key_id)


async def test_both_hashes_of_a_key_from_before_tags_are_known(database: Database) -> None:
    acme = await make_organisation(database)
    async with database.system() as connection:
        await connection.execute(text("UPDATE api_keys SET tagged = false"))
    fresh = await rotated(database, acme)
    async with database.system() as connection:
        known = await key_store.untagged_hashes(connection)
    assert set(known) == {hash_key(acme.key, PEPPER), hash_key(fresh, PEPPER)}


async def test_restrictions_are_in_the_principal(database: Database) -> None:
    acme = await make_organisation(database)
    changes = {"networks": ["203.0.113.0/24"], "scopes": ["models"], "regions": ["NYC2"], "gpus": ["B300"]}
    await admin_keys.update_key(database, member(acme.tenant_id), key_id=acme.key_id, changes=changes)
    found = await verdict(database, acme.key)
    assert isinstance(found, Admission)
    assert found.principal.networks == (ip_network("203.0.113.0/24"),)
    assert found.principal.scopes == {"models"}
    assert (found.principal.regions, found.principal.gpus) == (("nyc2",), ("b300",))
