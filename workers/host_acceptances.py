"""Stores what the checks of hosts found, one row for each check, and lists it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import desc, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.tables import host_acceptances
from workers.wire import AcceptanceReport


class StoredAcceptance(msgspec.Struct, frozen=True):
    """One check of a host, as it stood last."""

    host_id: str
    at: datetime
    verdict: str
    findings: list[dict[str, str]]
    """`severity`, `check` and `text` of each, the worst first."""
    figures: dict[str, float]


async def store_acceptance(connection: AsyncConnection, host_id: str, report: AcceptanceReport) -> None:
    """Store a report. The speed of an engine that starts later changes the row of its check; repeats change nothing."""
    row = insert(host_acceptances).values(
        host_id=host_id,
        checked_at=datetime.fromtimestamp(report.at_unix_ms / 1000, UTC),
        verdict=report.verdict,
        findings=msgspec.to_builtins(report.findings),
        figures=report.figures,
    )
    table, new = host_acceptances.c, row.excluded
    await connection.execute(
        row.on_conflict_do_update(
            index_elements=[table.host_id, table.checked_at],
            set_={"verdict": new.verdict, "findings": new.findings, "figures": new.figures},
            where=or_(
                table.verdict != new.verdict, table.findings != new.findings, table.figures != new.figures
            ),
        )
    )


async def list_acceptances(
    connection: AsyncConnection, *, host_id: str | None = None, limit: int
) -> Sequence[StoredAcceptance]:
    """Checks of one host or of all, the newest first, at most `limit`."""
    table = host_acceptances.c
    statement = select(host_acceptances).order_by(desc(table.checked_at), table.host_id).limit(limit)
    if host_id is not None:
        statement = statement.where(table.host_id == host_id)
    return [
        StoredAcceptance(row.host_id, row.checked_at, row.verdict, row.findings, row.figures)
        for row in await connection.execute(statement)
    ]
