"""Dunning of postpaid organisations: current -> past_due -> suspended by days overdue, and back when all is paid.

Suspension sets the account's credit limit to 0, so that new requests are refused with 402; running requests finish.
The earlier limit returns when nothing is overdue.
"""

from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import notices
from core.db import Database
from tenants.scoping import platform_wide

GRACE_DAYS = 14
"""Days from an invoice's due date to suspension."""

_STATES = """
    SELECT a.tenant_id, coalesce(c.dunning, 'current') AS was, coalesce(c.limited, false) AS limited,
        CASE WHEN o.due IS NULL THEN 'current'
            WHEN o.due < now() - make_interval(days => :grace) THEN 'suspended' ELSE 'past_due' END AS now_is,
        o.due, o.numbers
    FROM billing_accounts a
    LEFT JOIN stripe_customers c ON c.tenant_id = a.tenant_id
    LEFT JOIN (SELECT tenant_id, min(due_at) AS due, string_agg(number, ', ' ORDER BY due_at) AS numbers
        FROM invoices WHERE status IN ('open', 'uncollectible') AND due_at < now() GROUP BY tenant_id) o
        ON o.tenant_id = a.tenant_id
    WHERE a.mode = 'postpaid'
        AND coalesce(c.dunning, 'current') <> CASE WHEN o.due IS NULL THEN 'current'
            WHEN o.due < now() - make_interval(days => :grace) THEN 'suspended' ELSE 'past_due' END
    ORDER BY a.tenant_id
"""
_NOTICES = {
    "past_due": (
        "Invoice overdue",
        "Please pay {numbers}. New requests stop {days} days after the due date.",
    ),
    "suspended": (
        "New requests are stopped: invoices are unpaid",
        "{numbers} stayed unpaid for more than {days} days. New requests are refused until they are paid.",
    ),
    "current": ("Thank you: nothing is overdue", "New requests are served as usual."),
}


@platform_wide("a job evaluates the unpaid invoices of all organisations")
async def run(database: Database) -> int:
    """Set the state of every postpaid organisation by its overdue invoices; returns how many changed."""
    async with database.read() as connection:
        rows = (await connection.execute(text(_STATES), {"grace": GRACE_DAYS})).all()
    for row in rows:
        async with database.system() as connection:
            await _change_state(connection, row)
    return len(rows)


async def _change_state(connection: AsyncConnection, row: Row[Any]) -> None:
    """Change the state of one organisation, with its account locked."""
    await connection.execute(
        text(
            "INSERT INTO stripe_customers (tenant_id, name) SELECT id, name FROM tenants WHERE id = :tenant "
            "ON CONFLICT DO NOTHING"
        ),
        {"tenant": row.tenant_id},
    )
    limit = (
        await connection.execute(
            text("SELECT credit_limit FROM billing_accounts WHERE tenant_id = :tenant FOR UPDATE"),
            {"tenant": row.tenant_id},
        )
    ).scalar_one()
    moved = await connection.execute(
        text(
            "UPDATE stripe_customers SET dunning = :state, dunning_since = clock_timestamp() "
            "WHERE tenant_id = :tenant AND dunning = :was RETURNING limited, limit_before"
        ),
        {"state": row.now_is, "tenant": row.tenant_id, "was": row.was},
    )
    before = moved.one_or_none()
    if before is None:
        return
    if row.now_is == "suspended" and not before.limited:
        await _set_limit(connection, row, new_limit=0, limited=True, keep=limit)
    elif row.now_is != "suspended" and before.limited:
        new_limit = before.limit_before if limit == 0 else limit
        await _set_limit(connection, row, new_limit=new_limit, limited=False, keep=None)
    subject, body = _NOTICES[row.now_is]
    await notices.notify(
        connection,
        tenant_id=row.tenant_id,
        kind=f"dunning.{row.now_is}",
        subject=subject,
        body=body.format(numbers=row.numbers, days=GRACE_DAYS),
        facts={"state": row.now_is, "invoices": row.numbers},
    )


async def _set_limit(
    connection: AsyncConnection, row: Row[Any], *, new_limit: object, limited: bool, keep: object
) -> None:
    """Set the credit limit, and store whether it is suspended (`limited`) and the limit to restore (`keep`)."""
    await connection.execute(
        text("UPDATE billing_accounts SET credit_limit = :limit WHERE tenant_id = :tenant"),
        {"limit": new_limit, "tenant": row.tenant_id},
    )
    await connection.execute(
        text(
            "UPDATE stripe_customers SET limited = :limited, limit_before = :keep WHERE tenant_id = :tenant"
        ),
        {"limited": limited, "keep": keep, "tenant": row.tenant_id},
    )
