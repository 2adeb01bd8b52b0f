"""A database whose clock can be set: months pass in a test while every statement runs as in production.

Billing takes its time from PostgreSQL. In a test database a schema `virtual` with its own `now()` and
`clock_timestamp()` is put before pg_catalog in the search path, and column defaults are pointed at it, so the product's
SQL runs unchanged on a clock that the test moves.
"""

from datetime import UTC, datetime

import asyncpg

_FUNCTIONS = """
CREATE SCHEMA virtual;
CREATE TABLE virtual.clock (ahead interval NOT NULL);
INSERT INTO virtual.clock VALUES ('0');
CREATE FUNCTION virtual.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + ahead FROM virtual.clock';
CREATE FUNCTION virtual.now() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT pg_catalog.now() + ahead FROM virtual.clock';
GRANT USAGE ON SCHEMA virtual TO PUBLIC;
GRANT SELECT ON virtual.clock TO PUBLIC;
"""
_DEFAULTS = """
SELECT format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', d.adrelid::regclass, a.attname,
    replace(replace(pg_get_expr(d.adbin, d.adrelid), 'clock_timestamp()', 'virtual.clock_timestamp()'),
        'now()', 'virtual.now()'))
FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_class c ON c.oid = d.adrelid
WHERE a.attgenerated = '' AND pg_get_expr(d.adbin, d.adrelid) ~ '(now|clock_timestamp)\\(\\)'
"""


class VirtualClock:
    """The clock of one test database."""

    def __init__(self, owner_url: str) -> None:
        self._url = owner_url

    async def install(self) -> None:
        """Put the clock in; connections made afterwards follow it."""
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(_FUNCTIONS)
            for row in await connection.fetch(_DEFAULTS):
                await connection.execute(row[0])
            name = await connection.fetchval("SELECT quote_ident(current_database())")
            await connection.execute(f"ALTER DATABASE {name} SET search_path = virtual, pg_catalog, public")
        finally:
            await connection.close()

    async def set(self, instant: datetime) -> None:
        """It is `instant` now, and time goes on from there."""
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(
                "UPDATE virtual.clock SET ahead = $1::timestamptz - pg_catalog.clock_timestamp()", instant
            )
        finally:
            await connection.close()

    async def now(self) -> datetime:
        """The instant that the database takes for now."""
        connection = await asyncpg.connect(self._url)
        try:
            instant: datetime = await connection.fetchval("SELECT virtual.clock_timestamp()")
        finally:
            await connection.close()
        return instant.astimezone(UTC)
