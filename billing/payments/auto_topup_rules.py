"""Rules of automatic top-ups: one per organisation, disabled after repeated failures, a dispute or a refund."""

from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import notices
from core.errors import Conflict, InvalidRequest
from core.money import PICO_PER_CENT, pico_to_usd

MAX_FAILURES = 3
"""Consecutive failures after which a rule is disabled."""
REFUNDED = "Bought credit was refunded."
"""Why a refund disables a rule: without the credit the balance is low, and the same card would be charged again."""


class AutoTopupRule(msgspec.Struct, frozen=True):
    """Buy `amount_usd` when less than `threshold_usd` is available, at most `monthly_cap_usd` per UTC month."""

    tenant_id: UUID
    enabled: bool
    threshold_usd: str
    amount_usd: str
    monthly_cap_usd: str
    bought_this_month_usd: str
    failures: int
    disabled_reason: str | None


async def set_rule(
    connection: AsyncConnection,
    *,
    tenant_id: UUID,
    enabled: bool,
    threshold: int,
    cents: int,
    monthly_cap_cents: int,
    by: str,
) -> AutoTopupRule:
    """Set the rule and reset its failures. `threshold` is in picodollars; `by` names the person.

    Raises InvalidRequest when the cap is below `cents`; Conflict for a postpaid account, or when `enabled` without a
    saved payment method.
    """
    if monthly_cap_cents < cents:
        raise InvalidRequest(
            "the monthly cap must be at least one purchase's amount", param="monthly_cap_usd"
        )
    found = await connection.execute(
        text(
            "SELECT a.mode, c.default_payment_method FROM billing_accounts a "
            "LEFT JOIN stripe_customers c ON c.tenant_id = a.tenant_id WHERE a.tenant_id = :tenant"
        ),
        {"tenant": tenant_id},
    )
    row = found.one_or_none()
    if row is None or row.mode != "prepaid":
        raise Conflict("only a prepaid account buys credit")
    if enabled and row.default_payment_method is None:
        raise Conflict("no card is saved yet: buy credit once, the card is then kept for later")
    await connection.execute(
        text(
            "INSERT INTO stripe_auto_topups (tenant_id, enabled, threshold, cents, monthly_cap_cents, updated_by) "
            "VALUES (:tenant, :enabled, :threshold, :cents, :cap, :by) ON CONFLICT (tenant_id) DO UPDATE SET "
            "enabled = excluded.enabled, threshold = excluded.threshold, cents = excluded.cents, "
            "monthly_cap_cents = excluded.monthly_cap_cents, failures = 0, disabled_reason = NULL, retry_at = NULL, "
            "updated_by = excluded.updated_by, updated_at = clock_timestamp()"
        ),
        {
            "tenant": tenant_id,
            "enabled": enabled,
            "threshold": threshold,
            "cents": cents,
            "cap": monthly_cap_cents,
            "by": by,
        },
    )
    rule = await get_rule(connection, tenant_id)
    assert rule is not None  # noqa: S101 - written above
    return rule


async def get_rule(connection: AsyncConnection, tenant_id: UUID) -> AutoTopupRule | None:
    """The organisation's rule; None when none was ever set."""
    found = await connection.execute(
        text(
            "SELECT enabled, threshold, cents, monthly_cap_cents, failures, disabled_reason, "
            "(SELECT coalesce(sum(p.cents), 0) FROM stripe_topups p WHERE p.tenant_id = t.tenant_id "
            "AND p.kind = 'auto' AND p.status IN ('pending', 'succeeded') "
            "AND p.created_at >= date_trunc('month', now(), 'UTC')) AS bought "
            "FROM stripe_auto_topups t WHERE tenant_id = :tenant"
        ),
        {"tenant": tenant_id},
    )
    row = found.one_or_none()
    if row is None:
        return None
    return AutoTopupRule(
        tenant_id=tenant_id,
        enabled=row.enabled,
        threshold_usd=pico_to_usd(int(row.threshold)),
        amount_usd=pico_to_usd(row.cents * PICO_PER_CENT),
        monthly_cap_usd=pico_to_usd(row.monthly_cap_cents * PICO_PER_CENT),
        bought_this_month_usd=pico_to_usd(int(row.bought) * PICO_PER_CENT),
        failures=row.failures,
        disabled_reason=row.disabled_reason,
    )


async def record_success(connection: AsyncConnection, tenant_id: UUID) -> None:
    """Reset the failures after a successful automatic purchase."""
    await connection.execute(
        text("UPDATE stripe_auto_topups SET failures = 0, retry_at = NULL WHERE tenant_id = :tenant"),
        {"tenant": tenant_id},
    )


async def record_failure(connection: AsyncConnection, tenant_id: UUID, error: str) -> None:
    """Count a failed automatic purchase, delay the next one, and notify the customer.

    The delay doubles from 2 h to 256 h; after MAX_FAILURES the rule is disabled. `error` is shown to the customer.
    """
    found = await connection.execute(
        text(
            "UPDATE stripe_auto_topups SET failures = failures + 1, "
            "retry_at = clock_timestamp() + make_interval(hours => 1 << least(failures, 8)), "
            "enabled = enabled AND failures + 1 < :most, "
            "disabled_reason = CASE WHEN failures + 1 >= :most THEN :error ELSE disabled_reason END "
            "WHERE tenant_id = :tenant RETURNING failures, enabled"
        ),
        {"most": MAX_FAILURES, "error": error[:500], "tenant": tenant_id},
    )
    row = found.one_or_none()
    if row is None:
        return
    stopped = row.failures >= MAX_FAILURES
    await notices.notify(
        connection,
        tenant_id=tenant_id,
        kind="topup.disabled" if stopped else "topup.failed",
        subject="Automatic top-up is switched off" if stopped else "An automatic top-up failed",
        body=f"The saved card could not be charged: {error[:500]}. "
        + (
            "After several failures automatic top-up is off; check the card and switch it on again."
            if stopped
            else "We will try again later."
        ),
        facts={"failures": row.failures, "error": error[:500]},
    )


async def disable(connection: AsyncConnection, tenant_id: UUID, reason: str) -> None:
    """Disable the rule in the caller's transaction and notify the customer; does nothing without an enabled rule.

    A purchase that was started and not sent to Stripe ends as failed. `reason` is a sentence for the customer.
    """
    found = await connection.execute(
        text(
            "UPDATE stripe_auto_topups SET enabled = false, disabled_reason = :reason, "
            "updated_at = clock_timestamp() WHERE tenant_id = :tenant AND enabled RETURNING tenant_id"
        ),
        {"reason": reason[:500], "tenant": tenant_id},
    )
    if found.one_or_none() is None:
        return
    await connection.execute(
        text(
            "UPDATE stripe_topups SET status = 'failed', error = :reason, ended_at = clock_timestamp() "
            "WHERE tenant_id = :tenant AND kind = 'auto' AND status = 'pending' AND attempts = 0"
        ),
        {"reason": reason[:500], "tenant": tenant_id},
    )
    await notices.notify(
        connection,
        tenant_id=tenant_id,
        kind="topup.disabled",
        subject="Automatic top-up is switched off",
        body=f"{reason} The saved card is not charged any more; switch automatic top-up on again when you want it.",
        facts={"reason": reason[:500]},
    )
