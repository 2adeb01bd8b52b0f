"""What is kept for a while and then forgotten: marks of work that is done and can come no more.

The books, usage, notices and the audit log are never pruned.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

BATCH = 10_000
"""Rows of one statement: a long backlog takes several days, no long transaction."""
_OLD = (
    # Done work.
    "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE done_at < now() - interval '30 days' LIMIT :batch)",
    # Stripe lists 30 days of events; one that comes again later is applied again, which changes nothing.
    "DELETE FROM stripe_events WHERE id IN (SELECT id FROM stripe_events "
    "WHERE applied_at < now() - interval '90 days' LIMIT :batch)",
    # An open month is compared every hour; only the newest finding of a month counts.
    "DELETE FROM stripe_reconciliations WHERE id IN (SELECT o.id FROM stripe_reconciliations o "
    "WHERE o.at < now() - interval '30 days' AND EXISTS (SELECT 1 FROM stripe_reconciliations n "
    "WHERE n.month = o.month AND n.at > o.at) LIMIT :batch)",
)


async def forget(connection: AsyncConnection) -> int:
    """Forget what is old enough; returns how many rows."""
    gone = 0
    for statement in _OLD:
        gone += (await connection.execute(text(statement), {"batch": BATCH})).rowcount
    return gone
