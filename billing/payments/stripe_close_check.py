"""The check of the close that Stripe has what our books have."""

from datetime import date

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.check_result import CheckResult
from billing.payments.stripe_books import unix_bounds
from tenants.scoping import platform_wide

_CHANGED = """
    SELECT greatest(
        (SELECT max(greatest(created_at, finalized_at)) FROM invoices WHERE month = :month),
        (SELECT max(p.paid_at) FROM stripe_payments p JOIN invoices i ON i.id = p.invoice_id WHERE i.month = :month),
        (SELECT max(greatest(r.created_at, r.ended_at)) FROM stripe_refunds r JOIN stripe_payments p
            USING (payment_intent) JOIN invoices i ON i.id = p.invoice_id WHERE i.month = :month),
        (SELECT max(n.created_at) FROM credit_notes n JOIN invoices i ON i.id = n.invoice_id WHERE i.month = :month),
        (SELECT max(p.updated_at) FROM stripe_pushes p LEFT JOIN credit_notes n ON n.id = p.object_id
            JOIN invoices i ON i.id = coalesce(n.invoice_id, p.object_id) WHERE i.month = :month),
        (SELECT max(booked_at) FROM stripe_cash WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)),
        (SELECT max(greatest(created_at, sent_at)) FROM stripe_meter_events
            WHERE hour >= to_timestamp(:start) AND hour < to_timestamp(:end))) AS changed,
        (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_hours
            WHERE hour >= to_timestamp(:start) AND hour < to_timestamp(:end)) AS tokens
"""


@platform_wide("a month is closed for every organisation")
async def stripe_equal(connection: AsyncConnection, month: date) -> CheckResult:
    """A check of the close: the newest comparison found no problem, and the month did not change since it began."""
    name = "stripe_equal"
    newest = (
        await connection.execute(
            text(
                "SELECT began_at, ok, facts FROM stripe_reconciliations WHERE month = :month ORDER BY at DESC LIMIT 1"
            ),
            {"month": month},
        )
    ).one_or_none()
    start, end = unix_bounds(month)
    now = (await connection.execute(text(_CHANGED), {"month": month, "start": start, "end": end})).one()
    command = f"run `penstock payments reconcile {month:%Y-%m}`"
    used = (await connection.execute(text("SELECT used_since FROM stripe_state"))).scalar_one()
    if newest is None:
        if used is None or (now.changed is None and not now.tokens):
            return CheckResult(name, True, "nothing of this month concerns Stripe")
        return CheckResult(name, False, f"not compared yet: {command}")
    if not newest.ok:
        problems = newest.facts["problems"]
        return CheckResult(name, False, f"{len(problems)} differences, first: {problems[0]}; then {command}")
    if (now.changed is not None and now.changed >= newest.began_at) or now.tokens != newest.facts[
        "metered_tokens"
    ]:
        return CheckResult(name, False, f"the month changed after the comparison: {command}")
    facts = newest.facts
    return CheckResult(
        name,
        True,
        f"{facts['invoices']} invoices over ${facts['invoiced_usd']}, ${facts['paid_usd']} paid, "
        f"{facts['movements']} movements, {facts['metered_tokens']} tokens",
    )
