"""The tables that the packages declare are those that the migrations make, and revisions that landed never change."""

import ast
from datetime import UTC, datetime, time
from hashlib import sha256
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from core.db import Database
from core.money import usd_to_pico
from core.services import MIGRATIONS, alembic_config, migrate
from migrations.support import load_tables, split_statements
from workers.catalog import load_catalog

BASELINE_SHA256 = "0438d254f997798ec43f3108ce28923b1cdf406ab9cf28ee74eb0a103097e11e"
REVISIONS_MAY_IMPORT = {"alembic", "pathlib", "sqlalchemy", "migrations.support"}


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


def test_the_baseline_is_frozen() -> None:
    """Databases that exist have run this text. A change of the schema is a new revision."""
    text_of_it = b"".join(path.read_bytes() for path in sorted((MIGRATIONS / "baseline").glob("*.sql")))
    assert sha256(text_of_it).hexdigest() == BASELINE_SHA256


def test_revisions_use_nothing_that_may_change() -> None:
    """A revision gives the same result in every later version: it knows no table, setting or file of the packages."""
    for path in (MIGRATIONS / "versions").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            else:
                continue
            assert names <= REVISIONS_MAY_IMPORT, f"{path.name} imports {names - REVISIONS_MAY_IMPORT}"


async def test_host_prices_of_the_catalog_are_in_a_new_database(database: Database) -> None:
    """A new price in the catalog needs a revision that inserts it, for new and old databases alike."""
    prices = load_catalog().host_prices
    async with database.read() as connection:
        rows = await connection.execute(text("SELECT * FROM host_prices"))
        assert {row.host_kind: (row.usd_pico_per_hour, row.effective_from, row.source) for row in rows} == {
            kind: (usd_to_pico(price.usd_per_hour), datetime.combine(price.date, time(), UTC), price.source)
            for kind, price in prices.items()
        }


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
