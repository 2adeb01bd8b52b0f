"""Stripe's billing meter: tokens per organisation and hour, sent for comparison only; the meter has no price.

Each change of an hour's sum is a row of stripe_meter_events with the difference. An event's identifier is derived from
organisation, hour and number. Stripe accepts an identifier once within 24 h; before an older attempt is repeated, the
meter's sum shows whether it arrived.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.payments.customers import ensure_customer
from billing.payments.stripe_gateway import MAX_METER_EVENTS, StripeGateway
from core.db import Database
from tenants.scoping import platform_wide

EVENT_NAME = "penstock_tokens"
TIMESTAMP_WINDOW_DAYS = 34
"""Days after which an hour is too old to send; Stripe accepts timestamps of the last 35 days."""
SUMMED_DAYS = TIMESTAMP_WINDOW_DAYS + 1
"""Days whose hours a run sums. An hour of the last of them that is not sent is recorded as too old to send; the
comparison with Stripe shows earlier ones."""
DEDUPE_HOURS = 23
"""Hours for which an attempt can be repeated with the same identifier; Stripe's limit is 24."""
MAX_HOURS_PER_RUN = 5000
"""Changed hours recorded in one run at most."""

_CHANGED = """
    INSERT INTO stripe_meter_events (identifier, tenant_id, hour, tokens, state)
    SELECT format('%s-%s-%s', h.tenant_id, extract(epoch FROM h.hour)::bigint, coalesce(s.parts, 0)),
        h.tenant_id, h.hour, h.tokens - coalesce(s.tokens, 0),
        CASE WHEN h.hour < now() - make_interval(days => :reach) THEN 'too_old' ELSE 'pending' END
    FROM (
        SELECT tenant_id, hour, sum(input_tokens + output_tokens) AS tokens FROM usage_hours u
        WHERE hour >= now() - make_interval(days => :summed) AND hour < date_trunc('hour', now())
            AND NOT EXISTS (SELECT 1 FROM dirty_hours t WHERE t.hour = u.hour)
        GROUP BY tenant_id, hour) h
    LEFT JOIN (
        SELECT tenant_id, hour, sum(tokens) AS tokens, count(*) AS parts FROM stripe_meter_events
        WHERE hour >= now() - make_interval(days => :summed)
        GROUP BY tenant_id, hour) s ON s.tenant_id = h.tenant_id AND s.hour = h.hour
    WHERE h.tokens <> coalesce(s.tokens, 0)
    ORDER BY h.hour, h.tenant_id LIMIT :limit
    ON CONFLICT (identifier) DO NOTHING
    RETURNING identifier
"""


async def run(database: Database, gateway: StripeGateway) -> int:
    """Record the changes of past hours and send all pending events; returns how many were sent.

    Raises Unavailable when Stripe does not answer.
    """
    await record_changes(database)
    meter_id = await _meter_id(database, gateway)
    sent = await _resolve_old(database, gateway, meter_id)
    while True:
        async with database.system() as connection:
            rows = await _next_batch(connection)
        if not rows:
            return sent
        customers = {
            tenant_id: await ensure_customer(database, gateway, tenant_id)
            for tenant_id in {row.tenant_id for row in rows}
        }
        await gateway.send_meter_events([_event(row, customers[row.tenant_id]) for row in rows])
        async with database.system() as connection:
            await _mark_sent(connection, [row.identifier for row in rows])
        sent += len(rows)


@platform_wide("a job sends every organisation's tokens")
async def record_changes(database: Database) -> int:
    """Insert an event for each hour of the last SUMMED_DAYS whose sum changed; returns how many.

    Hours too old to send are `too_old`.
    """
    async with database.system() as connection:
        made = await connection.execute(
            text(_CHANGED),
            {"reach": TIMESTAMP_WINDOW_DAYS, "summed": SUMMED_DAYS, "limit": MAX_HOURS_PER_RUN},
        )
        return len(made.all())


async def _meter_id(database: Database, gateway: StripeGateway) -> str:
    """The meter's id, fetched from Stripe once and then stored."""
    async with database.read() as connection:
        known = (await connection.execute(text("SELECT meter_id FROM stripe_state"))).scalar_one()
    if known is not None:
        return str(known)
    meter_id = await gateway.ensure_meter(EVENT_NAME)
    async with database.system() as connection:
        await connection.execute(text("UPDATE stripe_state SET meter_id = :id"), {"id": meter_id})
    return meter_id


@platform_wide("a job sends every organisation's tokens")
async def _next_batch(connection: AsyncConnection) -> Sequence[Row[Any]]:
    """The next events to send, with the attempt's time stored before the attempt."""
    rows = await connection.execute(
        text(
            "UPDATE stripe_meter_events SET tried_at = coalesce(tried_at, clock_timestamp()) WHERE identifier IN ("
            "SELECT identifier FROM stripe_meter_events WHERE state = 'pending' AND (tried_at IS NULL "
            "OR tried_at > now() - make_interval(hours => :fresh)) ORDER BY created_at, identifier LIMIT :limit) "
            "RETURNING identifier, tenant_id, tokens, extract(epoch FROM hour)::bigint AS hour"
        ),
        {"limit": MAX_METER_EVENTS, "fresh": DEDUPE_HOURS},
    )
    return rows.all()


def _event(row: Row[Any], customer_id: str) -> dict[str, Any]:
    return {
        "event_name": EVENT_NAME,
        "identifier": row.identifier,
        "timestamp": datetime.fromtimestamp(row.hour, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "payload": {"stripe_customer_id": customer_id, "value": str(int(row.tokens))},
    }


@platform_wide("by the event's own identifier")
async def _mark_sent(connection: AsyncConnection, identifiers: list[str]) -> None:
    await connection.execute(
        text(
            "UPDATE stripe_meter_events SET state = 'sent', sent_at = clock_timestamp() "
            "WHERE identifier = ANY(CAST(:ids AS text[])) AND state = 'pending'"
        ),
        {"ids": identifiers},
    )


@platform_wide("a job sends every organisation's tokens")
async def _resolve_old(database: Database, gateway: StripeGateway, meter_id: str) -> int:
    """Decide attempts older than DEDUPE_HOURS by the meter's sum of their hour; returns how many had arrived."""
    async with database.read() as connection:
        rows = (
            await connection.execute(
                text(
                    "SELECT e.identifier, e.tenant_id, e.tokens, extract(epoch FROM e.hour)::bigint AS hour, "
                    "(SELECT coalesce(sum(o.tokens), 0) FROM stripe_meter_events o WHERE o.tenant_id = e.tenant_id "
                    "AND o.hour = e.hour AND o.state = 'sent') AS before FROM stripe_meter_events e "
                    "WHERE e.state = 'pending' AND e.tried_at <= now() - make_interval(hours => :fresh) "
                    "ORDER BY e.created_at, e.identifier LIMIT :limit"
                ),
                {"fresh": DEDUPE_HOURS, "limit": MAX_METER_EVENTS},
            )
        ).all()
    arrived: list[str] = []
    again: list[str] = []
    for row in rows:
        customer_id = await ensure_customer(database, gateway, row.tenant_id)
        sums = await gateway.meter_event_summaries(meter_id, customer_id, row.hour, row.hour + 3600)
        there = sum(one.tokens for one in sums) >= int(row.before + row.tokens)
        (arrived if there else again).append(row.identifier)
    async with database.system() as connection:
        await _mark_sent(connection, arrived)
        await connection.execute(
            text(
                "UPDATE stripe_meter_events SET tried_at = NULL WHERE identifier = ANY(CAST(:ids AS text[])) "
                "AND state = 'pending'"
            ),
            {"ids": again},
        )
    return len(arrived)
