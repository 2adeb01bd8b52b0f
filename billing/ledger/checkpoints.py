"""Verified checkpoints of the hash chain, with the ledger's sums by month, account and kind.

A checkpoint says that the links up to it were recomputed from their transfers. The verification of the books for a
close begins there, and takes balances from the sums, so that its time does not grow with the ledger's age. What a
checkpoint covers is recomputed in turns by a job, a slice at a time; `verification.verify` recomputes everything.
"""

import logging

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.ledger.invariants import BOOK_CHECKS, FRESH_CHECKS, HOLD_CHECKS
from billing.ledger.verification import violations
from core.db import Database
from tenants.scoping import platform_wide

log = logging.getLogger(__name__)

STEP = 200_000
"""Transfers that one transaction adds to a checkpoint, approximately."""
SLICE = 1_000_000
"""Transfers between two checkpoints that are kept, approximately: what one run of the job recomputes."""
_ALL = 9_223_372_036_854_775_807


class RecentVerification(msgspec.Struct, frozen=True):
    """The result of `verify_recent`; the books are sound when `problems` is empty."""

    covered: int
    """Transfers up to the newest checkpoint."""
    fresh: int
    """Transfers of sound links after it."""
    oldest: str | None
    """When the slice was recomputed that waits longest for its turn, ISO 8601; None without a checkpoint."""
    problems: list[str]


@platform_wide("the ledger is one chain")
async def advance(database: Database) -> int:
    """Verify the links after the newest checkpoint and move it there, STEP by STEP; returns the number of transfers.

    A link that is not sound stops it. `verify_recent` then reports that link.
    """
    total = 0
    while True:
        async with database.system() as connection:
            moved = await connection.scalar(
                text("SELECT penstock_checkpoint(:step, :slice)"), {"step": STEP, "slice": SLICE}
            )
        total += int(moved or 0)
        if not moved or moved < STEP:
            return total


@platform_wide("the ledger is one chain")
async def verify_slice(database: Database) -> int:
    """Recompute the slice that was recomputed longest ago; returns its transfers. The checklist shows its problems."""
    async with database.system() as connection:
        transfers = int(await connection.scalar(text("SELECT penstock_verify_slice()")) or 0)
        problems = await connection.scalars(
            text("SELECT problem FROM ledger_checkpoints WHERE problem IS NOT NULL ORDER BY seq")
        )
        for problem in problems:
            log.error("the ledger does not verify: %s", problem)
    return transfers


@platform_wide("the books are verified as a whole")
async def verify_recent(connection: AsyncConnection) -> RecentVerification:
    """Check the invariants without reading a transfer that a checkpoint covers, in the caller's transaction."""
    problems = await violations(connection, FRESH_CHECKS | HOLD_CHECKS | BOOK_CHECKS)
    newest = (
        await connection.execute(
            text(
                "SELECT coalesce(max(seq), 0) AS seq, coalesce(max(transfers), 0) AS transfers, "
                "min(verified_at) AS oldest, "
                "(SELECT hash FROM ledger_checkpoints ORDER BY seq DESC LIMIT 1) AS hash FROM ledger_checkpoints"
            )
        )
    ).one()
    links = (
        await connection.execute(
            text("SELECT transfers, problem FROM penstock_verify_links(:seq, :hash, :all, :all)"),
            {"seq": newest.seq, "hash": newest.hash or b"", "all": _ALL},
        )
    ).one()
    if links.problem is not None:
        problems.append(links.problem)
    return RecentVerification(
        covered=newest.transfers,
        fresh=links.transfers,
        oldest=None if newest.oldest is None else newest.oldest.isoformat(timespec="seconds"),
        problems=problems,
    )
