"""The result of sending an invoice or credit note to Stripe (table stripe_pushes)."""

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.notifications import notices


async def block_push(
    connection: AsyncConnection, kind: str, object_id: UUID, tenant_id: UUID, problem: str
) -> None:
    """Mark a push blocked until a person resolves `problem`, and notify operators. `kind` as in `record_push`."""
    await record_push(connection, kind, object_id, tenant_id, "blocked", problem)
    await notices.notify(
        connection,
        tenant_id=None,
        kind="stripe.blocked",
        subject=f"A {kind.replace('_', ' ')} was not sent to Stripe",
        body=f"{kind} {object_id}: {problem}\nNothing was sent to the customer. See `penstock payments events`.",
        facts={"kind": kind, "id": str(object_id), "tenant_id": str(tenant_id), "problem": problem},
        key=f"stripe-blocked-{kind}-{object_id}",
    )


async def record_push(
    connection: AsyncConnection, kind: str, object_id: UUID, tenant_id: UUID, status: str, problem: str | None
) -> None:
    """Store a push's status (done | blocked). `kind` is invoice or credit_note, `object_id` our id of it."""
    await connection.execute(
        text(
            "INSERT INTO stripe_pushes (kind, object_id, tenant_id, status, error) "
            "VALUES (:kind, :id, :tenant, :status, :error) ON CONFLICT (kind, object_id) DO UPDATE SET "
            "status = excluded.status, error = excluded.error, updated_at = clock_timestamp()"
        ),
        {"kind": kind, "id": object_id, "tenant": tenant_id, "status": status, "error": problem},
    )
