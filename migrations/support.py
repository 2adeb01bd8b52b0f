"""Helpers of the revisions: statements of a text, and the tables that the packages declare."""

from importlib import import_module

from sqlalchemy import Connection, MetaData

from core.db import metadata

_TABLE_MODULES = (
    "core.outbox",
    "tenants.tables",
    "workers.tables",
    "workers.acting.tables",
    "workers.providers.tables",
    "scheduler.tables",
    "gateway.dialects.responses.tables",
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
    "migrations.repeatable",
)


def load_tables() -> MetaData:
    """The metadata with every package's tables on it."""
    for name in _TABLE_MODULES:
        import_module(name)
    return metadata


def run(connection: Connection, sql: str) -> None:
    """Execute the statements of `sql`; the text may hold dollar-quoted bodies and colons."""
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
