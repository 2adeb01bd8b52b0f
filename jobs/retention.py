"""Deletes old records of completed work and expired responses. The ledger, usage, notices and the audit log stay."""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.metering import label_budgets
from core.db import Database

BATCH = 10_000
"""Rows that one statement deletes at most, which keeps the transaction short; a backlog takes several days."""
END_USERS_BATCH = 1_000
"""End users that one transaction forgets, under the lock of their organisation's account."""
HOLDS_KEPT = timedelta(days=35)
"""How long the holds of a month are kept after its end. The close looks at holds of the last 48 h, the reconciliation
of engines at those of a week."""
_STATEMENTS = (
    "DELETE FROM stored_responses WHERE id IN (SELECT id FROM stored_responses "
    "WHERE expires_at < now() LIMIT :batch)",
    # What a project stored before it began to keep responses for fewer days.
    "DELETE FROM stored_responses WHERE id IN (SELECT s.id FROM projects p JOIN stored_responses s "
    "ON s.tenant_id = p.tenant_id AND s.project_id = p.id "
    "WHERE s.created_at + make_interval(days => p.responses_kept_days) < now() "
    "AND (s.runs_until IS NULL OR s.runs_until < now()) LIMIT :batch)",
    "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE done_at < now() - interval '30 days' LIMIT :batch)",
    # Stripe lists 30 days of events. One that is delivered later is applied again, which changes nothing.
    "DELETE FROM stripe_events WHERE id IN (SELECT id FROM stripe_events "
    "WHERE applied_at < now() - interval '90 days' LIMIT :batch)",
    # An open month is compared every hour; only the newest result of a month counts.
    "DELETE FROM stripe_reconciliations WHERE id IN (SELECT o.id FROM stripe_reconciliations o "
    "WHERE o.at < now() - interval '30 days' AND EXISTS (SELECT 1 FROM stripe_reconciliations n "
    "WHERE n.month = o.month AND n.at > o.at) LIMIT :batch)",
    # A refused host is checked every five minutes; the newest check of each host stays.
    "DELETE FROM host_acceptances WHERE (host_id, checked_at) IN (SELECT o.host_id, o.checked_at "
    "FROM host_acceptances o WHERE o.stored_at < now() - interval '90 days' AND EXISTS (SELECT FROM host_acceptances n "
    "WHERE n.host_id = o.host_id AND n.stored_at > o.stored_at) LIMIT :batch)",
    # Hosts whose right to report has ended, and invitations that were never used.
    "DELETE FROM host_credentials WHERE host_id IN (SELECT host_id FROM host_credentials WHERE secret_hash IS NULL "
    "AND greatest(revoked_at, join_expires_at, invited_at) < now() - interval '90 days' LIMIT :batch)",
    # Their opening and end are in the audit log.
    "DELETE FROM admin_tokens WHERE id IN (SELECT id FROM admin_tokens "
    "WHERE kind <> 'token' AND expires_at < now() - interval '30 days' LIMIT :batch)",
    "DELETE FROM pool_acts WHERE act_id IN (SELECT act_id FROM pool_acts "
    "WHERE at < now() - interval '90 days' LIMIT :batch)",
    # A closed month is not compared any more.
    "DELETE FROM stripe_compared WHERE (month, kind, object_id) IN (SELECT c.month, c.kind, c.object_id "
    "FROM stripe_compared c JOIN billing_periods p ON p.month = c.month AND p.status = 'closed' LIMIT :batch)",
)


async def prune(connection: AsyncConnection) -> int:
    """Delete the rows that are old enough, at most BATCH per table; returns the number of rows."""
    deleted = 0
    for statement in _STATEMENTS:
        deleted += (await connection.execute(text(statement), {"batch": BATCH})).rowcount
    return deleted


async def prune_holds(connection: AsyncConnection) -> int:
    """Drop the oldest month of holds whose time is over, if it has no open hold; returns how many months and rows.

    Needs a transaction of its own: admission waits for the lock on holds until its end.
    """
    pruned = await connection.execute(
        text("SELECT penstock_prune_holds(:kept, :batch)"), {"kept": HOLDS_KEPT, "batch": BATCH}
    )
    return int(pruned.scalar_one())


async def forget_end_users(database: Database) -> int:
    """Forget end users of past months that only the budget of every end user counts; returns how many.

    Requests of an organisation wait for one batch at most.
    """
    total = 0
    while True:
        async with database.system() as connection:
            forgotten = await label_budgets.forget_end_users(connection, END_USERS_BATCH)
        total += forgotten
        if not forgotten:
            return total
