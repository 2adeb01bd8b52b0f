"""What was found equal to Stripe, so that a later comparison of the month asks Stripe only for what changed since.

An object is taken as equal while our facts have the digest of then, no event of Stripe's object was recorded since, and
its instant of the week has not passed since (`is_due_again`). These instants are spread over the week, so that the
objects that were first compared together are not all compared again in one run. `CallBudget` bounds the calls of a run.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

COMPARED_EVERY = timedelta(days=7)
"""Time in which each object is compared again once although nothing has changed."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_due_again(kind: str, object_id: str, compared_at: datetime, now: datetime) -> bool:
    """Whether the instant of the object in each COMPARED_EVERY, by the hash of its name, lies in (compared_at, now]."""
    named = hashlib.sha256(f"{kind} {object_id}".encode()).digest()
    offset = timedelta(seconds=int.from_bytes(named[:8]) % int(COMPARED_EVERY.total_seconds()))
    return (now - _EPOCH - offset) // COMPARED_EVERY > (compared_at - _EPOCH - offset) // COMPARED_EVERY


class CallBudget:
    """The calls of Stripe that a run may still make, over all months that it compares."""

    def __init__(self, calls: int | None = None) -> None:
        """`calls` None = as many as it takes."""
        self._left = calls

    def take(self, calls: int) -> bool:
        """Whether `calls` calls may be made; they count as made."""
        if self._left is None:
            return True
        if self._left < calls:
            return False
        self._left -= calls
        return True


class _Equal(msgspec.Struct, frozen=True):
    digest: bytes
    figures: tuple[int, ...]
    compared_at: datetime


class Compared:
    """The objects of one month that were found equal, and those that this comparison finds."""

    def __init__(self, known: dict[tuple[str, str], _Equal], began_at: datetime) -> None:
        self._known = known
        self._began_at = began_at
        self._equal: dict[tuple[str, str], _Equal] = {}
        self._different: set[tuple[str, str]] = set()

    @classmethod
    async def load(
        cls, connection: AsyncConnection, month: date, began_at: datetime, *, only_changed: bool
    ) -> "Compared":
        """What is known of `month`; nothing unless `only_changed`."""
        if not only_changed:
            return cls({}, began_at)
        rows = await connection.execute(
            text(
                "SELECT kind, object_id, digest, figures, compared_at FROM stripe_compared WHERE month = :month"
            ),
            {"month": month},
        )
        known = {
            (row.kind, row.object_id): _Equal(row.digest, tuple(row.figures), row.compared_at)
            for row in rows
            if not is_due_again(row.kind, row.object_id, row.compared_at, began_at)
        }
        return cls(known, began_at)

    def figures(
        self, kind: str, object_id: str, facts: Any, changed_at: datetime | None = None
    ) -> tuple[int, ...] | None:
        """Stripe's figures of an object that equalled `facts` after `changed_at`; None = ask Stripe."""
        found = self._known.get((kind, object_id))
        if found is None or found.digest != _digest(facts):
            return None
        return found.figures if changed_at is None or changed_at < found.compared_at else None

    def equal(self, kind: str, object_id: str, facts: Any, figures: Sequence[int]) -> None:
        """Keep that an object equals `facts`."""
        self._equal[kind, object_id] = _Equal(_digest(facts), tuple(figures), self._began_at)

    def different(self, kind: str, object_id: str) -> None:
        """Forget an object, which is then compared each time."""
        self._different.add((kind, object_id))

    async def store(self, connection: AsyncConnection, month: date) -> None:
        """Store what was found equal and delete what differs."""
        if self._different:
            await connection.execute(
                text("DELETE FROM stripe_compared WHERE month = :month AND kind = :kind AND object_id = :id"),
                [{"month": month, "kind": kind, "id": one} for kind, one in self._different],
            )
        if self._equal:
            await connection.execute(
                text(
                    "INSERT INTO stripe_compared (month, kind, object_id, digest, figures, compared_at) "
                    "VALUES (:month, :kind, :id, :digest, :figures, :at) ON CONFLICT (month, kind, object_id) "
                    "DO UPDATE SET digest = excluded.digest, figures = excluded.figures, "
                    "compared_at = excluded.compared_at"
                ),
                [
                    {
                        "month": month,
                        "kind": kind,
                        "id": one,
                        "digest": found.digest,
                        "figures": list(found.figures),
                        "at": found.compared_at,
                    }
                    for (kind, one), found in self._equal.items()
                ],
            )


def _digest(facts: Any) -> bytes:
    """SHA-256 of `facts` as JSON."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).digest()
