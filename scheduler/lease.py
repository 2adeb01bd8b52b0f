"""Which scheduler serves: the rules of the lease, with the time passed in (docs/adr/0043-active-and-standby.md).

The lease is one row in PostgreSQL with its owner, a term that grows with each owner, and the instant of the last
renewal by PostgreSQL's clock. Times here are seconds of a process's own monotonic clock.
"""

import math
from datetime import datetime

import msgspec

RENEW_S = 0.5
"""Seconds between two renewals by the owner."""
LEASE_S = 2.5
"""Seconds after the last renewal at which another scheduler may take the lease."""
POLL_S = 0.25
"""Seconds between two looks at the row by a standby."""
PAUSE_S = 1.0
"""Seconds between two answers of PostgreSQL above which a standby begins to watch anew: it may have been away."""
SILENT_S = 1.0
"""Seconds of silence, in which this process ran, after which PostgreSQL counts as away."""
COUNTED_S = 0.5
"""Most seconds between two looks that count as silence: longer ones are a pause of this process."""
STALL_S = 1.5
"""Seconds between two looks from which nothing is known of PostgreSQL. A standby that began to watch after the last
look cannot have taken the lease within this time, because it must watch for LEASE_S."""


class LeaseRow(msgspec.Struct, frozen=True):
    """The lease as PostgreSQL answered."""

    term: int
    owner: str
    """Empty when the last owner has released it."""
    renewed_at: datetime
    expired: bool
    """Whether LEASE_S have passed since `renewed_at` by PostgreSQL's clock."""


class Watch:
    """What a standby has seen of the lease. It may take one that was not renewed while PostgreSQL answered."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        self._since = math.inf
        self._answered_at = -math.inf

    def saw(self, row: LeaseRow, now: float) -> None:
        """Note an answer that arrived at `now`."""
        seen = (row.term, row.renewed_at)
        if seen != self._seen or now - self._answered_at > PAUSE_S:
            self._seen, self._since = seen, now
        self._answered_at = now

    def silence(self) -> None:
        """Note that PostgreSQL has not answered: an owner that cannot renew has not lost the lease."""
        self._answered_at = -math.inf

    def may_take(self, row: LeaseRow, me: str, now: float) -> bool:
        """Whether the scheduler `me` may take the lease as `row`, which was noted before, shows it.

        A lease of `me` itself is that of an earlier process at the same address, which has ended.
        """
        return row.owner in ("", me) or (row.expired and now - self._since >= LEASE_S)


class Tenure:
    """One time of owning the lease: whether the owner may serve now."""

    def __init__(self, term: int, asked_at: float) -> None:
        """`asked_at`: when the statement was sent that took the lease."""
        self.term = term
        self.ended = ""
        """Why the lease is lost; empty while it is not."""
        self._sure_until = asked_at + LEASE_S
        self._looked_at = asked_at
        self._silent_s = 0.0

    def renewed(self, asked_at: float, now: float) -> None:
        """Note at `now` that a renewal which was sent at `asked_at` has succeeded."""
        self._sure_until = max(self._sure_until, asked_at + LEASE_S)
        if now < self._sure_until:
            self._silent_s = 0.0

    def end(self, why: str) -> None:
        """Note that the lease is lost."""
        self.ended = self.ended or why

    def holds(self, now: float) -> bool:
        """Whether the owner may serve; call it several times a second and before each piece of work.

        It may while the last renewal covers `now`. After that it may only if PostgreSQL is away: without an answer for
        SILENT_S in which this process ran. A process that did not run for STALL_S has not listened, and cannot tell.
        """
        pause_s = now - self._looked_at
        self._looked_at = now
        self._silent_s = 0.0 if pause_s >= STALL_S else self._silent_s + min(pause_s, COUNTED_S)
        if not self.ended and now >= self._sure_until and self._silent_s < SILENT_S:
            self.end(f"this process did not run for {pause_s:.1f} s, and the lease may have passed on")
        return not self.ended
