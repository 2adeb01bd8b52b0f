"""Notices to organisations or the platform's operators, written in the transaction of their cause.

billing/notifications/delivery.py plans a delivery per endpoint and sends it by webhook or e-mail, after that
transaction is committed.
"""

from typing import Any
from uuid import UUID

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications.tables import notices
from core.ids import uuid7

MAX_SUBJECT = 200
"""Characters of a subject."""
MAX_BODY = 20_000
"""Characters of a body."""


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
    """Write a notice to organisation `tenant_id`, or to the platform's operators (None), in the caller's transaction.

    `kind` is a stable name such as `budget.threshold`; `facts` must be JSON values, with amounts as decimal strings. A
    notice with the `key` of an earlier one is dropped. `subject` and `body` are cut to MAX_SUBJECT and MAX_BODY.
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
