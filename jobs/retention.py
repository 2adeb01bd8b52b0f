"""Deletes old records of completed work. The ledger, usage, notices and the audit log are never pruned."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

BATCH = 10_000
"""Rows that one statement deletes at most, which keeps the transaction short; a backlog takes several days."""
_STATEMENTS = (
    "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE done_at < now() - interval '30 days' LIMIT :batch)",
    # Stripe lists 30 days of events. One that is delivered later is applied again, which changes nothing.
    "DELETE FROM stripe_events WHERE id IN (SELECT id FROM stripe_events "
    "WHERE applied_at < now() - interval '90 days' LIMIT :batch)",
    # An open month is compared every hour; only the newest result of a month counts.
    "DELETE FROM stripe_reconciliations WHERE id IN (SELECT o.id FROM stripe_reconciliations o "
    "WHERE o.at < now() - interval '30 days' AND EXISTS (SELECT 1 FROM stripe_reconciliations n "
    "WHERE n.month = o.month AND n.at > o.at) LIMIT :batch)",
)


async def prune(connection: AsyncConnection) -> int:
    """Delete the rows that are old enough, at most BATCH per table; returns the number of rows."""
    deleted = 0
    for statement in _STATEMENTS:
        deleted += (await connection.execute(text(statement), {"batch": BATCH})).rowcount
    return deleted
