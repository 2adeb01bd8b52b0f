"""Throttles sign-ins: counts failures per email address, per network address, and per pair of both.

An attempt counts as failed before the password is checked, and is removed when the password was right, so parallel
attempts cannot evade the count.
"""

import hashlib
from datetime import timedelta

from sqlalchemy import case, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from tenants.tables import login_failures

WINDOW = timedelta(minutes=15)
"""Period over which failures are counted, from the first one on."""
FAILURES_PER_EMAIL_AND_ADDRESS = 5
FAILURES_PER_EMAIL = 50
FAILURES_PER_ADDRESS = 100


def _subjects(email: str, address: str) -> dict[bytes, int]:
    """Hash of each counted subject -> failures allowed within the window. Addresses are stored only as hashes."""
    named = {f"email:{email}": FAILURES_PER_EMAIL}
    if address:
        named[f"pair:{email}|{address}"] = FAILURES_PER_EMAIL_AND_ADDRESS
        named[f"address:{address}"] = FAILURES_PER_ADDRESS
    return {
        hashlib.sha256(subject.encode("utf-8", "surrogatepass")).digest(): allowed
        for subject, allowed in named.items()
    }


async def count_attempt(connection: AsyncConnection, email: str, address: str) -> float | None:
    """Count an attempt as failed; the seconds to wait when there were too many, else None.

    `address` is the client's network address; empty = unknown, only `email` is counted.
    """
    window_over = login_failures.c.window_start <= func.now() - WINDOW
    wait_s: float | None = None
    for subject, allowed in sorted(_subjects(email, address).items()):
        row = (
            await connection.execute(
                insert(login_failures)
                .values(subject=subject, failures=1)
                .on_conflict_do_update(
                    index_elements=["subject"],
                    set_={
                        "failures": case((window_over, 1), else_=login_failures.c.failures + 1),
                        "window_start": case((window_over, func.now()), else_=login_failures.c.window_start),
                    },
                )
                .returning(
                    login_failures.c.failures,
                    func.extract("epoch", login_failures.c.window_start + WINDOW - func.now()),
                )
            )
        ).one()
        if row[0] > allowed:
            # now() of a transaction that began before the window did would give more than the window.
            wait_s = max(wait_s or 0.0, min(float(row[1]), WINDOW.total_seconds()), 1.0)
    return wait_s


async def clear_failures(connection: AsyncConnection, email: str, address: str) -> None:
    """Delete the failures of this email address after a successful sign-in; those of `address` remain."""
    subjects = [
        subject for subject, allowed in _subjects(email, address).items() if allowed != FAILURES_PER_ADDRESS
    ]
    await connection.execute(delete(login_failures).where(login_failures.c.subject.in_(subjects)))


async def prune(connection: AsyncConnection) -> int:
    """Delete counters whose window is over; returns the number of rows."""
    old = select(login_failures.c.subject).where(login_failures.c.window_start <= func.now() - WINDOW)
    result = await connection.execute(delete(login_failures).where(login_failures.c.subject.in_(old)))
    return result.rowcount
