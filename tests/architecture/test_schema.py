"""The tables that the packages declare are those that the migrations make."""

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from core.db import Database
from core.services import alembic_config, migrate
from migrations.support import load_tables, split_statements


def _partitions(connection: Connection) -> set[str]:
    """Partitions are made by jobs as months pass; only their parents are declared."""
    return set(connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition")))


def _differences(connection: Connection) -> list[Any]:
    partitions = _partitions(connection)

    def declared(name: str | None, kind: str, parents: Any) -> bool:
        return not (kind == "table" and name in partitions)

    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "include_name": declared, "version_table": "alembic_version"}
    )
    return list(compare_metadata(context, load_tables()))


async def test_declared_tables_equal_the_migrated_schema(database: Database) -> None:
    async with database.engine.connect() as connection:
        assert await connection.run_sync(_differences) == []


async def test_the_revisions_are_one_line_and_all_applied(database: Database) -> None:
    script = ScriptDirectory.from_config(alembic_config(database.url))
    assert len(script.get_heads()) == 1
    async with database.engine.connect() as connection:
        applied = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    assert applied == script.get_current_head()


async def test_migrating_again_does_nothing(database: Database) -> None:
    await migrate(database.url)


async def test_our_roles_own_nothing_and_cannot_log_in(database: Database) -> None:
    async with database.engine.connect() as connection:
        rows = await connection.execute(
            text(
                "SELECT rolname, rolcanlogin, rolsuper, rolbypassrls FROM pg_roles WHERE rolname LIKE 'penstock_%'"
            )
        )
        assert {tuple(row) for row in rows} == {
            ("penstock_app", False, False, False),
            ("penstock_system", False, False, False),
        }
        owned = await connection.scalar(
            text("SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) LIKE 'penstock_%'")
        )
        assert owned == 0


@pytest.mark.promise(23)
async def test_every_table_with_a_tenant_has_row_level_security(database: Database) -> None:
    async with database.engine.connect() as connection:
        bare = await connection.scalars(
            text(
                """
                SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
                WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                  AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
                  AND has_table_privilege('penstock_app', c.oid, 'SELECT')
                """
            )
        )
        assert list(bare) == []


def test_statements_are_cut_outside_of_quotes() -> None:
    sql = """
    CREATE FUNCTION f() RETURNS text AS $body$ BEGIN; RETURN 'a;b'; END $body$ LANGUAGE plpgsql; -- c; d
    INSERT INTO t VALUES (';', $1, 'it''s');
    SELECT $$;$$
    """
    cut = split_statements(sql)
    assert len(cut) == 3
    assert cut[0].startswith("CREATE FUNCTION")
    assert cut[2] == "SELECT $$;$$"
