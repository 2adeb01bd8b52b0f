"""Scopes of tokens: what a token may do at most, whatever the role of its person allows."""

from collections.abc import Sequence
from typing import Literal, get_args

from core.errors import InvalidRequest

Scope = Literal["read", "write", "access"]
"""`read`: what reads; `write`: every act besides; `access`: also acts on people, invitations, passwords and tokens."""
ALL_SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Each includes those before it."""
DEFAULT_SCOPES: tuple[Scope, ...] = ("read", "write")
"""Of a token whose maker names none."""

_ACCESS_ACTS = ("user.", "invitation.", "token.", "sign_in.", "session.revoke", "session.end_all")
"""Beginnings of the acts that give or take access. To end one's own session, or the token that acts, takes `write`."""


def scope_of(action: str) -> Scope:
    """The scope that an administrative act takes, by its name in the audit log."""
    return "access" if action.startswith(_ACCESS_ACTS) else "write"


def clean_scopes(names: Sequence[str]) -> tuple[Scope, ...]:
    """`names` with the scopes that they include. Raises InvalidRequest for none, and for a name that is no scope."""
    for name in names:
        if name not in ALL_SCOPES:
            raise InvalidRequest(
                f"scopes must be of {', '.join(ALL_SCOPES)}, not {name[:40]!r}", param="scopes"
            )
    if not names:
        raise InvalidRequest(f"name at least one scope of {', '.join(ALL_SCOPES)}", param="scopes")
    highest = max(ALL_SCOPES.index(name) for name in ALL_SCOPES if name in names)
    return ALL_SCOPES[: highest + 1]
