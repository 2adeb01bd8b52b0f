"""The SQL files and the database: equal after a migration, and a change of a file is applied alone."""

from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from core.db import Database
from migrations.repeatable import SqlFile, apply, parse_file, read_files

Apply = Callable[..., Awaitable[list[str]]]
PROBE = "billing/sql/probe.sql"


@pytest.fixture
def apply_files(database: Database) -> Apply:
    """Apply the files of the checkout and others, each given as path and text."""

    async def go(*others: tuple[str, str]) -> list[str]:
        files = read_files() + [parse_file(path, content) for path, content in others]
        async with database.engine.begin() as connection:
            return await connection.run_sync(apply, files)

    return go


async def ask(database: Database, query: str) -> list[tuple[object, ...]]:
    async with database.engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


def function(returns: str = "integer", takes: str = "p integer", body: str = "SELECT 1") -> str:
    return f"CREATE OR REPLACE FUNCTION probe({takes}) RETURNS {returns} LANGUAGE sql AS $$ {body} $$;\n"


async def probes(database: Database) -> list[tuple[object, ...]]:
    return await ask(
        database,
        "SELECT pg_get_function_arguments(oid), pg_get_function_result(oid), trim(prosrc) FROM pg_proc "
        "WHERE proname = 'probe'",
    )


async def test_the_database_holds_what_the_files_define_and_nothing_else(database: Database) -> None:
    """Each definition is made again from its file in another schema, and PostgreSQL's own print of both compared."""
    files = read_files()
    connection = await asyncpg.connect(database.url)
    try:
        await connection.execute("SET check_function_bodies = off; CREATE SCHEMA again")
        assert await _printed(connection, "public") == await _printed_again(connection, files)
        defined = {str(made) for file in files for made in file.objects}
        assert defined == {f"{kind} {name}" for kind, name in await connection.fetch(_ALL_OBJECTS)}, (
            "an object has no file, or a file's object is missing"
        )
    finally:
        await connection.close()


_ALL_OBJECTS = """
SELECT 'FUNCTION', proname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.pronamespace = 'public'::regnamespace AND l.lanname NOT IN ('c', 'internal')
UNION ALL SELECT 'VIEW', relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'm')
UNION ALL SELECT 'TRIGGER', t.tgname || ' ON ' || c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
"""


async def _printed(connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> dict[str, str]:
    """Functions and views of a schema as PostgreSQL prints them, and all triggers."""
    rows = await connection.fetch(
        "SELECT proname AS name, pg_get_functiondef(p.oid) AS printed FROM pg_proc p "
        "JOIN pg_language l ON l.oid = p.prolang "
        "WHERE pronamespace = $1::regnamespace AND lanname IN ('sql', 'plpgsql') "
        "UNION ALL SELECT relname, concat_ws(' ', pg_get_viewdef(oid), reloptions) FROM pg_class "
        "WHERE relnamespace = $1::regnamespace AND relkind = 'v' "
        "UNION ALL SELECT tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid) FROM pg_trigger "
        "WHERE NOT tgisinternal",
        schema,
    )
    return {row["name"]: row["printed"].replace(f"{schema}.", "public.") for row in rows}


async def _printed_again(
    connection: "asyncpg.Connection[asyncpg.Record]", files: list[SqlFile]
) -> dict[str, str]:
    for file in files:
        for made, statement in file.objects.items():
            schema = "public" if made.kind == "TRIGGER" else "again, public"
            await connection.execute(f"SET search_path = {schema}; {statement}")
    await connection.execute("SET search_path = public")
    return await _printed(connection, "again")


async def test_unchanged_files_are_not_applied(database: Database, apply_files: Apply) -> None:
    state = "SELECT path, sha256, applied_at FROM schema_sql_files ORDER BY path"
    written = "SELECT proname, xmin::text FROM pg_proc WHERE proname LIKE 'penstock%' ORDER BY proname"
    before = await ask(database, state), await ask(database, written)
    assert [row[:2] for row in before[0]] == sorted((file.path, file.sha256) for file in read_files())
    assert await apply_files() == []
    assert (await ask(database, state), await ask(database, written)) == before


async def test_a_changed_file_is_applied_alone(database: Database, apply_files: Apply) -> None:
    assert await apply_files((PROBE, function())) == [PROBE]
    assert await apply_files((PROBE, function())) == []
    assert await apply_files((PROBE, function(body="SELECT 2"))) == [PROBE]
    assert await probes(database) == [("p integer", "integer", "SELECT 2")]


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"takes": "p bigint"}, ("p bigint", "integer", "SELECT 1")),
        ({"takes": "p integer, q text"}, ("p integer, q text", "integer", "SELECT 1")),
        ({"takes": "q integer"}, ("q integer", "integer", "SELECT 1")),
        ({"returns": "text", "body": "SELECT 'a'"}, ("p integer", "text", "SELECT 'a'")),
    ],
)
async def test_a_changed_signature_replaces_the_function(
    database: Database, apply_files: Apply, changes: dict[str, str], left: tuple[str, ...]
) -> None:
    await apply_files((PROBE, function()))
    assert await apply_files((PROBE, function(**changes))) == [PROBE]
    assert await probes(database) == [left]


async def test_other_columns_replace_the_view(database: Database, apply_files: Apply) -> None:
    view = "CREATE OR REPLACE VIEW probe_view WITH (security_invoker = true) AS SELECT {};"
    await apply_files((PROBE, view.format("1 AS a")))
    await apply_files((PROBE, view.format("'x' AS b")))
    assert await ask(database, "SELECT b FROM probe_view") == [("x",)]


async def test_grants_are_renewed_with_their_file(database: Database, apply_files: Apply) -> None:
    system_only = (
        "REVOKE ALL ON FUNCTION probe FROM PUBLIC;\nGRANT EXECUTE ON FUNCTION probe TO penstock_system;"
    )
    view = "CREATE OR REPLACE VIEW probe_view AS SELECT 1 AS a;\n"
    may = (
        "SELECT has_function_privilege('penstock_app', 'probe(integer)', 'EXECUTE'), "
        "has_function_privilege('penstock_system', 'probe(integer)', 'EXECUTE'), "
        "has_table_privilege('penstock_app', 'probe_view', 'SELECT')"
    )
    content = function() + system_only + view
    await apply_files((PROBE, content))
    assert await ask(database, may) == [(False, True, False)]
    await apply_files((PROBE, content + "GRANT SELECT ON probe_view TO penstock_app;"))
    assert await ask(database, may) == [(False, True, True)]
    await apply_files((PROBE, function() + view))
    assert await ask(database, may) == [(True, True, False)]


TRIGGER = """
CREATE OR REPLACE FUNCTION probe_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE OR REPLACE TRIGGER probe BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION probe_trigger();
"""


async def test_what_no_file_defines_any_more_is_dropped(database: Database, apply_files: Apply) -> None:
    count = (
        "SELECT (SELECT count(*) FROM pg_proc WHERE proname LIKE 'probe%'), "
        "(SELECT count(*) FROM pg_class WHERE relname = 'probe_view'), "
        "(SELECT count(*) FROM pg_trigger WHERE tgname = 'probe')"
    )
    view = "CREATE OR REPLACE VIEW probe_view AS SELECT probe(1) AS a;"
    await apply_files((PROBE, function() + view + TRIGGER))
    assert await ask(database, count) == [(2, 1, 1)]
    await apply_files((PROBE, function() + view + TRIGGER.partition(";\nCREATE OR REPLACE TRIGGER")[0] + ";"))
    assert await ask(database, count) == [(2, 1, 0)]
    assert await apply_files() == []
    assert await ask(database, count) == [(0, 0, 0)]
    assert await ask(database, f"SELECT 1 FROM schema_sql_files WHERE path = '{PROBE}'") == []


async def test_what_moves_to_another_file_stays(database: Database, apply_files: Apply) -> None:
    await apply_files((PROBE, function() + TRIGGER))
    moved = "billing/sql/probe_moved.sql"
    assert await apply_files((moved, TRIGGER), (PROBE, function())) == [moved, PROBE]
    assert len(await probes(database)) == 1
    assert await apply_files((moved, TRIGGER + function())) == [moved]
    assert len(await probes(database)) == 1


async def test_what_a_revision_dropped_comes_back(database: Database, apply_files: Apply) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("DROP VIEW usage"))
        await connection.execute(text("DROP TRIGGER host_prices_keep ON host_prices"))
    assert await apply_files() == ["billing/economics/sql/host_prices.sql", "billing/usage/sql/usage.sql"]
    async with database.read() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM usage")) == 0


@pytest.mark.parametrize("body", ["SELECT no_such_column FROM tenants", "SELECT nothing()", "SELEC 1"])
async def test_a_body_that_cannot_work_stops_everything(
    database: Database, apply_files: Apply, body: str
) -> None:
    with pytest.raises(DBAPIError):
        await apply_files(("billing/sql/a.sql", TRIGGER), (PROBE, function(body=body)))
    assert await ask(database, "SELECT 1 FROM pg_proc WHERE proname LIKE 'probe%'") == []
    assert await ask(database, "SELECT 1 FROM schema_sql_files WHERE path LIKE 'billing/sql/%'") == []


async def test_files_may_need_each_other_in_any_order(database: Database, apply_files: Apply) -> None:
    caller = "CREATE OR REPLACE FUNCTION a_probe() RETURNS integer LANGUAGE sql AS $$ SELECT probe(1) $$;"
    await apply_files(("billing/sql/a.sql", caller), (PROBE, function()))
    assert await ask(database, "SELECT a_probe()") == [(1,)]
