"""Issues statements: drafts on request, final ones once a month is closed. Final statements are stored as signed."""

import asyncio
import logging
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.months import month_name
from billing.notifications.notices import notify
from billing.statements import pdf, signing
from billing.statements.body import TYPE, statement_body
from billing.statements.canonical import canonical
from billing.statements.signing import Signer
from billing.statements.verify import append_signature
from core.db import Database
from core.errors import Conflict
from core.ids import uuid7
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)


class Statement(msgspec.Struct, frozen=True):
    """A signed statement as JSON and PDF files."""

    month: str
    final: bool
    revision: int
    document: bytes
    """JSON with its signature."""
    pdf: bytes
    """PDF with its signature after the end."""


class StatementView(msgspec.Struct, frozen=True):
    """A final statement in a list."""

    id: UUID
    tenant_id: UUID
    month: str
    revision: int
    body_sha256: str
    key_id: str
    created_by: str
    created_at: str


async def list_statements(connection: AsyncConnection, tenant_id: UUID) -> list[StatementView]:
    """The final statements of an organisation, newest month and revision first."""
    rows = await connection.execute(
        text(
            "SELECT id, tenant_id, month, revision, body_sha256, key_id, created_by, created_at FROM statements "
            "WHERE tenant_id = :tenant ORDER BY month DESC, revision DESC"
        ),
        {"tenant": tenant_id},
    )
    return [
        StatementView(
            id=row.id,
            tenant_id=row.tenant_id,
            month=month_name(row.month),
            revision=row.revision,
            body_sha256=bytes(row.body_sha256).hex(),
            key_id=row.key_id,
            created_by=row.created_by,
            created_at=signing.format_instant(row.created_at),
        )
        for row in rows
    ]


async def get_statement(
    database: Database, signer: Signer, tenant_id: UUID, month: date, *, by: str, new_revision: bool = False
) -> Statement:
    """The stored statement of `month` (its first day), else a new one: final when the month is closed, else a draft.

    `new_revision` issues another revision when the content of a stored one has changed. `by` names the person or job.
    Raises NotFound and Conflict as `statement_body`, Conflict when another process issues it or the key is retired.
    """
    stored = await _latest(database, tenant_id, month)
    if stored is not None and not new_revision:
        return _statement(stored)
    body = await _body(database, tenant_id, month, 1 if stored is None else stored.revision + 1)
    if stored is not None and _is_unchanged(body, stored):
        return _statement(stored)
    pdf_file = await asyncio.to_thread(pdf.render, body)  # in a thread: many pages would block the event loop
    async with database.system() as connection:
        await signing.register_key(connection, signer)
        signature = signer.sign(TYPE, body, pdf_file)
        made = Statement(
            month=body["month"],
            final=body["final"],
            revision=body["revision"],
            document=signing.document(body, signature),
            pdf=append_signature(pdf_file, signature),
        )
        if made.final and not await _store(connection, tenant_id, month, made, signature, by):
            raise Conflict("this statement is being issued by another request; ask again")
    return made


async def _body(database: Database, tenant_id: UUID, month: date, revision: int) -> dict[str, Any]:
    """The statement's body, read in one snapshot."""
    async with database.read() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        return await statement_body(connection, tenant_id, month, revision=revision)


async def _latest(database: Database, tenant_id: UUID, month: date) -> Row[Any] | None:
    async with database.read() as connection:
        found = await connection.execute(
            text(
                "SELECT month, revision, document, pdf FROM statements WHERE tenant_id = :tenant "
                "AND month = :month ORDER BY revision DESC LIMIT 1"
            ),
            {"tenant": tenant_id, "month": month},
        )
        return found.one_or_none()


def _statement(row: Row[Any]) -> Statement:
    return Statement(
        month=month_name(row.month),
        final=True,
        revision=row.revision,
        document=row.document.encode(),
        pdf=bytes(row.pdf),
    )


def _is_unchanged(body: dict[str, Any], stored: Row[Any]) -> bool:
    """Whether a new revision would have the content of the stored one."""
    before = msgspec.json.decode(stored.document)["body"]
    volatile = ("issued_at", "revision", "lots")
    return canonical({k: v for k, v in body.items() if k not in volatile}) == canonical(
        {k: v for k, v in before.items() if k not in volatile}
    )


async def _store(
    connection: AsyncConnection,
    tenant_id: UUID,
    month: date,
    made: Statement,
    signature: dict[str, str],
    by: str,
) -> bool:
    """Store a final statement and notify the customer; False when another process stored it first."""
    inserted = await connection.execute(
        text(
            "INSERT INTO statements (id, tenant_id, month, revision, body_sha256, document, pdf, key_id, created_by) "
            "VALUES (:id, :tenant, :month, :revision, :sha, :document, :pdf, :key, :by) "
            "ON CONFLICT (tenant_id, month, revision) DO NOTHING"
        ),
        {
            "id": uuid7(),
            "tenant": tenant_id,
            "month": month,
            "revision": made.revision,
            "sha": bytes.fromhex(signature["body_sha256"]),
            "document": made.document.decode(),
            "pdf": made.pdf,
            "key": signature["key_id"],
            "by": by,
        },
    )
    if inserted.rowcount == 0:
        return False
    await notify(
        connection,
        tenant_id=tenant_id,
        kind="statement.issued",
        subject=f"Your statement of {made.month} is ready",
        body=f"The statement of {made.month} is final. It lies in the console under Billing, signed.\n",
        facts={"month": made.month, "revision": made.revision, "body_sha256": signature["body_sha256"]},
        key=f"statement|{tenant_id}|{made.month}|{made.revision}",
    )
    return True


async def issue_closed(database: Database, load: Callable[[], Signer], *, batch: int = 50) -> int:
    """Issue every missing final statement of closed months, `batch` at a time; returns how many.

    `load` loads the key and is called only when a statement is missing. A statement that cannot be issued is logged and
    does not stop the others; the first error other than Conflict is raised at the end.
    """
    signer: Signer | None = None
    issued = 0
    failures: list[Exception] = []
    rows = await _missing(database, None, batch)
    while rows:
        signer = signer or load()
        for row in rows:
            try:
                await get_statement(database, signer, row.tenant_id, row.month, by="penstock.statements")
                issued += 1
            except Conflict as error:
                log.error(
                    "no statement of %s for %s: %s", month_name(row.month), row.tenant_id, error.message
                )
            except Exception as error:
                log.exception("no statement of %s for %s", month_name(row.month), row.tenant_id)
                failures.append(error)
        rows = await _missing(database, rows[-1], batch)
    if failures:
        raise failures[0]
    return issued


@platform_wide("the job issues the statements of all organisations")
async def _missing(database: Database, after: Row[Any] | None, limit: int) -> list[Row[Any]]:
    """At most `limit` months and organisations without a final statement, in order, after the row `after`."""
    async with database.read() as connection:
        found = await connection.execute(
            text(
                "SELECT p.month, b.tenant_id FROM billing_periods p JOIN billing_accounts b "
                "ON b.created_at < p.ends_at WHERE p.status = 'closed' AND NOT EXISTS (SELECT 1 FROM statements s "
                "WHERE s.tenant_id = b.tenant_id AND s.month = p.month) AND (CAST(:month AS date) IS NULL "
                "OR (p.month, b.tenant_id) > (CAST(:month AS date), CAST(:tenant AS uuid))) "
                "ORDER BY p.month, b.tenant_id LIMIT :limit"
            ),
            {
                "month": None if after is None else after.month,
                "tenant": None if after is None else after.tenant_id,
                "limit": limit,
            },
        )
        return list(found)
