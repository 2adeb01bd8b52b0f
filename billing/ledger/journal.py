"""Trial balance, general-ledger journal and deferred revenue.

Prepaid credit is a liability until it is used (revenue), expires (breakage) or is refunded. Promotional and
service-level credit reduce revenue (contra-revenue). Balances and journal date transfers by `effective_at`, deferred
revenue by the instant of booking.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import InvalidRequest
from core.money import pico_to_usd
from tenants.scoping import platform_wide


class AccountType(msgspec.Struct, frozen=True):
    """An account of the chart of accounts."""

    name: str
    type: str
    """asset | liability | income | contra-revenue | expense"""
    grows_by: Literal["debit", "credit"]


CHART: dict[str, AccountType] = {
    "cash": AccountType("Cash at the payment provider", "asset", "debit"),
    "receivable": AccountType("Unbilled receivables (postpaid usage)", "asset", "debit"),
    "invoiced": AccountType("Accounts receivable (invoiced)", "asset", "debit"),
    "disputed": AccountType("Disputed payments", "asset", "debit"),
    "credit": AccountType("Deferred revenue (unused prepaid credit)", "liability", "credit"),
    "revenue": AccountType("Revenue", "income", "credit"),
    "breakage": AccountType("Breakage (expired prepaid credit)", "income", "credit"),
    "promotions": AccountType("Promotional credit", "contra-revenue", "debit"),
    "sla_credits": AccountType("Service-level credit", "contra-revenue", "debit"),
    "uncollectible": AccountType("Uncollectible amounts", "expense", "debit"),
    "fees": AccountType("Payment fees", "expense", "debit"),
    "dispute_losses": AccountType("Lost disputes", "expense", "debit"),
    "rounding": AccountType("Rounding to cents", "income", "credit"),
}
"""Every account code in the order of a trial balance."""


class TrialLine(msgspec.Struct, frozen=True):
    """One account in a trial balance, in exact dollars; a balance on the side of `grows_by` is positive."""

    account: str
    name: str
    type: str
    grows_by: str
    opening_usd: str
    debit_usd: str
    credit_usd: str
    closing_usd: str


class TrialBalance(msgspec.Struct, frozen=True):
    """The trial balance over [period_start, period_end); in sound books debits equal credits."""

    period_start: str
    period_end: str
    lines: list[TrialLine]
    debit_usd: str
    credit_usd: str
    closing_debit_usd: str
    """Sum of all debit balances at the end; equals `closing_credit_usd`."""
    closing_credit_usd: str
    balanced: bool


class JournalLine(msgspec.Struct, frozen=True):
    """The transfers of one UTC day, kind and account, summed by side."""

    date: str
    kind: str
    account: str
    account_name: str
    account_type: str
    debit_usd: str
    credit_usd: str
    transfers: int


class TransferLine(msgspec.Struct, frozen=True):
    """One transfer."""

    id: int
    effective_at: str
    booked_at: str
    tenant_id: UUID
    tenant: str
    kind: str
    debit_account: str
    credit_account: str
    amount_usd: str
    source_id: UUID


class DeferredLine(msgspec.Struct, frozen=True):
    """Unused credit of one lot at an instant, in exact dollars."""

    tenant_id: UUID
    tenant: str
    lot_id: UUID | None
    """None: credit used but not yet allocated to lots, a negative amount."""
    kind: str
    purchased_at: str | None
    expires_at: str | None
    unused_usd: str


_TRIAL = """
    WITH sums AS (
        SELECT account, sum(debit) FILTER (WHERE before) AS debit_before, sum(credit) FILTER (WHERE before)
            AS credit_before, sum(debit) FILTER (WHERE NOT before) AS debit, sum(credit) FILTER (WHERE NOT before)
            AS credit
        FROM (
            SELECT t.debit_account AS account, t.effective_at < :start AS before, t.amount AS debit, 0 AS credit
            FROM ledger_transfers t WHERE t.effective_at < :end
                AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
            UNION ALL
            SELECT t.credit_account, t.effective_at < :start, 0, t.amount
            FROM ledger_transfers t WHERE t.effective_at < :end
                AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)) sides
        GROUP BY account)
    SELECT a.code, coalesce(sum(s.debit_before), 0) AS debit_before, coalesce(sum(s.credit_before), 0) AS credit_before,
        coalesce(sum(s.debit), 0) AS debit, coalesce(sum(s.credit), 0) AS credit
    FROM sums s JOIN ledger_accounts a ON a.id = s.account GROUP BY a.code
"""


@platform_wide("the books cover all organisations; `tenant_id` narrows them")
async def trial_balance(
    connection: AsyncConnection, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> TrialBalance:
    """Every account's opening balance, movements in [start, end) and closing balance, of one tenant or all.

    Raises InvalidRequest for an empty period or instants without a time zone.
    """
    _check_period(start, end)
    rows = {
        row.code: row
        for row in await connection.execute(text(_TRIAL), {"start": start, "end": end, "tenant": tenant_id})
    }
    lines, debit, credit, on_debit, on_credit = [], 0, 0, 0, 0
    for code, account in CHART.items():
        row = rows.get(code)
        sums = (0, 0, 0, 0) if row is None else tuple(int(value) for value in row[1:])
        opening = sums[0] - sums[1]
        closing = opening + sums[2] - sums[3]
        debit, credit = debit + sums[2], credit + sums[3]
        on_debit, on_credit = on_debit + max(closing, 0), on_credit + max(-closing, 0)
        sign = 1 if account.grows_by == "debit" else -1
        lines.append(
            TrialLine(
                account=code,
                name=account.name,
                type=account.type,
                grows_by=account.grows_by,
                opening_usd=pico_to_usd(sign * opening),
                debit_usd=pico_to_usd(sums[2]),
                credit_usd=pico_to_usd(sums[3]),
                closing_usd=pico_to_usd(sign * closing),
            )
        )
    return TrialBalance(
        period_start=start.isoformat(),
        period_end=end.isoformat(),
        lines=lines,
        debit_usd=pico_to_usd(debit),
        credit_usd=pico_to_usd(credit),
        closing_debit_usd=pico_to_usd(on_debit),
        closing_credit_usd=pico_to_usd(on_credit),
        balanced=debit == credit and on_debit == on_credit,
    )


_JOURNAL = """
    SELECT day, kind, a.code, sum(debit) AS debit, sum(credit) AS credit, sum(transfers) AS transfers
    FROM (
        SELECT (t.effective_at AT TIME ZONE 'UTC')::date AS day, t.kind, t.debit_account AS account,
            sum(t.amount) AS debit, 0 AS credit, count(*) AS transfers
        FROM ledger_transfers t WHERE t.effective_at >= :start AND t.effective_at < :end
            AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant) GROUP BY 1, 2, 3
        UNION ALL
        SELECT (t.effective_at AT TIME ZONE 'UTC')::date, t.kind, t.credit_account, 0, sum(t.amount), count(*)
        FROM ledger_transfers t WHERE t.effective_at >= :start AND t.effective_at < :end
            AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant) GROUP BY 1, 2, 3) s
    JOIN ledger_accounts a ON a.id = s.account
    GROUP BY day, kind, a.code ORDER BY day, kind, sum(debit) = 0, a.code
"""


@platform_wide("the journal is the platform's; `tenant` narrows it")
async def journal(
    connection: AsyncConnection, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> list[JournalLine]:
    """The general-ledger journal of [start, end), one line per UTC day, kind and account; errors as `trial_balance`."""
    _check_period(start, end)
    rows = await connection.execute(text(_JOURNAL), {"start": start, "end": end, "tenant": tenant_id})
    return [
        JournalLine(
            date=row.day.isoformat(),
            kind=row.kind,
            account=row.code,
            account_name=CHART[row.code].name,
            account_type=CHART[row.code].type,
            debit_usd=pico_to_usd(int(row.debit)),
            credit_usd=pico_to_usd(int(row.credit)),
            transfers=int(row.transfers),
        )
        for row in rows
    ]


_TRANSFERS = """
    SELECT t.id, t.effective_at, t.at, t.tenant_id, n.name AS tenant, t.kind, d.code AS debit, c.code AS credit,
        t.amount, t.source_id
    FROM ledger_transfers t
    JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
    JOIN tenants n ON n.id = t.tenant_id
    WHERE t.effective_at >= :start AND t.effective_at < :end
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    ORDER BY t.id
"""


@platform_wide("the journal is the platform's; `tenant` narrows it")
async def transfers(
    connection: AsyncConnection, start: datetime, end: datetime, tenant_id: UUID | None = None
) -> AsyncIterator[TransferLine]:
    """Every transfer of [start, end) in the order of its id, streamed; errors as `trial_balance`."""
    _check_period(start, end)
    rows = await connection.stream(text(_TRANSFERS), {"start": start, "end": end, "tenant": tenant_id})
    try:
        async for row in rows:
            yield _transfer_line(row)
    finally:
        await rows.close()


_DEFERRED = """
    SELECT g.id, g.tenant_id, n.name, g.kind, g.created_at, g.expires_at,
        g.amount - coalesce((SELECT sum(d.amount) FROM grant_draws d WHERE d.grant_id = g.id AND d.at < :at), 0)
            AS unused
    FROM credit_grants g JOIN tenants n ON n.id = g.tenant_id
    WHERE g.created_at < :at AND (CAST(:tenant AS uuid) IS NULL OR g.tenant_id = :tenant)
    ORDER BY g.tenant_id, g.priority, g.expires_at NULLS LAST, g.created_at, g.id
"""
_LIABILITY = """
    SELECT t.tenant_id, n.name, sum(CASE WHEN t.credit_account = a.id THEN t.amount ELSE -t.amount END) AS balance
    FROM ledger_accounts a
    JOIN ledger_transfers t ON t.tenant_id = a.tenant_id AND a.id IN (t.debit_account, t.credit_account)
    JOIN tenants n ON n.id = a.tenant_id
    WHERE a.code = 'credit' AND t.at < :at AND (CAST(:tenant AS uuid) IS NULL OR a.tenant_id = :tenant)
    GROUP BY t.tenant_id, n.name ORDER BY t.tenant_id
"""


@platform_wide("finance sees the unused credit of all organisations; `tenant_id` narrows it")
async def deferred_revenue(
    connection: AsyncConnection, at: datetime, tenant_id: UUID | None = None
) -> list[DeferredLine]:
    """Unused credit by lot as it was booked at `at`, of one tenant or all.

    The lines, with those of use not yet allocated, add up to the ledger's `credit` accounts.
    """
    lots = (await connection.execute(text(_DEFERRED), {"at": at, "tenant": tenant_id})).all()
    balances = (await connection.execute(text(_LIABILITY), {"at": at, "tenant": tenant_id})).all()
    lines = [
        _deferred_line(row.tenant_id, row.name, int(row.unused), row) for row in lots if int(row.unused) != 0
    ]
    for row in balances:
        pending = int(row.balance) - sum(int(lot.unused) for lot in lots if lot.tenant_id == row.tenant_id)
        if pending:
            lines.append(_deferred_line(row.tenant_id, row.name, pending, None))
    return sorted(lines, key=lambda line: str(line.tenant_id))


def _deferred_line(tenant_id: UUID, tenant: str, unused: int, lot: Row[Any] | None) -> DeferredLine:
    return DeferredLine(
        tenant_id=tenant_id,
        tenant=tenant,
        lot_id=None if lot is None else lot.id,
        kind="used, not allocated" if lot is None else lot.kind,
        purchased_at=None if lot is None else lot.created_at.astimezone(UTC).isoformat(),
        expires_at=None
        if lot is None or lot.expires_at is None
        else lot.expires_at.astimezone(UTC).isoformat(),
        unused_usd=pico_to_usd(unused),
    )


def _transfer_line(row: Row[Any]) -> TransferLine:
    return TransferLine(
        id=row.id,
        effective_at=row.effective_at.isoformat(),
        booked_at=row.at.isoformat(),
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        kind=row.kind,
        debit_account=row.debit,
        credit_account=row.credit,
        amount_usd=pico_to_usd(int(row.amount)),
        source_id=row.source_id,
    )


def _check_period(start: datetime, end: datetime) -> None:
    if start.tzinfo is None or end.tzinfo is None or end <= start:
        raise InvalidRequest("the period's end must be later than its start", param="to")
