"""Notices: what an organisation or the platform is told, written in the transaction of what happened.

A notice is a row; `plan` gives it a delivery for each endpoint that wants its kind, and
billing/notifications/delivery.py sends them by webhook and e-mail. Nothing is sent inside of the transaction that
caused it.
"""

from typing import Any
from uuid import UUID

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications.tables import notices
from core.ids import uuid7

MAX_SUBJECT = 200
MAX_BODY = 20_000


async def notify(
    connection: AsyncConnection,
    *,
    tenant_id: UUID | None,
    kind: str,
    subject: str,
    body: str,
    facts: dict[str, Any],
    key: str | None = None,
) -> None:
    """Tell organisation `tenant_id`, or the platform's own people when None, in the caller's transaction.

    `kind` is a stable name such as `budget.threshold` or `invoice.finalized`; `facts` are JSON-safe (amounts as decimal
    strings). The same `key` again tells nothing more. A longer subject or body is cut.
    """
    statement = insert(notices).values(
        id=uuid7(),
        tenant_id=tenant_id,
        kind=kind,
        subject=" ".join(subject.split())[:MAX_SUBJECT],
        body=body[:MAX_BODY],
        facts=facts,
        dedupe_key=key,
    )
    await connection.execute(statement.on_conflict_do_nothing(index_elements=["dedupe_key"]))
