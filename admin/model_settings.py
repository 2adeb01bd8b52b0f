"""Shared parts of what an admin sets for a model (admin.targets, admin.scaling): the model's row, and the audit."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor
from admin.audit import record
from core.errors import Conflict, NotFound
from tenants.names import clean_reason
from workers.models import ModelRow


def offered(rows: list[ModelRow], name: str) -> ModelRow:
    """The row of a model. Raises NotFound, and Conflict for an alias."""
    row = next((row for row in rows if row.name == name and row.status != "retired"), None)
    if row is None:
        raise NotFound(f"no model {name!r} is offered; `penstock models list` shows them", param="model")
    if row.alias_of is not None:
        raise Conflict(
            f"{name!r} is an alias of {row.alias_of!r} and has its settings; name that model", param="model"
        )
    return row


async def record_change(
    connection: AsyncConnection,
    actor: Actor,
    model: str,
    action: str,
    before: msgspec.Struct | None,
    after: msgspec.Struct | None,
    reason: str | None,
) -> None:
    """Record a change of a model's settings. Raises InvalidRequest for a reason that is empty or too long."""
    await record(
        connection,
        actor,
        action,
        tenant_id=None,
        object_kind="model",
        object_id=model,
        reason=None if reason is None else clean_reason(reason),
        before=before,
        after=after,
    )
