"""Helpers of the revisions: row-level security, grants, and the tables that the packages declare.

The embedded PostgreSQL carries no contrib extensions (no btree_gist). An exclusion constraint over a text key and a
range uses the type `textrange` that 0001_base makes:
`EXCLUDE USING gist (textrange(model, model, '[]') WITH =, during WITH &&)`.
"""

from importlib import import_module
from importlib.util import find_spec

from alembic.operations import Operations
from sqlalchemy import MetaData

from core.db import APP_ROLE, SYSTEM_ROLE, metadata

_TABLE_MODULES = (
    "core.outbox",
    "tenants.tables",
    "workers.tables",
    "scheduler.tables",
    "billing.metering.tables",
    "billing.ledger.tables",
    "billing.pricing.tables",
    "billing.usage.tables",
    "billing.notifications.tables",
    "billing.invoicing.tables",
    "billing.payments.tables",
    "billing.economics.tables",
    "billing.exports.tables",
    "billing.statements.tables",
)
_TENANT = "nullif(current_setting('penstock.tenant_id', true), '')::uuid"


def load_tables() -> MetaData:
    """The metadata with every package's tables on it."""
    for name in _TABLE_MODULES:
        if _exists(name):
            import_module(name)
    return metadata


def _exists(name: str) -> bool:
    package = name.rpartition(".")[0]
    return find_spec(package) is not None and find_spec(name) is not None


def run(op: Operations, sql: str) -> None:
    """Execute several statements; the text may hold dollar-quoted bodies and colons."""
    connection = op.get_bind()
    connection.exec_driver_sql("SELECT 1")
    for statement in split_statements(sql):
        connection.exec_driver_sql(statement)


def split_statements(sql: str) -> list[str]:
    """`sql` cut at semicolons outside of quotes, dollar quotes and line comments (asyncpg prepares one at a time)."""
    statements: list[str] = []
    start = at = 0
    while at < len(sql):
        char = sql[at]
        if char == "'":
            at = sql.index("'", at + 1)
        elif sql.startswith("--", at):
            at = (sql.find("\n", at) + 1 or len(sql)) - 1
        elif char == "$":
            end = sql.find("$", at + 1)
            tag = sql[at : end + 1]
            if end > 0 and (tag == "$$" or tag[1:-1].isidentifier()):
                at = sql.index(tag, end + 1) + len(tag) - 1
        elif char == ";":
            statements.append(sql[start:at].strip())
            start = at + 1
        at += 1
    statements.append(sql[start:].strip())
    return [statement for statement in statements if statement]


def grant(
    op: Operations, table: str, app: str = "SELECT", system: str = "SELECT, INSERT, UPDATE, DELETE"
) -> None:
    """Grant `table` to our two roles; an empty string grants nothing."""
    for role, privileges in ((APP_ROLE, app), (SYSTEM_ROLE, system)):
        if privileges:
            op.execute(f"GRANT {privileges} ON {table} TO {role}")


def enable_rls(op: Operations, table: str, tenant_column: str = "tenant_id") -> None:
    """Let penstock_app see only the rows of the session's tenant and penstock_system all, the owner included."""
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant_rows ON {table} TO {APP_ROLE} "
        f"USING ({tenant_column} = {_TENANT}) WITH CHECK ({tenant_column} = {_TENANT})"
    )
    op.execute(f"CREATE POLICY all_rows ON {table} TO {SYSTEM_ROLE} USING (true) WITH CHECK (true)")
