"""Two data sets of the ledger: the general journal by UTC day, and invoices with their lines and credit notes."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.columns import ColumnKind, Record, columns
from billing.exports.datasets import BLOCK, Dataset, DatasetQuery, usd
from billing.usage.query import check_period, months_of

JOURNAL_VERSION = "journal/1"
INVOICES_VERSION = "invoices/2"
_T, _N, _A = ColumnKind.TEXT, ColumnKind.INTEGER, ColumnKind.AMOUNT

JOURNAL = columns(
    day=ColumnKind.INSTANT, tenant_id=_T, tenant=_T, kind=_T, debit_account=_T, credit_account=_T, transfers=_N,
    amount_usd=_A, currency=_T,
)  # fmt: skip
INVOICES = columns(
    invoice_id=_T, number=_T, tenant_id=_T, tenant=_T, month=_T, kind=_T, stripe_invoice_id=_T,
    document=_T, line_kind=_T, position=_N, description=_T, model=_T, token_class=_T, tier=_T, price_version=_N,
    tokens=_N, unit_price_usd=ColumnKind.DECIMAL, exact_usd=_A, rounded_usd=_A, currency=_T,
)  # fmt: skip

_JOURNAL = """
    SELECT date_trunc('day', t.effective_at, 'UTC') AS day, t.tenant_id, n.name AS tenant, t.kind, d.code AS debit,
        c.code AS credit, count(*) AS transfers, sum(t.amount) AS amount
    FROM ledger_transfers t
    JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
    LEFT JOIN tenants n ON n.id = t.tenant_id
    WHERE t.effective_at >= :start AND t.effective_at < :end
        AND (CAST(:tenant AS uuid) IS NULL OR t.tenant_id = :tenant)
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 4, 5, 6
"""
# The file of a closed month must not change: a credit note is in the month in which it was made, as in the journal, and
# there is no column for whether an invoice is paid.
_INVOICES = """
    SELECT i.id, i.number, i.tenant_id, n.name AS tenant, i.month, i.kind, i.stripe_invoice_id, i.currency,
        r.*
    FROM invoices i
    JOIN (
        SELECT invoice_id, 'invoice' AS document, id AS line_id, kind AS line_kind, position, description, model,
            class AS token_class, tier, price_version, tokens, unit_price, exact, cents,
            CAST(NULL AS date) AS noted
        FROM invoice_lines
        UNION ALL
        SELECT c.invoice_id, 'credit_note', l.id, 'credit_note', 0, l.description, '', '', '', NULL, NULL, NULL,
            -l.exact, -l.cents, date_trunc('month', c.created_at AT TIME ZONE 'UTC')::date
        FROM credit_note_lines l JOIN credit_notes c ON c.id = l.credit_note_id) r ON r.invoice_id = i.id
    LEFT JOIN tenants n ON n.id = i.tenant_id
    WHERE coalesce(r.noted, i.month) = ANY(:months) AND (CAST(:tenant AS uuid) IS NULL OR i.tenant_id = :tenant)
    ORDER BY i.month, i.tenant_id, i.id, r.document DESC, r.position, r.line_id
"""


def journal(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """Sums of transfers by UTC day, organisation, kind and accounts. Raises InvalidRequest for an invalid period."""
    check_period(query.start, query.end)
    bound = {"start": query.start, "end": query.end, "tenant": query.tenant_id}
    return Dataset("journal", JOURNAL_VERSION, JOURNAL, blocks(connection, _JOURNAL, bound, _entry))


def invoices(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """Lines of the invoices of the period's months, and of the credit notes made in them.

    Raises InvalidRequest for an invalid period.
    """
    check_period(query.start, query.end)
    bound = {"months": months_of(query.start, query.end), "tenant": query.tenant_id}
    return Dataset("invoices", INVOICES_VERSION, INVOICES, blocks(connection, _INVOICES, bound, _line))


async def blocks(
    connection: AsyncConnection, statement: str, bound: dict[str, Any], make: Callable[[Row[Any]], Record]
) -> AsyncIterator[Sequence[Record]]:
    """The rows of a query as records, in blocks."""
    block: list[Record] = []
    async for row in await connection.stream(text(statement), bound):
        block.append(make(row))
        if len(block) >= BLOCK:
            yield block
            block = []
    yield block


def _entry(row: Row[Any]) -> Record:
    day: datetime = row.day.astimezone(UTC)
    amount = usd(int(row.amount))
    return day, str(row.tenant_id), row.tenant, row.kind, row.debit, row.credit, row.transfers, amount, "USD"


def _line(row: Row[Any]) -> Record:
    return (
        str(row.id),
        row.number,
        str(row.tenant_id),
        row.tenant,
        f"{row.month:%Y-%m}",
        row.kind,
        row.stripe_invoice_id,
        row.document,
        row.line_kind,
        row.position,
        row.description,
        row.model or None,
        row.token_class or None,
        row.tier or None,
        row.price_version,
        None if row.tokens is None else int(row.tokens),
        None if row.unit_price is None else usd(int(row.unit_price)),
        usd(int(row.exact)),
        Decimal(f"{'-' if row.cents < 0 else ''}{abs(row.cents) // 100}.{abs(row.cents) % 100:02d}"),
        row.currency,
    )
