"""The seal of the audit log: a hash chain over its rows, which links of the ledger's chain cover.

The sealer gives each row its number. Exports of the log order by this number.
"""

import hashlib

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.scoping import platform_wide

SEAL_BATCH = 1_000
"""Rows of the audit log that one transaction seals."""

_ROWS = """
    SELECT c.seq, c.entry_id, c.hash, a.id, a.action, penstock_audit_text(c.seq, a) AS line
    FROM audit_chain c LEFT JOIN audit_log a ON a.id = c.entry_id ORDER BY c.seq
"""
_UNCOVERED = """
    SELECT coalesce(u.entry_id, a.id) AS id, a.id IS NULL AS gone
    FROM audit_log a FULL JOIN audit_unsealed u ON u.entry_id = a.id
    WHERE a.id IS NULL OR (u.entry_id IS NULL AND NOT EXISTS (SELECT FROM audit_chain c WHERE c.entry_id = a.id))
    ORDER BY 1 LIMIT 1
"""


async def seal(connection: AsyncConnection) -> int:
    """Seal up to SEAL_BATCH rows of the audit log that wait; returns how many. One sealer works at a time."""
    sealed = await connection.execute(text("SELECT penstock_seal_audit(:limit)"), {"limit": SEAL_BATCH})
    return int(sealed.scalar_one())


@platform_wide("the audit log is one chain")
async def problems(connection: AsyncConnection) -> list[str]:
    """What differs from the seal of the audit log: the first row of its chain, and the first row outside of it.

    Whether the chain itself was made anew, its links in the ledger's chain say (verification.py).
    """
    found = [problem] if (problem := await _first_broken(connection)) is not None else []
    for row in await connection.execute(text(_UNCOVERED)):
        what = "was removed before it was sealed" if row.gone else "was added beside the seal"
        found.append(f"the row {row.id} of the audit log {what}")
    return found


@platform_wide("the audit log is one chain")
async def _first_broken(connection: AsyncConnection) -> str | None:
    rows = await connection.stream(text(_ROWS))
    seq, previous = 0, b""
    try:
        async for row in rows:
            seq += 1
            if row.seq != seq:
                return f"the audit log's chain has a gap at {seq}"
            if row.id is None:
                return f"row {seq} of the audit log ({row.entry_id}) was removed"
            previous = hashlib.sha256(previous + row.line.encode()).digest()
            if previous != row.hash:
                return f"row {seq} of the audit log ({row.entry_id}, {row.action}) is not the one that was sealed"
    finally:
        await rows.close()
    return None
