"""Open problems of billing as counts, cheap enough to read every minute; each should be 0."""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.money import pico_to_usd
from tenants.scoping import platform_wide

DRIFT_WINDOW = timedelta(hours=1)
"""Time over which usage rows and ledger are compared."""
NOTICE_WINDOW = timedelta(days=7)
"""Age of the deliveries that are counted."""
FAILED_ATTEMPTS = 3
"""Attempts from which a pending delivery counts as undelivered."""


class MoneyHealth(msgspec.Struct, frozen=True):
    """Counts of problems that a person must resolve; all 0 when there are none."""

    unexplained_tokens: int
    """Unexplained tokens of engines' counters that are not accepted."""
    unexplained_engines: int
    blocked_pushes: int
    """Invoices and credit notes that Stripe refused."""
    stripe_differences: int
    """Differences in the newest comparison of each open month with Stripe."""
    undelivered_notices: int
    """Deliveries of NOTICE_WINDOW that have failed, or are pending after FAILED_ATTEMPTS attempts."""
    drift_usd: str
    """Cost of usage rows less the ledger over DRIFT_WINDOW; "0.00" when every request was booked."""
    differing_days: int
    """Days whose usage rows differed from their rollup when they were compared last."""


_HEALTH = text(
    """
    SELECT
        (SELECT coalesce(sum(abs(unexplained)), 0) FROM reconciliations
            WHERE unexplained <> 0 AND accepted_at IS NULL) AS tokens,
        (SELECT count(DISTINCT boot_id) FROM reconciliations
            WHERE unexplained <> 0 AND accepted_at IS NULL) AS engines,
        (SELECT count(*) FROM stripe_pushes WHERE status = 'blocked') AS blocked,
        (SELECT coalesce(sum(jsonb_array_length(n.facts -> 'problems')), 0) FROM (
            SELECT DISTINCT ON (r.month) r.facts FROM stripe_reconciliations r
            LEFT JOIN billing_periods p ON p.month = r.month AND p.status = 'closed'
            WHERE p.month IS NULL ORDER BY r.month, r.at DESC) n) AS differences,
        (SELECT count(*) FROM notice_deliveries WHERE created_at >= :notices
            AND (state = 'failed' OR (state = 'pending' AND attempts >= :retries))) AS undelivered,
        (SELECT count(*) FROM usage_day_state WHERE difference IS NOT NULL) AS days,
        (SELECT coalesce(sum(cost), 0) FROM usage WHERE ended_at >= :since AND ended_at < :now) AS used,
        (SELECT coalesce(sum(t.amount), 0) FROM ledger_transfers t
            WHERE t.effective_at >= :since AND t.effective_at < :now AND (t.kind = 'usage'
                OR (t.kind = 'uncollectible' AND NOT EXISTS (
                    SELECT 1 FROM adjustments a WHERE a.id = t.source_id)))) AS booked
    """
)


@platform_wide("incidents of the platform, over all organisations")
async def money_health(connection: AsyncConnection) -> MoneyHealth:
    """All counts, read in one statement and therefore one snapshot."""
    now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    row = (
        await connection.execute(
            _HEALTH,
            {
                "now": now,
                "since": now - DRIFT_WINDOW,
                "notices": now - NOTICE_WINDOW,
                "retries": FAILED_ATTEMPTS,
            },
        )
    ).one()
    return MoneyHealth(
        unexplained_tokens=int(row.tokens),
        unexplained_engines=row.engines,
        blocked_pushes=row.blocked,
        stripe_differences=int(row.differences),
        undelivered_notices=row.undelivered,
        drift_usd=pico_to_usd(int(row.used) - int(row.booked)),
        differing_days=row.days,
    )
