"""Tokens end and have scopes, and what a token may not do holds over REST and in commands."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from admin import invitations, keys, sessions, users
from admin.actor import Actor
from admin.logins import TokenLives, authenticate_token, check_still_signed_in, create_admin_token, sign_in
from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from api.customer import members
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, PermissionDenied
from tenants.admin_tokens import NOT_KNOWN, insert_token, is_live
from tests.integration.admin.people import PASSWORD, console_session, is_open, person
from tests.support.tenancy import ADMIN, PEPPER, make_organisation
from tests.support.waiting import until


async def token_of(database: Database, actor: Actor, scope: str, days: int | None = None) -> str:
    made = await create_admin_token(
        database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="job", scopes=[scope], days=days
    )
    return made.secret


def app_of(database: Database) -> FastAPI:
    app = FastAPI()
    api_app._install_error_handlers(app)
    deps = AdminDeps(database=database, redis=None, pepper=PEPPER)
    for router in (*members.routers(deps), *admin_routers(deps)):
        app.include_router(router)
    return app


async def test_a_token_ends_and_the_longest_life_is_the_operators(database: Database) -> None:
    actor = await person(database, "finance")
    lives = TokenLives(default=30, longest=60)
    made = await create_admin_token(
        database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="job", lives=lives
    )
    assert made.view.scopes == ("read", "write")
    assert made.view.expires_at - made.view.created_at == timedelta(days=30)
    for days in (0, 61):
        with pytest.raises(InvalidRequest, match="1 to 60 days"):
            await create_admin_token(
                database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="job", days=days, lives=lives
            )
    assert (await authenticate_token(database, made.secret, pepper=PEPPER)).id == actor.id
    async with database.system() as connection:
        await connection.execute(text("UPDATE admin_tokens SET expires_at = now()"))
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, made.secret, pepper=PEPPER)


@pytest.mark.parametrize("role", ["platform_admin", "tenant_owner"])
async def test_a_token_that_may_only_read_changes_nothing_on_any_route(database: Database, role: str) -> None:
    acme = await make_organisation(database)
    platform = role == "platform_admin"
    actor = await person(database, role, None if platform else acme.tenant_id)  # type: ignore[arg-type]
    headers = {"authorization": f"Bearer {await token_of(database, actor, 'read')}"}
    app = app_of(database)
    prefix = "/admin/v1/" if platform else "/v1/organization"
    routes = [
        (method, path)
        for path, methods in app.openapi()["paths"].items()
        if path.startswith(prefix)
        for method in methods
        if method != "get"
    ]
    assert len(routes) > 20
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        for method, path in routes:
            parts = [str(uuid4()) if part.startswith("{") else part for part in path.split("/")]
            answer = await client.request(method.upper(), "/".join(parts), json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "token_scope"), (
                method,
                path,
            )
        read = await client.get(f"/admin/v1/users/{actor.id}" if platform else "/v1/organization")
        assert read.status_code == 200


async def test_a_token_makes_no_access_unless_it_has_that_scope(database: Database) -> None:
    acme = await make_organisation(database)
    owner = await person(database, "tenant_owner", acme.tenant_id)
    other = await person(database, "tenant_viewer", acme.tenant_id)
    writer = await authenticate_token(database, await token_of(database, owner, "write"), pepper=PEPPER)
    key = await keys.create_key(
        database, writer, pepper=PEPPER, tenant_id=acme.tenant_id, project_id=acme.project_id, name="job"
    )
    assert key.secret
    at_others = {"user_id": UUID(other.id)}
    mail = f"{uuid4().hex}@example.com"
    acts = (
        lambda: create_admin_token(database, writer, pepper=PEPPER, user_id=UUID(owner.id), name="more"),
        lambda: users.create_user(
            database, writer, email=mail, password=PASSWORD, role="tenant_owner", tenant_id=acme.tenant_id
        ),
        lambda: users.set_role(database, writer, role="tenant_owner", **at_others),
        lambda: users.reset_password(database, writer, password="another password", **at_others),
        lambda: users.disable_user(database, writer, **at_others),
        lambda: users.change_password(database, writer, current=PASSWORD, new="another password"),
        lambda: invitations.invite(
            database,
            writer,
            pepper=PEPPER,
            smtp=None,
            tenant_id=acme.tenant_id,
            email=mail,
            role="tenant_viewer",
        ),
    )
    for act in acts:
        with pytest.raises(PermissionDenied) as refused:
            await act()  # type: ignore[no-untyped-call]
        assert refused.value.code == "token_scope"
    for each in (owner, other):
        assert await users.verify_login(database, each.label, PASSWORD) == each
    assert await users.verify_login(database, mail, PASSWORD) is None


async def test_what_a_token_makes_ends_no_later_than_the_token(database: Database) -> None:
    actor = await person(database, "finance")
    maker = await authenticate_token(
        database, await token_of(database, actor, "access", days=2), pepper=PEPPER
    )
    made = await create_admin_token(
        database, maker, pepper=PEPPER, user_id=UUID(actor.id), name="narrow", scopes=["read"], days=30
    )
    assert maker.token is not None
    assert made.view.expires_at == maker.token.expires_at
    assert made.view.scopes == ("read",)


async def test_scopes_are_known_names(database: Database) -> None:
    actor = await person(database, "finance")
    for scopes in ([], ["root"], ["read", "root"]):
        with pytest.raises(InvalidRequest, match="read, write, access"):
            await create_admin_token(
                database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="job", scopes=scopes
            )


async def test_a_new_role_and_disabling_end_sessions_and_tokens_for_good(database: Database) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_developer", acme.tenant_id)
    user_id = UUID(actor.id)
    for act in (
        lambda: users.set_role(database, ADMIN, user_id=user_id, role="tenant_viewer"),
        lambda: users.disable_user(database, ADMIN, user_id=user_id),
    ):
        secret, opened = await token_of(database, actor, "read"), await console_session(database, actor)
        assert await is_open(database, opened)
        await act()  # type: ignore[no-untyped-call]
        assert not await is_open(database, opened)
        with pytest.raises(AuthenticationFailed):
            await authenticate_token(database, secret, pepper=PEPPER)
    await users.enable_user(database, ADMIN, user_id=user_id)
    assert not await is_open(database, opened)
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, secret, pepper=PEPPER)


async def test_when_a_token_was_used_last_is_shown(database: Database) -> None:
    actor = await person(database, "finance")
    secret = await token_of(database, actor, "read")
    async with database.system() as connection:
        await connection.execute(text("UPDATE admin_tokens SET created_at = now() - interval '1 hour'"))
    [before] = await users.list_admin_tokens(database, actor, user_id=UUID(actor.id))
    assert before.last_used_at is None
    await authenticate_token(database, secret, pepper=PEPPER)
    [after] = await users.list_admin_tokens(database, actor, user_id=UUID(actor.id))
    assert after.last_used_at is not None
    assert abs(after.last_used_at - datetime.now(UTC)) < timedelta(minutes=5)


async def test_a_token_made_while_access_ends_does_not_outlive_it(database: Database) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_developer", acme.tenant_id)
    user_id = UUID(actor.id)

    async def waits() -> bool:
        async with database.engine.connect() as connection:  # a role sees the waits of its own sessions alone
            count = await connection.scalar(
                text(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND datname = current_database()"
                )
            )
        return bool(count)

    acts = (
        lambda: users.set_role(database, ADMIN, user_id=user_id, role="tenant_viewer"),
        lambda: users.change_password(database, actor, current=PASSWORD, new="another password"),
        lambda: users.disable_user(database, ADMIN, user_id=user_id),
    )
    for act in acts:
        maker = await authenticate_token(database, await token_of(database, actor, "access"), pepper=PEPPER)
        async with database.system() as connection:  # POST /tokens, before it commits
            await check_still_signed_in(connection, maker, user_id)
            ends = asyncio.create_task(act())  # type: ignore[no-untyped-call]
            await until(waits)
            made = await insert_token(
                connection,
                user_id,
                uuid4(),
                name="late",
                token_hash=uuid4().bytes,
                created_at=datetime.now(UTC),
                expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        await ends
        async with database.read() as connection:
            assert not await is_live(connection, made.id)
        with pytest.raises(AuthenticationFailed) as refused:  # POST /tokens, after the token was read
            await create_admin_token(database, maker, pepper=PEPPER, user_id=user_id, name="later")
        assert refused.value.code == "access_ended"


async def test_a_sign_in_in_flight_opens_nothing_once_the_password_has_changed(database: Database) -> None:
    actor = await person(database, "finance")
    before = await sign_in(database, actor.label, PASSWORD)
    assert before is not None
    await users.change_password(database, actor, current=PASSWORD, new="another password")
    with pytest.raises(AuthenticationFailed):
        await sessions.open_console_session(
            database, before, token_hash=b"late", opened=NOT_KNOWN, now=datetime.now(UTC)
        )
    with pytest.raises(AuthenticationFailed):
        await create_admin_token(
            database,
            actor,
            pepper=PEPPER,
            user_id=UUID(actor.id),
            name="late",
            signed_in=before,
        )


async def test_a_token_ends_the_access_of_others_with_that_scope_alone(database: Database) -> None:
    acme = await make_organisation(database)
    owner = await person(database, "tenant_owner", acme.tenant_id)
    other = await person(database, "tenant_viewer", acme.tenant_id)
    writer = await authenticate_token(database, await token_of(database, owner, "write"), pepper=PEPPER)
    await token_of(database, owner, "read")
    await console_session(database, owner)
    await console_session(database, other)
    [theirs] = await sessions.list_sessions(database, owner, user_id=UUID(other.id))
    [own] = await sessions.list_sessions(database, owner, user_id=UUID(owner.id))
    assert writer.token is not None
    tokens = await users.list_admin_tokens(database, owner, user_id=UUID(owner.id))
    [second] = [each for each in tokens if each.id != writer.token.id]
    for act in (
        lambda: sessions.revoke_session(database, writer, session_id=theirs.id),
        lambda: sessions.end_sessions(database, writer, user_id=UUID(other.id)),
        lambda: users.revoke_admin_token(database, writer, token_id=second.id),
    ):
        with pytest.raises(PermissionDenied) as refused:
            await act()  # type: ignore[no-untyped-call]
        assert refused.value.code == "token_scope"
    await sessions.revoke_session(database, writer, session_id=own.id)
    assert await sessions.end_sessions(database, writer) == 0
    await users.revoke_admin_token(database, writer, token_id=writer.token.id)


async def test_a_token_without_access_learns_nothing_about_passwords(database: Database) -> None:
    actor = await person(database, "finance")
    writer = await authenticate_token(database, await token_of(database, actor, "write"), pepper=PEPPER)
    with pytest.raises(PermissionDenied) as refused:
        await users.change_password(database, writer, current="a wrong one", new="another password")
    assert refused.value.code == "token_scope"
