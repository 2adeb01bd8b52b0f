"""One month's tokens and amounts as usage rows, ledger, invoices, Stripe and engines have them, in one table."""

from datetime import date
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import bounds
from core.money import pico_to_usd
from tenants.scoping import platform_wide


class CrossCheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """One source's figures for the month; None = the source does not have that figure."""

    source: str
    """gateway | ledger | invoices | stripe_meter | stripe_invoices | engines"""
    tokens: int | None = None
    amount_usd: str | None = None
    token_difference: int | None = None
    """`tokens` less those of the gateway's usage rows."""
    difference_usd: str | None = None
    """`amount_usd` less the cost of the gateway's usage rows, exact decimal dollars."""
    equal: bool | None = None
    """Whether it equals the gateway's usage rows; for Stripe's invoices, whether the last comparison found no
    difference. None for the gateway, the engines, and a source without figures.
    """
    detail: str


_GATEWAY = text(
    """
    WITH dirty AS MATERIALIZED (
        SELECT DISTINCT hour FROM dirty_hours WHERE hour >= :start AND hour < :end),
    counted AS (
        SELECT h.requests, h.input_tokens + h.output_tokens AS tokens, h.cost FROM usage_hours h
        WHERE h.hour >= :start AND h.hour < :end AND NOT EXISTS (SELECT 1 FROM dirty t WHERE t.hour = h.hour)
        UNION ALL
        SELECT f.requests, f.input_tokens + f.output_tokens, f.cost FROM dirty t,
            LATERAL penstock_fold_usage(t.hour, t.hour + interval '1 hour') f)
    SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(tokens), 0) AS tokens, coalesce(sum(cost), 0) AS cost
    FROM counted
    """
)
_LEDGER = text(
    """
    SELECT count(*) AS transfers, coalesce(sum(t.amount), 0) AS amount FROM ledger_transfers t
    WHERE t.effective_at >= :start AND t.effective_at < :end AND (t.kind = 'usage' OR (t.kind = 'uncollectible'
        AND NOT EXISTS (SELECT 1 FROM adjustments a WHERE a.id = t.source_id)))
    """
)
_INVOICES = text(
    """
    SELECT count(DISTINCT i.id) AS invoices, sum(l.exact) AS amount FROM invoices i
    JOIN invoice_lines l ON l.invoice_id = i.id WHERE i.month = :month AND l.kind IN ('usage', 'late_usage')
    """
)
_METER = text(
    """
    SELECT count(*) AS events, coalesce(sum(tokens) FILTER (WHERE state = 'sent'), 0) AS tokens,
        coalesce(sum(tokens) FILTER (WHERE state = 'pending'), 0) AS pending,
        coalesce(sum(tokens) FILTER (WHERE state = 'too_old'), 0) AS too_old
    FROM stripe_meter_events WHERE hour >= :start AND hour < :end
    """
)
_STRIPE = text(
    "SELECT at, ok, facts FROM stripe_reconciliations WHERE month = :month ORDER BY began_at DESC LIMIT 1"
)
_ENGINES = text(
    """
    SELECT count(DISTINCT boot_id) AS engines, coalesce(sum(engine + unobserved), 0) AS tokens,
        coalesce(sum(billed), 0) AS billed, coalesce(sum(unexplained), 0) AS unexplained
    FROM reconciliations WHERE from_at < :end AND coalesce(to_at, checked_at) >= :start
    """
)


@platform_wide("the month of all organisations is compared with the books")
async def cross_check_month(connection: AsyncConnection, month: date) -> list[CrossCheckRow]:
    """One row per source, the gateway's usage rows first. `month` is the first day of the month.

    Stripe's figures are those of the newest stored comparison; Stripe is not called.
    """
    start, end = bounds(month)
    span = {"start": start, "end": end}
    gateway = (await connection.execute(_GATEWAY, span)).one()
    ledger = (await connection.execute(_LEDGER, span)).one()
    invoices = (await connection.execute(_INVOICES, {"month": month})).one()
    meter = (await connection.execute(_METER, span)).one()
    compared = (await connection.execute(_STRIPE, {"month": month})).one_or_none()
    engines = (await connection.execute(_ENGINES, span)).one()
    tokens, cost = int(gateway.tokens), int(gateway.cost)

    def row(
        source: str, detail: str, *, counted: int | None = None, amount: int | None = None
    ) -> CrossCheckRow:
        token_difference = None if counted is None else counted - tokens
        difference = None if amount is None else amount - cost
        known = [one for one in (token_difference, difference) if one is not None]
        return CrossCheckRow(
            source=source,
            tokens=counted,
            amount_usd=None if amount is None else pico_to_usd(amount),
            token_difference=token_difference,
            difference_usd=None if difference is None else pico_to_usd(difference),
            equal=None if source == "gateway" or not known else not any(known),
            detail=detail,
        )

    made = invoices.amount is not None
    return [
        row("gateway", f"{int(gateway.requests)} requests", counted=tokens, amount=cost),
        row("ledger", f"{ledger.transfers} transfers of usage", amount=int(ledger.amount)),
        row(
            "invoices",
            f"{invoices.invoices} invoices" if made else "not made yet",
            amount=int(invoices.amount) if made else None,
        ),
        row("stripe_meter", _meter_detail(meter), counted=int(meter.tokens) if meter.events else None),
        CrossCheckRow(
            source="stripe_invoices",
            equal=None if compared is None else bool(compared.ok),
            detail=_stripe_detail(compared),
        ),
        CrossCheckRow(
            source="engines",
            tokens=int(engines.tokens) if engines.engines else None,
            detail=f"{engines.engines} engines compared: {int(engines.billed)} billed, "
            f"{int(engines.unexplained)} unexplained; stretches that touch the month are counted whole",
        ),
    ]


def _meter_detail(meter: Any) -> str:
    if not meter.events:
        return "nothing sent"
    rest = [f"{int(meter.pending)} tokens not sent yet"] if meter.pending else []
    rest += [f"{int(meter.too_old)} too old for Stripe to take"] if meter.too_old else []
    return ", ".join([f"{meter.events} events", *rest])


def _stripe_detail(compared: Any) -> str:
    if compared is None:
        return "not compared with Stripe yet"
    return f"{'equal' if compared.ok else 'DIFFERENT'} on {compared.at:%Y-%m-%d %H:%M} UTC"
