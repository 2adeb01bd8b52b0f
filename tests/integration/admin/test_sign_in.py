"""Passwords, sessions and tokens: guessing is throttled, and what ends a password ends them."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from admin import sessions, users
from admin.actor import Actor
from console.deps import Console
from console.sign_in import add_sign_in
from core.client_address import ClientAddresses
from core.db import Database
from core.errors import (
    AuthenticationFailed,
    Conflict,
    NotFound,
    PermissionDenied,
    RateLimited,
)
from core.settings import Settings
from tenants import logins
from tenants.admin_tokens import Opened
from tests.integration.admin.people import PASSWORD, console_session, is_open, person
from tests.support.tenancy import ADMIN, PEPPER, audit_actions, make_organisation


async def test_signing_in_gives_the_actor_with_its_role(database: Database) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_developer", acme.tenant_id)
    assert (actor.kind, actor.role, actor.tenant_id) == ("user", "tenant_developer", acme.tenant_id)
    assert (await audit_actions(database))[-1] == "user.sign_in"
    for email, password in (
        (actor.label, PASSWORD + "x"),
        (actor.label, ""),
        (actor.label, "x" * 100_000),
        (actor.label, "\ud800" * 20),
        ("nobody@example.com", PASSWORD),
        ("", ""),
        ("a\x00b", "a\x00b"),
        ("\ud800", "x"),
    ):
        assert await users.verify_login(database, email, password) is None
    assert await users.verify_login(database, f"  {actor.label.upper()} ", PASSWORD) == actor


async def test_guessing_is_throttled_even_in_parallel(database: Database) -> None:
    actor = await person(database, "platform_admin")
    waits: list[float] = []

    async def guess(address: str, password: str = "wrong password") -> Actor | str | None:
        try:
            return await users.verify_login(database, actor.label, password, address=address)
        except RateLimited as error:
            waits.append(error.retry_after_s or 0)
            return "throttled"

    results = await asyncio.gather(*(guess("192.0.2.7") for _ in range(12)))
    assert results.count(None) == logins.FAILURES_PER_EMAIL_AND_ADDRESS
    assert results.count("throttled") == 12 - logins.FAILURES_PER_EMAIL_AND_ADDRESS
    assert all(0 < wait <= logins.WINDOW.total_seconds() for wait in waits)
    # Not even the right password from there; from elsewhere it works, and clears the count of the address of mail.
    assert await guess("192.0.2.7", PASSWORD) == "throttled"
    assert await guess("192.0.2.8", PASSWORD) == actor
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE login_failures SET window_start = now() - interval '16 minutes'")
        )
    assert await guess("192.0.2.7", PASSWORD) == actor
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE login_failures SET window_start = now() - interval '16 minutes'")
        )
        await logins.prune(connection)
        assert await connection.scalar(text("SELECT count(*) FROM login_failures")) == 0


async def test_the_console_counts_the_network_of_an_ipv6_client(database: Database) -> None:
    actor = await person(database, "platform_admin")
    app = FastAPI()
    console = SimpleNamespace(
        database=database, settings=Settings(), addresses=ClientAddresses("10.0.0.0/8"), key_pepper=PEPPER
    )
    add_sign_in(app, cast(Console, console))

    async def attempt(peer: str, forwarded: str) -> int:
        transport = httpx.ASGITransport(app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://console") as browser:
            form, headers = {"email": actor.label, "password": "a guess"}, {"x-forwarded-for": forwarded}
            return (await browser.post("/sign-in", data=form, headers=headers)).status_code

    allowed = logins.FAILURES_PER_EMAIL_AND_ADDRESS
    rotated = [await attempt("10.0.0.1", f"2001:db8:1:2::{n}") for n in range(allowed + 1)]
    assert rotated == [401] * allowed + [429]
    made_up = [await attempt("203.0.113.9", f"198.51.100.{n}") for n in range(allowed + 1)]
    assert made_up == [401] * allowed + [429], "a client that is no trusted proxy names no other address"
    assert await attempt("10.0.0.1", "2001:db8:1:3::1") == 401


async def test_passwords_are_argon2id_and_in_no_log_of_ours(database: Database) -> None:
    await person(database, "finance")
    async with database.read() as connection:
        (stored,) = (await connection.execute(text("SELECT password_hash FROM users"))).scalars()
        assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
        log = (await connection.execute(text("SELECT a::text FROM audit_log a"))).scalars().all()
    assert not any(PASSWORD in row or "argon2" in row for row in log)


async def test_a_weaker_hash_is_renewed_at_sign_in(database: Database) -> None:
    from argon2 import PasswordHasher

    actor = await person(database, "finance")
    weak = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1).hash(PASSWORD)
    async with database.system() as connection:
        await connection.execute(text("UPDATE users SET password_hash = :hash"), {"hash": weak})
    assert await users.verify_login(database, actor.label, PASSWORD) == actor
    async with database.read() as connection:
        assert "m=19456" in (await connection.scalar(text("SELECT password_hash FROM users")))


async def test_a_disabled_person_is_out_at_once(database: Database) -> None:
    actor = await person(database, "finance")
    made = await users.create_admin_token(
        database, ADMIN, pepper=PEPPER, user_id=UUID(actor.id), name="token"
    )
    assert (await users.authenticate_token(database, made.secret, pepper=PEPPER)).id == actor.id
    await users.disable_user(database, ADMIN, user_id=UUID(actor.id))
    assert await users.verify_login(database, actor.label, PASSWORD) is None
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, made.secret, pepper=PEPPER)


async def test_a_token_is_hashed_and_dies_when_revoked(database: Database) -> None:
    actor = await person(database, "platform_admin")
    made = await users.create_admin_token(database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="mine")
    assert made.secret not in repr(made)
    async with database.read() as connection:
        for table in ("admin_tokens", "audit_log"):
            rows = (await connection.execute(text(f"SELECT t::text FROM {table} t"))).scalars().all()
            assert not any(made.secret in row or made.secret.encode().hex() in row for row in rows)
    as_token = await users.authenticate_token(database, made.secret, pepper=PEPPER)
    assert (as_token.kind, as_token.id, as_token.role) == ("token", actor.id, "platform_admin")
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, made.secret, pepper=b"another pepper")
    await users.revoke_admin_token(database, actor, token_id=made.view.id)
    with pytest.raises(Conflict):
        await users.revoke_admin_token(database, actor, token_id=made.view.id)
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, made.secret, pepper=PEPPER)


@pytest.mark.promise(27)
async def test_nobody_makes_a_token_that_acts_as_another(database: Database) -> None:
    acme = await make_organisation(database)
    boss, colleague = await person(database, "platform_admin"), await person(database, "platform_admin")
    owner = await person(database, "tenant_owner", acme.tenant_id)
    developer = await person(database, "tenant_developer", acme.tenant_id)
    for actor, target in ((boss, colleague), (boss, owner), (owner, developer), (developer, owner)):
        with pytest.raises(PermissionDenied):
            await users.create_admin_token(
                database, actor, pepper=PEPPER, user_id=UUID(target.id), name="theirs"
            )
    with pytest.raises(NotFound):
        await users.create_admin_token(database, owner, pepper=PEPPER, user_id=UUID(boss.id), name="up")


async def test_one_changes_ones_own_password_knowing_the_old(database: Database) -> None:
    actor = await person(database, "finance")
    as_admin = Actor(actor.kind, actor.id, actor.label, "platform_admin")
    with pytest.raises(AuthenticationFailed):
        await users.change_password(database, actor, current="wrong password", new="another password")
    with pytest.raises(PermissionDenied):
        await users.reset_password(database, as_admin, user_id=UUID(actor.id), password=PASSWORD)
    await users.change_password(database, actor, current=PASSWORD, new="another password")
    assert await users.verify_login(database, actor.label, PASSWORD) is None
    assert await users.verify_login(database, actor.label, "another password") == actor


async def test_a_new_password_ends_sessions_and_tokens_of_before(database: Database) -> None:
    actor = await person(database, "finance")
    opened = await console_session(database, actor)
    token = await users.create_admin_token(
        database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="script"
    )
    assert await is_open(database, opened)
    await users.change_password(database, actor, current=PASSWORD, new="another password")
    assert not await is_open(database, opened)
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, token.secret, pepper=PEPPER)


async def test_a_password_that_another_person_sets_ends_sessions_and_tokens_of_a_member(
    database: Database,
) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_developer", acme.tenant_id)
    opened = await console_session(database, actor)
    token = await users.create_admin_token(
        database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="script"
    )
    await users.reset_password(database, ADMIN, user_id=UUID(actor.id), password="another password")
    assert not await is_open(database, opened)
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, token.secret, pepper=PEPPER)


async def test_all_own_sessions_end_and_lasting_tokens_stay(database: Database) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_viewer", acme.tenant_id)
    user_id, opened = UUID(actor.id), await console_session(database, actor)
    token = await users.create_admin_token(database, actor, pepper=PEPPER, user_id=user_id, name="script")
    session = await sessions.open_session(
        database, pepper=PEPPER, email=actor.label, password=PASSWORD, opened=Opened("192.0.2.1", "curl")
    )
    assert await is_open(database, opened)
    assert await sessions.end_sessions(database, actor) == 2
    assert not await is_open(database, opened), "those of the console, too"
    with pytest.raises(AuthenticationFailed):
        await users.authenticate_token(database, session.secret, pepper=PEPPER)
    assert (await users.authenticate_token(database, token.secret, pepper=PEPPER)).id == actor.id
