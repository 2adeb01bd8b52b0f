"""Invoices: make a month's, read, trace a line to its requests, void, write off."""

from collections.abc import Callable
from datetime import date
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, under_limit
from admin.audit import record
from admin.transactions import page_size, read, read_scoped, write_system
from billing.close.periods import check_and_make_invoices
from billing.invoicing import status_changes, views
from billing.invoicing.run import InvoiceRun
from billing.invoicing.views import InvoiceDetail, InvoiceView, TracePage
from billing.ledger.months import month_name
from core.db import Database
from core.errors import InvalidRequest
from core.money import PICO_PER_CENT, usd_to_pico
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ROLES, READERS

WRITE_OFF = "invoice.write_off"
"""The kind of write-offs under the approval limit."""
STATUSES = ("draft", "open", "paid", "void", "uncollectible", "settled")


async def make_invoices(
    database: Database, actor: Actor, *, month: date, progress: Callable[[int, int], None] | None = None
) -> InvoiceRun:
    """Make the missing invoices of a month; existing ones stay. Calls `progress` with (done, total) organisations.

    Raises Conflict while usage can still reach the month, or when the books do not agree with it.
    """
    require(actor, *PLATFORM_ROLES)
    done = await check_and_make_invoices(database, month, progress=progress)
    async with write_system(database) as connection:
        await record(
            connection,
            actor,
            "invoices.make",
            tenant_id=None,
            object_kind="period",
            object_id=month_name(month),
            after=done,
        )
    return done


async def list_invoices(
    database: Database,
    actor: Actor,
    *,
    month: date | None = None,
    tenant_id: UUID | None = None,
    status: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
) -> list[InvoiceView]:
    """Invoices, the newest month first, after the one with id `after`. A tenant role sees its own organisation's."""
    async with read_scoped(database, actor, tenant_id) as (connection, scope):
        if status is not None and status not in STATUSES:
            raise InvalidRequest(
                f"status must be one of {', '.join(STATUSES)}, not {status[:40]!r}", param="status"
            )
        return await views.list_invoices(
            connection, month=month, tenant_id=scope, status=status, limit=page_size(limit), after=after
        )


async def show_invoice(database: Database, actor: Actor, *, ref: str) -> InvoiceDetail:
    """An invoice by id or number, with lines and credit notes. Raises NotFound, also for another organisation's."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return await views.find_invoice(connection, ref)


async def trace_line(
    database: Database, actor: Actor, *, line_id: UUID, limit: int = 100, after: UUID | None = None
) -> TracePage:
    """The requests behind a usage line. Raises NotFound, InvalidRequest for a line without requests."""
    require(actor, *READERS, tenant_id=actor.tenant_id)
    scope = None if actor.is_platform else actor.tenant_id
    async with database.read() as connection:
        return await views.trace_line(
            connection, line_id, tenant_id=scope, limit=page_size(limit), after=after
        )


async def void_invoice(database: Database, actor: Actor, *, ref: str, reason: str) -> InvoiceView:
    """Void an open invoice; the next invoice carries its amount. Raises NotFound, Conflict."""
    require(actor, *PLATFORM_ROLES)
    reason = clean_reason(reason)
    async with write_system(database) as connection:
        before = (await views.find_invoice(connection, ref)).invoice
        await status_changes.void_invoice(connection, before.id)
        return await _read_and_record(connection, actor, "invoice.void", before, reason)


async def write_off_invoice(database: Database, actor: Actor, *, ref: str, reason: str) -> InvoiceView:
    """Write off the open amount of an invoice; above the approval limit it waits for a second person.

    Raises NotFound, Conflict, WaitsForApproval.
    """
    require(actor, *PLATFORM_ROLES)
    async with read(database, actor, PLATFORM_ROLES) as connection:
        invoice = (await views.find_invoice(connection, ref)).invoice
    facts = {"invoice_id": str(invoice.id), "number": invoice.number, "reason": clean_reason(reason)}

    async def amount(connection: AsyncConnection) -> int:
        return PICO_PER_CENT * await status_changes.lock_to_write_off(connection, invoice.id)

    return await under_limit(
        database,
        actor,
        apply_write_off,
        kind=WRITE_OFF,
        tenant_id=invoice.tenant_id,
        amount=amount,
        facts=facts,
    )


async def apply_write_off(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> InvoiceView:
    """Carry out `write_off_invoice`: what is open now, up to the amount that was requested."""
    del tenant_id
    invoice_id, at_most = UUID(facts["invoice_id"]), usd_to_pico(facts["amount_usd"]) // PICO_PER_CENT
    await status_changes.lock_to_write_off(connection, invoice_id)
    before = (await views.find_invoice(connection, str(invoice_id))).invoice
    await status_changes.write_off_invoice(connection, invoice_id, at_most=at_most)
    return await _read_and_record(connection, acting.actor, WRITE_OFF, before, facts["reason"])


async def _read_and_record(
    connection: AsyncConnection, actor: Actor, action: str, before: InvoiceView, reason: str
) -> InvoiceView:
    """Read the invoice again after its change, and log both states."""
    after = (await views.find_invoice(connection, str(before.id))).invoice
    await record(
        connection,
        actor,
        action,
        tenant_id=before.tenant_id,
        object_kind="invoice",
        object_id=before.id,
        reason=reason,
        before={"number": before.number, "status": before.status, "total_usd": before.total_usd},
        after={"status": after.status, "carried_usd": after.carried_usd},
    )
    return after
