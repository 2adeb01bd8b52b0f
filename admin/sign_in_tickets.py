"""What a sign-in form carries from its first step to its second: sealed, for minutes, and of no use without a code."""

from datetime import datetime, timedelta

import msgspec

from admin.logins import RightPassword
from admin.second_factor import Enrolment
from core.errors import AuthenticationFailed, Unavailable
from tenants.sealed import seal_text, unseal_text

LIFE = timedelta(minutes=10)
_PURPOSE = "sign-in ticket"


class Ticket(msgspec.Struct, frozen=True):
    """What the second step is told."""

    right: RightPassword
    ends_at: datetime
    enrolment: Enrolment | None = None
    """The second factor that the person enrols, to show it again after a wrong code."""


def issue(right: RightPassword, pepper: bytes, now: datetime, enrolment: Enrolment | None = None) -> str:
    """A ticket that says that the right password was given, as text of a form."""
    return seal_text(pepper, _PURPOSE, Ticket(right, now + LIFE, enrolment))


def read(text: str, pepper: bytes, now: datetime) -> Ticket:
    """The ticket. Raises AuthenticationFailed for a text that is none, or is older than LIFE."""
    try:
        ticket = unseal_text(pepper, _PURPOSE, text, Ticket)
    except Unavailable:
        raise _ended() from None
    if now > ticket.ends_at:
        raise _ended()
    return ticket


def _ended() -> AuthenticationFailed:
    return AuthenticationFailed("This sign-in took too long. Begin again.", code="sign_in_expired")
