"""Row-level security: what a tenant's own session can read and write with any SQL."""

from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from core.db import Database
from tests.support.tenancy import Organisation, make_organisation

SCOPED = ("tenants", "projects", "api_keys", "limits", "memberships", "audit_log")


@pytest.fixture
async def two(database: Database) -> tuple[Organisation, Organisation]:
    mine, other = await make_organisation(database, "Mine"), await make_organisation(database, "Other")
    async with database.system() as connection:
        for one in (mine, other):
            await connection.execute(
                text(
                    "INSERT INTO limits (scope_kind, scope_id, tenant_id, concurrency) VALUES ('tenant', :t, :t, 5)"
                ),
                {"t": one.tenant_id},
            )
            user_id = uuid4()
            await connection.execute(
                text("INSERT INTO users (id, email, password_hash) VALUES (:u, :e, 'x')"),
                {"u": user_id, "e": f"{user_id}@example.com"},
            )
            await connection.execute(
                text("INSERT INTO memberships (user_id, tenant_id, role) VALUES (:u, :t, 'tenant_owner')"),
                {"u": user_id, "t": one.tenant_id},
            )
    return mine, other


@pytest.mark.promise(23)
@pytest.mark.parametrize("table", SCOPED)
async def test_a_tenant_session_sees_its_own_rows_only(
    database: Database, two: tuple[Organisation, Organisation], table: str
) -> None:
    mine, _ = two
    column = "id" if table == "tenants" else "tenant_id"
    async with database.read(mine.tenant_id) as connection:
        seen = set((await connection.execute(text(f"SELECT {column} FROM {table}"))).scalars())
    async with database.read() as connection:
        everything = set((await connection.execute(text(f"SELECT {column} FROM {table}"))).scalars())
    assert seen == {mine.tenant_id}
    assert len(everything) == 2


@pytest.mark.promise(23)
@pytest.mark.parametrize("table", SCOPED)
async def test_a_session_without_a_tenant_sees_nothing(
    database: Database, two: tuple[Organisation, Organisation], table: str
) -> None:
    column = "id" if table == "tenants" else "tenant_id"
    async with database.engine.begin() as connection:
        await connection.execute(text("SET LOCAL ROLE penstock_app"))
        assert (await connection.execute(text(f"SELECT {column} FROM {table}"))).all() == []


@pytest.mark.promise(23, 27)
async def test_a_tenant_session_cannot_write_rows_of_another(
    database: Database, two: tuple[Organisation, Organisation]
) -> None:
    mine, other = two
    forbidden = (
        ("INSERT INTO projects (id, tenant_id, name) VALUES (:id, :other, 'x')", "row-level security"),
        (
            "INSERT INTO limits (scope_kind, scope_id, tenant_id, concurrency) VALUES ('project', :id, :other, 1)",
            "row-level security",
        ),
        (
            "INSERT INTO audit_log (id, actor_kind, actor_id, actor_label, action, tenant_id, object_kind, object_id)"
            " VALUES (:id, 'user', 'x', 'x', 'x', :other, 'x', 'x')",
            "row-level security",
        ),
        # The composite foreign key refuses a key of one tenant in the project of another.
        (
            "INSERT INTO api_keys (id, tenant_id, project_id, name, kind, hash, last4)"
            " VALUES (:id, :mine, :other_project, 'x', 'live', sha256('x'), 'abcd')",
            "foreign key",
        ),
        ("UPDATE limits SET tenant_id = :other", "row-level security"),
        ("UPDATE projects SET tenant_id = :other", "permission denied"),
        ("UPDATE api_keys SET hash = sha256('mine')", "permission denied"),
        ("UPDATE tenants SET status = 'active'", "permission denied"),
        ("UPDATE tenants SET tier = 'priority'", "permission denied"),
        ("UPDATE memberships SET role = 'tenant_owner'", "permission denied"),
        ("SELECT hash FROM api_keys", "permission denied"),
        ("SELECT password_hash FROM users", "permission denied"),
        ("SELECT hash FROM admin_tokens", "permission denied"),
        ("DELETE FROM api_keys", "permission denied"),
        (
            "INSERT INTO tenancy_changes (kind, tenant_id, object_id, xact) VALUES ('key', :mine, :id, 1)",
            "denied",
        ),
    )
    values = {
        "id": uuid4(),
        "mine": mine.tenant_id,
        "other": other.tenant_id,
        "other_project": other.project_id,
    }
    for statement, complaint in forbidden:
        wanted = {name: value for name, value in values.items() if f":{name}" in statement}
        with pytest.raises(DBAPIError, match=complaint):
            async with database.tenant(mine.tenant_id) as connection:
                await connection.execute(text(statement), wanted)


@pytest.mark.promise(23)
async def test_updates_of_a_tenant_session_do_not_reach_another(
    database: Database, two: tuple[Organisation, Organisation]
) -> None:
    mine, other = two
    async with database.tenant(mine.tenant_id) as connection:
        result = await connection.execute(
            text("UPDATE api_keys SET status = 'revoked' WHERE id = :key"), {"key": other.key_id}
        )
        assert result.rowcount == 0
        result = await connection.execute(text("UPDATE tenants SET name = 'renamed'"))
        assert result.rowcount == 1
    async with database.read(other.tenant_id) as connection:
        assert await connection.scalar(text("SELECT name FROM tenants")) == "Other"


@pytest.mark.parametrize("session", ["tenant", "system", "owner"])
@pytest.mark.parametrize("statement", ["UPDATE audit_log SET action = 'x'", "DELETE FROM audit_log"])
async def test_the_audit_log_cannot_be_changed(
    database: Database, two: tuple[Organisation, Organisation], session: str, statement: str
) -> None:
    mine, _ = two
    sessions = {
        "tenant": lambda: database.tenant(mine.tenant_id),
        "system": database.system,
        "owner": database.engine.begin,
    }
    with pytest.raises(DBAPIError, match=r"permission denied|append-only"):
        async with sessions[session]() as connection:
            await connection.execute(text(statement))
