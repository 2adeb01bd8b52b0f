"""Which hours the meter job sums: those that Stripe can still take, not the whole history."""

from sqlalchemy import text

from billing.payments import meter_events
from core.db import Database
from tests.integration.billing.payments.support import postpaid


async def test_only_the_hours_of_the_last_35_days_are_summed(database: Database) -> None:
    tenant_id = await postpaid(database)
    async with database.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO usage_hours SELECT date_trunc('hour', now()) - make_interval(hours => h), :tenant, "
                ":tenant, :tenant, 'm', 'standard', 'r', 1, 1, false, 1, '{1,0,0,0,0,0,0}', 10, 0, 1, 0, 0, 0, 0, 0, 0 "
                "FROM unnest(ARRAY[1, 33 * 24, 34 * 24 + 12, 36 * 24, 400 * 24]) h"
            ),
            {"tenant": tenant_id},
        )
    assert await meter_events.record_changes(database) == 3
    assert await meter_events.record_changes(database) == 0
    async with database.read() as connection:
        rows = await connection.execute(
            text(
                "SELECT round(extract(epoch FROM now() - hour) / 86400)::int AS days, state FROM stripe_meter_events "
                "ORDER BY hour DESC"
            )
        )
        assert [tuple(row) for row in rows] == [(0, "pending"), (33, "pending"), (35, "too_old")]
