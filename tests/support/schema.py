"""A database's schema as text, for comparisons, and databases of one test's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.support.services import Services

_SCHEMA = """
WITH tables AS (
    SELECT c.* FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
        AND NOT (c.relispartition AND c.relname ~ '_[0-9]{4}_[0-9]{2}$'))
SELECT 'function ' || p.oid::regprocedure AS object, pg_get_functiondef(p.oid) || coalesce((
        SELECT string_agg(a.grantee::regrole || '=' || a.privilege_type, ',' ORDER BY a.grantee)
        FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a), '') AS definition
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.pronamespace = 'public'::regnamespace AND l.lanname IN ('sql', 'plpgsql')
UNION ALL
SELECT 'view ' || relname, concat_ws(' ', pg_get_viewdef(oid), reloptions::text)
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v'
UNION ALL
SELECT 'trigger ' || t.tgname || ' on ' || c.relname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM pg_trigger t JOIN tables c ON c.oid = t.tgrelid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'table ' || relname, concat_ws(' ', relkind, relrowsecurity, relforcerowsecurity, relispartition) FROM tables
UNION ALL
SELECT 'privileges ' || c.relname, string_agg(
        concat_ws(' ', x.attribute, x.grantee::regrole, x.privilege_type), ', '
        ORDER BY x.attribute, x.grantee::regrole::text, x.privilege_type)
    FROM pg_class c CROSS JOIN LATERAL (
        SELECT '' AS attribute, grantee, privilege_type FROM aclexplode(c.relacl)
        UNION ALL SELECT a.attname, e.grantee, e.privilege_type FROM pg_attribute a, aclexplode(a.attacl) e
            WHERE a.attrelid = c.oid) x
    WHERE c.relnamespace = 'public'::regnamespace
        AND NOT (c.relispartition AND c.relname ~ '_[0-9]{4}_[0-9]{2}$') GROUP BY c.relname
UNION ALL
SELECT 'column ' || c.relname || '.' || a.attname, concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod),
        a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, pg_get_expr(d.adbin, d.adrelid))
    FROM tables c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT 'constraint ' || o.conname || ' on ' || c.relname, pg_get_constraintdef(o.oid)
    FROM pg_constraint o JOIN tables c ON c.oid = o.conrelid
UNION ALL
SELECT 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid)
    FROM pg_index i JOIN tables c ON c.oid = i.indrelid
UNION ALL
SELECT 'policy ' || p.polname || ' on ' || c.relname, concat_ws(' ', p.polcmd, p.polroles::regrole[],
        pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_policy p JOIN tables c ON c.oid = p.polrelid
UNION ALL
SELECT 'enum ' || t.typname, string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder)
    FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid GROUP BY t.typname
UNION ALL
SELECT 'sequence ' || sequencename, concat_ws(' ', data_type, start_value, increment_by, max_value)
    FROM pg_sequences WHERE schemaname = 'public'
UNION ALL
SELECT 'default privileges', string_agg(concat_ws(' ', defaclobjtype, defaclacl), ', ') FROM pg_default_acl
"""


async def schema_of(connection: "asyncpg.Connection[asyncpg.Record]") -> dict[str, str]:
    """Every object of the schema `public` and its definition, without the partitions of single months."""
    return {row["object"]: row["definition"] for row in await connection.fetch(_SCHEMA)}


@asynccontextmanager
async def own_database(services: Services, purpose: str) -> AsyncIterator[str]:
    """The URL of a new, empty database beside the worker's own, dropped at the end."""
    name = f"{services.database}_{purpose}"
    server = await asyncpg.connect(services.postgres_url)
    try:
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.execute(f"CREATE DATABASE {name}")
        yield services.url(name)
    finally:
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await server.close()
