"""The data set of the audit log: its sealed rows in the order of their numbers, which have no gaps."""

from datetime import UTC

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exports.book_rows import blocks
from billing.exports.columns import ColumnKind, Record, columns
from billing.exports.datasets import Dataset, DatasetQuery
from billing.usage.query import check_period

AUDIT_VERSION = "audit/1"
_T = ColumnKind.TEXT

AUDIT = columns(
    seq=ColumnKind.INTEGER, at=ColumnKind.INSTANT, id=_T, actor_kind=_T, actor_id=_T, actor=_T, action=_T, tenant_id=_T,
    object_kind=_T, object_id=_T, reason=_T, before=_T, after=_T, seal=_T,
)  # fmt: skip

_ROWS = """
    SELECT c.seq, a.at, a.id, a.actor_kind, a.actor_id, a.actor_label, a.action, a.tenant_id, a.object_kind,
        a.object_id, a.reason, a.before::text AS before, a.after::text AS after, encode(c.hash, 'hex') AS seal
    FROM audit_log a JOIN audit_chain c ON c.entry_id = a.id
    WHERE a.at >= :start AND a.at < :end AND (CAST(:tenant AS uuid) IS NULL OR a.tenant_id = :tenant)
    ORDER BY c.seq
"""


def audit(connection: AsyncConnection, query: DatasetQuery) -> Dataset:
    """The rows of the audit log that were written in the period and are sealed.

    Raises InvalidRequest for an invalid period.
    """
    check_period(query.start, query.end)
    bound = {"start": query.start, "end": query.end, "tenant": query.tenant_id}
    return Dataset("audit", AUDIT_VERSION, AUDIT, blocks(connection, _ROWS, bound, _record))


def _record(row: "Row[tuple[object, ...]]") -> Record:
    return (
        row.seq,
        row.at.astimezone(UTC),
        str(row.id),
        row.actor_kind,
        row.actor_id,
        row.actor_label,
        row.action,
        None if row.tenant_id is None else str(row.tenant_id),
        row.object_kind,
        row.object_id,
        row.reason,
        row.before,
        row.after,
        row.seal,
    )
