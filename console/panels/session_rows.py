"""Rows of open sessions, of oneself or of a person whom the viewer manages."""

from uuid import UUID

from admin import sessions as admin_sessions
from console.components.table import Column, Row, actions_cell, cell
from console.deps import Console
from console.format import moment
from console.viewer import Viewer

_KINDS = {"console": "Console", "session": "REST"}
_PROOFS = {"password": "Password", "second_factor": "Password and code", "oidc": "Identity provider"}
SESSION_COLUMNS = (
    Column("opened", "Opened"),
    Column("kind", "Kind"),
    Column("from", "From"),
    Column("proof", "Signed in by"),
    Column("used", "Last used", numeric=True),
    Column("ends", "Ends", numeric=True),
    Column("acts", ""),
)


async def session_rows(
    console: Console, viewer: Viewer, user_id: UUID, *, current: UUID | None = None
) -> list[Row]:
    """The open sessions of a person; the one with the id `current` is marked and has no action."""
    now = console.clock.now()
    sessions = await admin_sessions.list_sessions(console.database, viewer.actor, user_id=user_id, now=now)
    return [
        {
            "id": str(one.id),
            "opened": cell(moment(one.created_at, now), sub="this session" if one.id == current else ""),
            "kind": cell(_KINDS[one.kind]),
            "from": cell(one.address or "not known", sub=one.client[:80]),
            "proof": cell(_PROOFS[one.proved_by]),
            "used": cell(moment(one.last_used_at or one.created_at, now)),
            "ends": cell(moment(one.expires_at, now)),
            "acts": actions_cell([] if one.id == current else [("end", "End", "bad")], "session"),
        }
        for one in sessions
    ]
