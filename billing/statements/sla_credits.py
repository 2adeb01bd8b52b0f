"""Service-level credits: each contract's month is measured once against its rule, and the evidence is stored.

Time to first token is the nearest-rank percentile of answered requests, without interpolation. Availability is the
share of answered requests among those that reached an engine and were not cancelled by the client. The credit is a
percentage of what the customer was charged in that time, rounded up to the picodollar.
"""

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger import credits
from billing.ledger.check_result import CheckResult
from billing.ledger.months import bounds, final_at, month_name, month_of
from billing.notifications.notices import notify
from billing.pricing.sla_terms import Sla, parse_sla
from billing.statements.signing import format_instant
from core.db import Database
from core.each import for_each
from core.errors import Conflict
from core.ids import derived_uuid
from core.money import pico_to_usd, usd_to_pico
from tenants.scoping import platform_wide

SAMPLE_SIZE = 10
"""Request ids in the evidence, the worst first."""
_ANSWERED = "('completed', 'length', 'budget_stopped')"


class SlaResult(msgspec.Struct, frozen=True):
    """The measurement of one contract's month, and its credit."""

    id: UUID
    tenant_id: UUID
    contract_id: UUID
    month: str
    missed: bool
    amount_usd: str
    booked: bool
    """Whether this run booked the credit."""
    evidence: dict[str, Any]
    """JSON values: rule, period, charge, number of requests, measured value and the worst requests' ids."""


def nearest_rank(percentile: int, count: int) -> int:
    """The nearest rank (1 to `count`) of a percentile (1 to 100): ceil(percentile / 100 * count)."""
    return max(1, -(-percentile * count // 100))


def misses_availability(answered: int, counted: int, percent: str) -> bool:
    """Whether `answered` of `counted` requests are less than `percent` (a decimal string), exactly."""
    return Decimal(answered) * 100 < Decimal(percent) * counted


def credit_amount(charged: int, percent: int) -> int:
    """`percent` of `charged` picodollars, rounded up."""
    return -(-charged * percent // 100)


async def measure_month(database: Database, month: date) -> list[SlaResult]:
    """Measure every contract with a service level in `month` (its first day), without booking credits.

    Raises an ExceptionGroup of the contracts that failed, after all the others.
    """
    contracts = await _contracts(database, month, open_only=False)
    results = []

    async def measure(contract_id: UUID) -> None:
        async with database.read() as connection:
            results.append(await _measure(connection, month, contracts[contract_id]))

    await for_each(contracts, measure, "the service level of contract")
    return results


@platform_wide("every contract's service level is measured")
async def _contracts(database: Database, month: date, *, open_only: bool) -> dict[UUID, Row[Any]]:
    """The contracts with a service level in `month` by id; with `open_only`, without those that are measured."""
    start, end = bounds(month)
    async with database.read() as connection:
        rows = await connection.execute(
            text(
                "SELECT c.id, c.tenant_id, c.sla, greatest(lower(c.effective), CAST(:start AS timestamptz)) AS start, "
                "least(upper(c.effective), CAST(:end AS timestamptz)) AS until FROM contracts c "
                "WHERE c.sla IS NOT NULL AND c.withdrawn_at IS NULL "
                "AND c.effective && tstzrange(CAST(:start AS timestamptz), CAST(:end AS timestamptz)) "
                "AND NOT (:open_only AND EXISTS (SELECT 1 FROM sla_credits s WHERE s.contract_id = c.id "
                "AND s.month = :month)) ORDER BY c.tenant_id, lower(c.effective)"
            ),
            {"start": start, "end": end, "month": month, "open_only": open_only},
        )
        return {row.id: row for row in rows}


async def _measure(connection: AsyncConnection, month: date, contract: Row[Any]) -> SlaResult:
    rule = parse_sla(contract.sla)
    bound = {"tenant": contract.tenant_id, "start": contract.start, "until": contract.until}
    if rule.metric == "ttft":
        missed, facts = await _ttft(connection, rule, bound)
    else:
        missed, facts = await _availability(connection, rule, bound)
    charged = await _charged(connection, bound)
    amount = credit_amount(charged, rule.credit_percent) if missed else 0
    return SlaResult(
        id=derived_uuid("sla", contract.id, month),
        tenant_id=contract.tenant_id,
        contract_id=contract.id,
        month=month_name(month),
        missed=missed,
        amount_usd=pico_to_usd(amount),
        booked=False,
        evidence={
            "rule": msgspec.to_builtins(rule),
            "from": format_instant(contract.start),
            "until": format_instant(contract.until),
            "charged_usd": pico_to_usd(charged),
            **facts,
        },
    )


_FROM = "FROM usage WHERE tenant_id = :tenant AND ended_at >= :start AND ended_at < :until"


async def _ttft(connection: AsyncConnection, rule: Sla, bound: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    where = f"{_FROM} AND outcome IN {_ANSWERED} AND ttft_us > 0"
    count = int(await connection.scalar(text(f"SELECT count(*) {where}"), bound) or 0)
    if not count or rule.percentile is None:
        return False, {"requests": 0, "measured_us": None}
    rank = nearest_rank(rule.percentile, count)
    value = text(f"SELECT ttft_us {where} ORDER BY ttft_us LIMIT 1 OFFSET :skip")
    measured = int(await connection.scalar(value, {**bound, "skip": rank - 1}) or 0)
    worst = text(f"SELECT request_id {where} ORDER BY ttft_us DESC, request_id LIMIT :sample")
    ids = await connection.scalars(worst, {**bound, "sample": SAMPLE_SIZE})
    return measured > int(rule.threshold) * 1000, {
        "requests": count,
        "rank": rank,
        "measured_us": measured,
        "worst": [str(one) for one in ids],
    }


async def _availability(
    connection: AsyncConnection, rule: Sla, bound: dict[str, Any]
) -> tuple[bool, dict[str, Any]]:
    counts = text(
        f"SELECT count(*) AS counted, count(*) FILTER (WHERE outcome IN {_ANSWERED}) AS answered {_FROM} "
        "AND outcome <> 'client_cancelled'"
    )
    row = (await connection.execute(counts, bound)).one()
    failed = text(
        f"SELECT request_id {_FROM} AND outcome NOT IN ('client_cancelled', 'completed', 'length', 'budget_stopped') "
        "ORDER BY request_id LIMIT :sample"
    )
    ids = await connection.scalars(failed, {**bound, "sample": SAMPLE_SIZE})
    return misses_availability(row.answered, row.counted, str(rule.threshold)), {
        "requests": row.counted,
        "answered": row.answered,
        "worst": [str(one) for one in ids],
    }


async def _charged(connection: AsyncConnection, bound: dict[str, Any]) -> int:
    """Picodollars charged for usage in the period: its cost less the uncollectible part."""
    cost = await connection.scalar(text(f"SELECT coalesce(sum(cost), 0) {_FROM}"), bound)
    lost = await connection.scalar(
        text(
            "SELECT coalesce(sum(amount), 0) FROM ledger_transfers t WHERE tenant_id = :tenant "
            "AND kind = 'uncollectible' AND at >= :start AND effective_at >= :start AND effective_at < :until "
            "AND NOT EXISTS (SELECT 1 FROM adjustments a WHERE a.tenant_id = t.tenant_id AND a.id = t.source_id)"
        ),
        bound,
    )
    return int(cost or 0) - int(lost or 0)


class SlaMonth(msgspec.Struct, frozen=True):
    """What a run over a month's contracts did."""

    results: list[SlaResult]
    failed: list[UUID]
    """Contracts that could not be measured or credited; the next run tries them again."""
    error: ExceptionGroup[Exception] | None
    """Why; None when none failed."""


async def credit_month(database: Database, month: date) -> SlaMonth:
    """Measure the contracts that are not measured yet and book the credits, each contract in its own transaction.

    One that fails stops no other. Raises Conflict until the month's late window is over.
    """
    now = await _now(database)
    if now < final_at(month):
        raise Conflict(
            f"usage can still reach {month_name(month)} until {final_at(month).isoformat()}: only a dry run can "
            "measure it now"
        )
    contracts = await _contracts(database, month, open_only=True)
    results: list[SlaResult] = []
    done: set[UUID] = set()
    error: ExceptionGroup[Exception] | None = None

    async def credit(contract_id: UUID) -> None:
        async with database.system() as connection:
            result = await _measure(connection, month, contracts[contract_id])
            booked = await _book_credit(connection, month, result)
        results.append(msgspec.structs.replace(result, booked=booked))
        done.add(contract_id)

    try:
        await for_each(contracts, credit, "the service level of contract")
    except ExceptionGroup as failures:
        error = failures
    return SlaMonth(results, [contract for contract in contracts if contract not in done], error)


async def credit_last_month(database: Database) -> int:
    """`credit_month` for the newest month whose late window is over; returns how many credits were booked.

    Raises an ExceptionGroup of the contracts that failed, after all the others.
    """
    now = await _now(database)
    month = month_of(now)
    while now < final_at(month):
        month = month_of(bounds(month)[0] - timedelta(days=1))
    run = await credit_month(database, month)
    if run.error is not None:
        raise run.error
    return sum(result.booked for result in run.results)


async def _now(database: Database) -> datetime:
    async with database.read() as connection:
        now: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    return now


async def _book_credit(connection: AsyncConnection, month: date, result: SlaResult) -> bool:
    """Store the measurement and book its credit; False when it was stored before or the credit is 0."""
    lock = text("SELECT FROM billing_accounts WHERE tenant_id = :tenant FOR UPDATE")
    await connection.execute(lock, {"tenant": result.tenant_id})
    amount = usd_to_pico(result.amount_usd)
    kept = await connection.execute(
        text(
            "INSERT INTO sla_credits (id, tenant_id, contract_id, month, amount, evidence) VALUES "
            "(:id, :tenant, :contract, :month, :amount, CAST(:evidence AS jsonb)) ON CONFLICT DO NOTHING"
        ),
        {
            "id": result.id,
            "tenant": result.tenant_id,
            "contract": result.contract_id,
            "month": month,
            "amount": amount,
            "evidence": msgspec.json.encode(result.evidence).decode(),
        },
    )
    if kept.rowcount == 0 or amount == 0:
        return False
    await credits.give_sla_credit(
        connection,
        credit_id=result.id,
        tenant_id=result.tenant_id,
        amount=amount,
        reason=f"Service level of {result.month}",
        created_by="penstock.sla",
        effective_at=await _booking_instant(connection, result.tenant_id, month),
    )
    await notify(
        connection,
        tenant_id=result.tenant_id,
        kind="sla.credited",
        subject=f"A credit of ${result.amount_usd} for {result.month}",
        body=f"In {result.month} we missed the service level of your contract. We have credited "
        f"${result.amount_usd}; your statement of the month shows what was measured.\n",
        facts={
            "month": result.month,
            "amount_usd": result.amount_usd,
            "contract_id": str(result.contract_id),
        },
        key=f"sla|{result.id}",
    )
    return True


async def _booking_instant(connection: AsyncConnection, tenant_id: UUID, month: date) -> datetime | None:
    """The month's last instant while its invoice is not made and the month is open, else None (= now)."""
    end = bounds(month)[1]
    taken = await connection.scalar(
        text(
            "SELECT penstock_is_closed(CAST(:end AS timestamptz) - interval '1 microsecond') OR EXISTS "
            "(SELECT 1 FROM invoices WHERE tenant_id = :tenant AND month = :month)"
        ),
        {"tenant": tenant_id, "month": month, "end": end},
    )
    return None if taken else end - timedelta(microseconds=1)


@platform_wide("a month is closed when every contract's service level is measured")
async def service_levels(connection: AsyncConnection, month: date) -> CheckResult:
    """A check of the close: every contract with a service level is measured, and its credit is booked."""
    start, end = bounds(month)
    waiting = await connection.scalar(
        text(
            "SELECT count(*) FROM contracts c WHERE c.sla IS NOT NULL AND c.withdrawn_at IS NULL "
            "AND c.effective && tstzrange(CAST(:start AS timestamptz), CAST(:end AS timestamptz)) "
            "AND NOT EXISTS (SELECT 1 FROM sla_credits s WHERE s.contract_id = c.id AND s.month = :month)"
        ),
        {"start": start, "end": end, "month": month},
    )
    if not waiting:
        return CheckResult("service_levels", True, "every contract's service level is measured")
    return CheckResult(
        "service_levels",
        False,
        f"{waiting} contracts are not measured: `penstock sla run --month {month_name(month)}`; "
        "the hourly job does it, too",
    )
