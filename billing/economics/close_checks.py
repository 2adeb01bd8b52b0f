"""Checks of GPU economics for a month's close (billing/close/checks.py)."""

from datetime import date

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.host_bills import HOST_HOURS, host_bounds
from billing.economics.provider_invoices import accounted, list_invoices, variance
from billing.ledger.check_result import CheckResult
from billing.ledger.months import bounds, month_name
from core.money import pico_to_usd

MAX_EXAMPLES = 3
"""Examples that the detail of a failed check names."""

_UNEXPLAINED = text(
    """
    SELECT boot_id, min(replica_id) AS replica_id, counter, sum(unexplained) AS tokens FROM reconciliations
    WHERE unexplained <> 0 AND accepted_at IS NULL AND from_at < :end AND coalesce(to_at, checked_at) >= :start
    GROUP BY boot_id, counter HAVING sum(unexplained) <> 0 ORDER BY abs(sum(unexplained)) DESC, boot_id, counter
    """
)


async def engines_explained(connection: AsyncConnection, month: date) -> CheckResult:
    """No engine of the month has unexplained tokens that a person has not accepted."""
    start, end = bounds(month)
    rows = (await connection.execute(_UNEXPLAINED, {"start": start, "end": end})).all()
    if not rows:
        return CheckResult("engines_explained", True, "engines' counters and usage agree")
    shown = "; ".join(
        f"{row.boot_id} of {row.replica_id}: {int(row.tokens):+d} {row.counter}"
        for row in rows[:MAX_EXAMPLES]
    )
    return CheckResult(
        "engines_explained",
        False,
        f"{len(rows)} counters differ from usage ({shown}): see `penstock reconcile trace {rows[0].boot_id}`, "
        "and `penstock reconcile accept` when it cannot be mended",
    )


_UNPRICED_HOSTS = text(
    f"""
    WITH {HOST_HOURS}
    SELECT b.kind AS host_kind, min(b.hour) AS first, count(DISTINCT b.hour) AS hours FROM covered b
    WHERE NOT b.provided AND b.seconds > 0 AND b.wants > b.near + b.anywhere AND NOT EXISTS (
        SELECT 1 FROM host_prices p WHERE p.host_kind = b.kind AND p.effective_from <= b.hour)
    GROUP BY b.kind ORDER BY b.kind
    """  # noqa: S608 - the names above
)


async def hosts_priced(connection: AsyncConnection, month: date) -> CheckResult:
    """Every kind of host that ran in the month and that neither a provider bills nor a contract covers had a price in
    each of its hours; without one its hours cost $0."""
    rows = (await connection.execute(_UNPRICED_HOSTS, host_bounds(*bounds(month)))).all()
    if not rows:
        return CheckResult("hosts_priced", True, "every host that ran has a price")
    shown = "; ".join(
        f"{row.host_kind}: {row.hours} hours from {row.first:%Y-%m-%d %H:%M}" for row in rows[:MAX_EXAMPLES]
    )
    return CheckResult(
        "hosts_priced",
        False,
        f"{len(rows)} kinds of host ran without a price and count as $0 ({shown}): set one from that hour on with "
        "`penstock economics host-price set`; 0 is a price",
    )


async def gpu_invoice_entered(connection: AsyncConnection, month: date) -> CheckResult:
    """A provider's invoice is entered for a month in which hosts with GPUs ran."""
    seconds, costs = await accounted(connection, month, gpus_only=True)
    invoices = [one for one in await list_invoices(connection, month) if one.voided_at is None]
    total = sum(costs.values())
    if not seconds:
        return CheckResult("gpu_invoice", True, "no host with GPUs ran")
    if not invoices:
        return CheckResult(
            "gpu_invoice",
            False,
            f"hosts with GPUs cost ${pico_to_usd(total)} by our account and no invoice is entered: "
            f"`penstock economics provider-invoice enter FILE` for {month_name(month)}",
        )
    rows = await variance(connection, month)
    return CheckResult(
        "gpu_invoice",
        True,
        f"{len(invoices)} invoices over ${rows[-1].invoiced_usd}, ${rows[-1].variance_usd} more than accounted",
    )
