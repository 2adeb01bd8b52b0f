"""Invoices of GPU providers, entered or fetched, compared with the accounted cost of hosts.

An invoice is stored unchanged; to correct one, void it and enter it again. The variance per host kind is the invoiced
amount less the accounted cost of our hosts (host_bills.py).
"""

from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.economics.host_bills import HOST_HOURS, host_bounds
from billing.economics.split_sql import floors, share
from billing.economics.tables import provider_invoice_lines, provider_invoices
from billing.ledger.months import bounds
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import pico_to_usd, usd_to_pico

MAX_LINES = 1000
MAX_TEXT = 200
SECONDS_PER_HOUR = 3600


class InvoiceLineIn(msgspec.Struct, forbid_unknown_fields=True):
    """One line to enter."""

    amount_usd: str
    """Decimal dollars; negative for a discount."""
    host_kind: str = ""
    """Empty for what is not a host."""
    description: str = ""
    hours: str | None = None
    """Decimal host-hours."""


class InvoiceIn(msgspec.Struct, forbid_unknown_fields=True):
    """A provider's invoice to enter; the lines must add up to the total."""

    provider: str
    number: str
    month: str
    """Such as 2026-11."""
    total_usd: str
    lines: list[InvoiceLineIn]
    currency: str = "USD"


class InvoiceView(msgspec.Struct, frozen=True):
    """A stored invoice."""

    id: UUID
    provider: str
    number: str
    month: date
    total_usd: str
    lines: int
    source: str
    entered_at: datetime
    entered_by: str
    voided_at: datetime | None


class VarianceRow(msgspec.Struct, frozen=True):
    """Accounted and invoiced cost of one host kind; the row without a kind is the total."""

    host_kind: str | None
    accounted_hours: str
    accounted_usd: str
    invoiced_hours: str | None
    invoiced_usd: str
    variance_usd: str
    """`invoiced_usd` less `accounted_usd`."""


async def enter_invoice(
    connection: AsyncConnection, invoice: InvoiceIn, month: date, *, source: str, entered_by: str
) -> InvoiceView:
    """Store an invoice for `month` (its first day). `source` says where it came from, `entered_by` names the person.

    Raises InvalidRequest for a text of more than MAX_TEXT characters, another currency than USD, not 1 to MAX_LINES
    lines, or lines that do not add up to the total; Conflict when the provider's number is entered already.
    """
    total = _usd(invoice.total_usd, "total_usd")
    for name in ("provider", "number"):
        value = getattr(invoice, name)
        if not 1 <= len(value.strip()) <= MAX_TEXT:
            raise InvalidRequest(f"{name} must have 1 to {MAX_TEXT} characters", param=name)
    if invoice.currency != "USD":
        raise InvalidRequest(f"invoices are kept in USD, not {invoice.currency[:20]!r}", param="currency")
    if not 1 <= len(invoice.lines) <= MAX_LINES:
        raise InvalidRequest(
            f"an invoice has 1 to {MAX_LINES} lines, not {len(invoice.lines)}", param="lines"
        )
    rows = [_line(number, line) for number, line in enumerate(invoice.lines)]
    summed = sum(int(row["amount"]) for row in rows)
    if summed != total:
        raise InvalidRequest(
            f"the lines add up to ${pico_to_usd(summed)}, the total says ${pico_to_usd(total)}",
            param="total_usd",
        )
    invoice_id = uuid7()
    try:
        await connection.execute(
            insert(provider_invoices).values(
                id=invoice_id,
                provider=invoice.provider.strip(),
                number=invoice.number.strip(),
                month=month,
                currency="USD",
                total=total,
                source=source,
                entered_by=entered_by,
            )
        )
    except IntegrityError as error:
        raise Conflict(
            f"invoice {invoice.number} of {invoice.provider} is entered already; void it to enter it again"
        ) from error
    await connection.execute(
        insert(provider_invoice_lines), [{"invoice_id": invoice_id, **row} for row in rows]
    )
    return await get_invoice(connection, invoice_id)


def _line(number: int, line: InvoiceLineIn) -> dict[str, Any]:
    if len(line.host_kind) > MAX_TEXT or len(line.description) > MAX_TEXT:
        raise InvalidRequest(f"line {number + 1}: a text is longer than {MAX_TEXT} characters", param="lines")
    return {
        "line": number,
        "host_kind": line.host_kind.strip(),
        "description": line.description.strip(),
        "hours": None if line.hours is None else _hours(line.hours),
        "amount": _usd(line.amount_usd, f"lines[{number}].amount_usd"),
    }


def _usd(value: str, param: str) -> int:
    try:
        return usd_to_pico(value)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _hours(value: str) -> Decimal:
    try:
        hours = Decimal(value)
    except InvalidOperation:
        hours = Decimal(-1)
    if not hours.is_finite() or not 0 <= hours <= 10**9:
        raise InvalidRequest(f"hours must be a number of hours, not {value[:40]!r}", param="lines")
    return hours


async def void_invoice(connection: AsyncConnection, invoice_id: UUID, by: str) -> InvoiceView:
    """Void an invoice: it stays readable and no longer counts. Raises NotFound; Conflict when it is void already."""
    view = await get_invoice(connection, invoice_id)
    if view.voided_at is not None:
        raise Conflict(f"invoice {view.number} was voided on {view.voided_at:%Y-%m-%d}")
    await connection.execute(
        text("UPDATE provider_invoices SET voided_at = clock_timestamp(), voided_by = :by WHERE id = :id"),
        {"id": invoice_id, "by": by},
    )
    return await get_invoice(connection, invoice_id)


_INVOICES = """
    SELECT i.*, (SELECT count(*) FROM provider_invoice_lines l WHERE l.invoice_id = i.id) AS lines
    FROM provider_invoices i
"""


async def get_invoice(connection: AsyncConnection, invoice_id: UUID) -> InvoiceView:
    """One invoice. Raises NotFound."""
    found = (
        await connection.execute(text(f"{_INVOICES} WHERE i.id = :id"), {"id": invoice_id})
    ).one_or_none()
    if found is None:
        raise NotFound(f"there is no provider's invoice with the id {invoice_id}")
    return _view(found)


async def list_invoices(connection: AsyncConnection, month: date | None = None) -> list[InvoiceView]:
    """At most 1000 invoices of a month (None = all), voided ones included, newest month first."""
    rows = await connection.execute(
        text(
            f"{_INVOICES} WHERE CAST(:month AS date) IS NULL OR i.month = :month "
            "ORDER BY i.month DESC, i.entered_at LIMIT 1000"
        ),
        {"month": month},
    )
    return [_view(row) for row in rows]


def _view(row: Any) -> InvoiceView:
    return InvoiceView(
        id=row.id,
        provider=row.provider,
        number=row.number,
        month=row.month,
        total_usd=pico_to_usd(int(row.total)),
        lines=int(row.lines),
        source=row.source,
        entered_at=row.entered_at,
        entered_by=row.entered_by,
        voided_at=row.voided_at,
    )


_ACCOUNTED = text(
    f"""
    WITH {HOST_HOURS}
    SELECT kind, sum(seconds + silent) AS seconds, sum(cost) AS cost FROM host_hours
    WHERE gpus > 0 OR NOT :gpus_only GROUP BY kind
    """  # noqa: S608 - the names above
)
_INVOICED = text(
    """
    SELECT l.host_kind, sum(l.hours) AS hours, sum(l.amount) AS amount FROM provider_invoice_lines l
    JOIN provider_invoices i ON i.id = l.invoice_id WHERE i.month = :month AND i.voided_at IS NULL
    GROUP BY l.host_kind
    """
)


async def variance(connection: AsyncConnection, month: date) -> list[VarianceRow]:
    """Invoiced against accounted cost of a month by host kind, then the total."""
    seconds, costs = await accounted(connection, month)
    invoiced: dict[str, tuple[Decimal | None, int]] = {
        row.host_kind: (row.hours, int(row.amount))
        for row in await connection.execute(_INVOICED, {"month": month})
    }
    rows = [
        _variance_row(kind, seconds.get(kind, 0), costs.get(kind, 0), *invoiced.get(kind, (None, 0)))
        for kind in sorted({*costs, *invoiced})
    ]
    hours = [found for found, _ in invoiced.values() if found is not None]
    amount = sum(amount for _, amount in invoiced.values())
    total = _variance_row(
        None, sum(seconds.values()), sum(costs.values()), sum(hours) if hours else None, amount
    )
    return [*rows, total]


async def accounted(
    connection: AsyncConnection, month: date, *, gpus_only: bool = False
) -> tuple[dict[str, int], dict[str, int]]:
    """(seconds, picodollars) of the month's hosts by host kind, as host_bills.py has them."""
    bound = {**host_bounds(*bounds(month)), "gpus_only": gpus_only}
    rows = (await connection.execute(_ACCOUNTED, bound)).all()
    return {row.kind: int(row.seconds) for row in rows}, {row.kind: int(row.cost) for row in rows}


def _variance_row(kind: str | None, seconds: int, cost: int, hours: Any, amount: int) -> VarianceRow:
    return VarianceRow(
        host_kind=kind,
        accounted_hours=_format_hours(seconds),
        accounted_usd=pico_to_usd(cost),
        invoiced_hours=None if hours is None else f"{Decimal(hours):f}",
        invoiced_usd=pico_to_usd(amount),
        variance_usd=pico_to_usd(amount - cost),
    )


def _format_hours(seconds: int) -> str:
    thousandths = (2 * seconds * 1000 + SECONDS_PER_HOUR) // (2 * SECONDS_PER_HOUR)
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


class StateRow(msgspec.Struct, frozen=True):
    """Host-hours and cost of one host kind in one state."""

    host_kind: str
    state: str
    hours: str
    cost_usd: str


_STATES = text(
    f"""
    WITH {HOST_HOURS},
    states AS (
        SELECT s.hour, o.host, s.state, sum(s.seconds) AS work FROM host_seconds s JOIN owners o USING (host_id)
        WHERE s.hour >= :start AND s.hour < :end GROUP BY s.hour, o.host, s.state),
    weighed AS (
        SELECT kind, hour, host, state, work, seconds AS whole, cost - silent_cost AS served_cost
        FROM states JOIN host_hours USING (hour, host) WHERE seconds > 0),
    floors AS (SELECT *, {floors("cost")} FROM weighed),
    shares AS (SELECT *, {share("cost", "hour, host", 'state COLLATE "C"')} FROM floors)
    SELECT kind, state, sum(seconds) AS seconds, sum(cost) AS cost FROM (
        SELECT kind, state, work AS seconds, cost_share AS cost FROM shares
        UNION ALL
        SELECT kind, unused, silent, silent_cost FROM host_hours WHERE silent > 0 OR silent_cost > 0) known
    GROUP BY kind, state ORDER BY kind COLLATE "C", state COLLATE "C"
    """  # noqa: S608 - the names above
)


async def host_states(connection: AsyncConnection, start: datetime, end: datetime) -> list[StateRow]:
    """Hours and cost in [start, end) by host kind and state; the costs add up to the cost of all hosts."""
    return [
        StateRow(row.kind, row.state, _format_hours(int(row.seconds)), pico_to_usd(int(row.cost)))
        for row in await connection.execute(_STATES, host_bounds(start, end))
    ]
