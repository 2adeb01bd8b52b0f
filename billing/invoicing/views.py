"""Invoices for display, and the requests behind each line."""

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import CLASSES
from billing.ledger.months import bounds, month_name
from core.errors import InvalidRequest, NotFound
from core.money import PICO_PER_CENT, pico_per_token_to_per_mtok, pico_to_usd
from tenants.scoping import platform_wide

MAX_LIST = 1000


class InvoiceView(msgspec.Struct, frozen=True):
    """An invoice; amounts are decimal dollars."""

    id: UUID
    tenant_id: UUID
    tenant: str
    month: str
    number: str | None
    kind: str
    """postpaid | prepaid"""
    status: str
    """open | paid | void | uncollectible | settled"""
    currency: str
    exact_usd: str
    """The exact sum of the lines."""
    total_usd: str
    """The sum of the lines' cents: the amount due (postpaid) or paid by credit (prepaid)."""
    credited_usd: str
    """Sum of its credit notes that are not void."""
    open_usd: str
    """What is neither paid nor credited; of an invoice that is open or uncollectible."""
    carried_usd: str
    """The amount carried over to the next invoice."""
    due_at: str | None
    finalized_at: str | None
    paid_at: str | None
    stripe_invoice_id: str | None


class LineView(msgspec.Struct, frozen=True):
    """One line of an invoice; amounts are decimal dollars."""

    id: UUID
    position: int
    kind: str
    description: str
    model: str
    token_class: str
    tier: str
    price_version: int | None
    tokens: int
    price_per_mtok_usd: str | None
    exact_usd: str
    amount_usd: str
    """The exact amount rounded once to cents, half away from zero."""
    adjustment_id: UUID | None
    stripe_item_id: str | None


class CreditNoteView(msgspec.Struct, frozen=True):
    """A credit note on a finalised invoice."""

    id: UUID
    invoice_id: UUID
    reason: str
    exact_usd: str
    amount_usd: str
    pays: str
    """invoice (reduces the amount due) | balance (added to the customer's Stripe balance) | refund (paid back).

    Decided when the note is sent to Stripe; until then, what is expected."""
    balance_usd: str
    """The part on the customer's balance."""
    refund_usd: str
    """The part that is paid back."""
    status: str
    correction_id: UUID | None
    stripe_credit_note_id: str | None
    created_at: str


class InvoiceDetail(msgspec.Struct, frozen=True):
    """An invoice with its lines and credit notes."""

    invoice: InvoiceView
    lines: tuple[LineView, ...]
    credit_notes: tuple[CreditNoteView, ...]


class TraceRow(msgspec.Struct, frozen=True):
    """One request behind a line; the exact amounts of all pages add up to the line's."""

    request_id: UUID
    ended_at: str
    """The instant that decides the month in which it is billed."""
    used_at: str
    """The true end; in an earlier month for late usage."""
    project_id: UUID
    key_id: UUID
    tokens: int
    exact_usd: str


class TracePage(msgspec.Struct, frozen=True):
    """A page of a line's requests; `next` is the `after` of the next page, None on the last."""

    line: LineView
    rows: tuple[TraceRow, ...]
    next: UUID | None


_INVOICES = """
    SELECT i.*, t.name AS tenant, (SELECT coalesce(sum(n.cents), 0) FROM credit_notes n
        WHERE n.invoice_id = i.id AND n.status <> 'void') AS credited,
        CASE WHEN i.status IN ('open', 'uncollectible') THEN greatest(0, penstock_open_cents(i.id)) ELSE 0 END
            AS left_open
    FROM invoices i JOIN tenants t ON t.id = i.tenant_id
"""


@platform_wide("finance lists the invoices of all organisations; a tenant's session sees its own")
async def list_invoices(
    connection: AsyncConnection,
    *,
    month: date | None = None,
    tenant_id: UUID | None = None,
    status: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> list[InvoiceView]:
    """At most `limit` (<= MAX_LIST) invoices, newest month first, then by id; `after` continues behind that invoice."""
    rows = await connection.execute(
        text(
            f"{_INVOICES} "  # noqa: S608 - constants only
            "WHERE (CAST(:month AS date) IS NULL OR i.month = :month) "
            "AND (CAST(:tenant AS uuid) IS NULL OR i.tenant_id = :tenant) "
            "AND (CAST(:status AS text) IS NULL OR i.status = :status) "
            "AND (CAST(:after AS uuid) IS NULL OR (-(i.month - DATE '2000-01-01'), i.id) > "
            "(SELECT -(a.month - DATE '2000-01-01'), a.id FROM invoices a WHERE a.id = :after)) "
            "ORDER BY i.month DESC, i.id LIMIT :limit"
        ),
        {
            "month": month,
            "tenant": tenant_id,
            "status": status,
            "after": after,
            "limit": min(limit, MAX_LIST),
        },
    )
    return [_invoice(row) for row in rows]


@platform_wide("an invoice is found by its id or number; a tenant's session sees its own")
async def find_invoice(connection: AsyncConnection, ref: str) -> InvoiceDetail:
    """An invoice by its id or number. Raises NotFound."""
    row = (
        await connection.execute(
            text(f"{_INVOICES} WHERE CAST(i.id AS text) = :ref OR i.number = :ref"), {"ref": ref.strip()}
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no invoice {ref[:80]!r}; `penstock invoices list` shows ids and numbers")
    lines = await connection.execute(
        text("SELECT * FROM invoice_lines WHERE invoice_id = :id ORDER BY position"), {"id": row.id}
    )
    notes = await connection.execute(
        text("SELECT * FROM credit_notes WHERE invoice_id = :id ORDER BY created_at, id"), {"id": row.id}
    )
    return InvoiceDetail(
        invoice=_invoice(row), lines=tuple(map(_line, lines)), credit_notes=tuple(map(_credit_note, notes))
    )


async def trace_line(
    connection: AsyncConnection,
    line_id: UUID,
    *,
    tenant_id: UUID | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> TracePage:
    """A page of the requests behind a usage line, by id. `tenant_id` restricts the line to that tenant's.

    Needs a platform session: tenants may not read usage_late. Raises NotFound; InvalidRequest for a line of a kind
    without requests.
    """
    row = (
        await connection.execute(
            text(
                "SELECT l.*, i.month FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id WHERE l.id = :id "
                "AND (CAST(:tenant AS uuid) IS NULL OR l.tenant_id = :tenant)"
            ),
            {"id": line_id, "tenant": tenant_id},
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no invoice line {line_id}; `penstock invoices show` lists their ids")
    if row.kind not in ("usage", "late_usage"):
        raise InvalidRequest(f"no requests stand behind a line of the kind {row.kind}: {row.description}")
    start, end = bounds(row.month)
    values = {
        "tenant": row.tenant_id,
        "model": row.model,
        "tier": row.tier,
        "price": row.price_version,
        "start": start,
        "end": end,
        "late": row.kind == "late_usage",
        "used_in": row.used_in,
        "after": after,
        "limit": limit + 1,
    }
    found = (await connection.execute(text(_trace_sql(row._mapping["class"])), values)).all()
    rows = tuple(
        TraceRow(
            request_id=one.request_id,
            ended_at=_iso(one.ended_at) or "",
            used_at=_iso(one.used_at) or "",
            project_id=one.project_id,
            key_id=one.key_id,
            tokens=int(one.tokens),
            exact_usd=pico_to_usd(int(one.tokens) * int(row.unit_price)),
        )
        for one in found[:limit]
    )
    return TracePage(_line(row), rows, rows[-1].request_id if len(found) > limit else None)


_TOKENS = {
    "input": "u.input_tokens - u.cached_input_tokens",
    "cached_input": "u.cached_input_tokens",
    "output": "u.output_tokens - u.reasoning_tokens",
    "reasoning": "u.reasoning_tokens",
}


def _trace_sql(token_class: str) -> str:
    assert token_class in CLASSES  # noqa: S101 - the table's CHECK says so
    tokens = _TOKENS[token_class]
    return f"""
        SELECT u.request_id, u.ended_at, coalesce(l.ended_at, u.ended_at) AS used_at, u.project_id, u.key_id,
            {tokens} AS tokens
        FROM usage u LEFT JOIN usage_late l ON l.request_id = u.request_id
        WHERE u.tenant_id = :tenant AND u.model = :model AND u.tier = :tier AND u.price_version = :price
            AND u.ended_at >= :start AND u.ended_at < :end AND (coalesce(l.ended_at, u.ended_at) < :start) = :late
            AND (CAST(:used_in AS date) IS NULL
                OR date_trunc('month', l.ended_at AT TIME ZONE 'UTC')::date = :used_in)
            AND u.outcome NOT IN ('engine_failed', 'zero_output') AND {tokens} > 0
            AND (CAST(:after AS uuid) IS NULL OR u.request_id > :after)
        ORDER BY u.request_id LIMIT :limit
    """  # noqa: S608 - expressions of our own


def _invoice(row: Row[Any]) -> InvoiceView:
    return InvoiceView(
        id=row.id,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        month=month_name(row.month),
        number=row.number,
        kind=row.kind,
        status=row.status,
        currency=row.currency,
        exact_usd=pico_to_usd(int(row.exact)),
        total_usd=pico_to_usd(row.total_cents * PICO_PER_CENT),
        credited_usd=pico_to_usd(int(row.credited) * PICO_PER_CENT),
        open_usd=pico_to_usd(row.left_open * PICO_PER_CENT),
        carried_usd=pico_to_usd(row.carry_cents * PICO_PER_CENT),
        due_at=_iso(row.due_at),
        finalized_at=_iso(row.finalized_at),
        paid_at=_iso(row.paid_at),
        stripe_invoice_id=row.stripe_invoice_id,
    )


def _line(row: Row[Any]) -> LineView:
    return LineView(
        id=row.id,
        position=row.position,
        kind=row.kind,
        description=row.description,
        model=row.model,
        token_class=row._mapping["class"],
        tier=row.tier,
        price_version=row.price_version,
        tokens=int(row.tokens),
        price_per_mtok_usd=None
        if row.unit_price is None
        else pico_per_token_to_per_mtok(int(row.unit_price)),
        exact_usd=pico_to_usd(int(row.exact)),
        amount_usd=pico_to_usd(row.cents * PICO_PER_CENT),
        adjustment_id=row.adjustment_id,
        stripe_item_id=row.stripe_item_id,
    )


def _credit_note(row: Row[Any]) -> CreditNoteView:
    return CreditNoteView(
        id=row.id,
        invoice_id=row.invoice_id,
        reason=row.reason,
        exact_usd=pico_to_usd(int(row.exact)),
        amount_usd=pico_to_usd(row.cents * PICO_PER_CENT),
        pays=row.pays,
        balance_usd=pico_to_usd(row.balance_cents * PICO_PER_CENT),
        refund_usd=pico_to_usd(row.refund_cents * PICO_PER_CENT),
        status=row.status,
        correction_id=row.correction_id,
        stripe_credit_note_id=row.stripe_credit_note_id,
        created_at=row.created_at.isoformat(),
    )


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()
