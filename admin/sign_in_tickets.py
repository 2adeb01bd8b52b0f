"""What a sign-in form carries from its first step to its second: sealed, for minutes, and of no use without a code."""

import base64
import binascii
from datetime import datetime, timedelta

import msgspec

from admin.logins import RightPassword
from core.errors import AuthenticationFailed, Unavailable
from tenants.sealed import seal, unseal

LIFE = timedelta(minutes=10)
_PURPOSE = "sign-in ticket"


class _Ticket(msgspec.Struct, frozen=True):
    right: RightPassword
    ends_at: datetime


def issue(right: RightPassword, pepper: bytes, now: datetime) -> str:
    """A ticket for somebody who has given the right password, as text of a form."""
    plain = msgspec.json.encode(_Ticket(right, now + LIFE))
    return base64.urlsafe_b64encode(seal(pepper, _PURPOSE, "", plain)).decode()


def read(text: str, pepper: bytes, now: datetime) -> RightPassword:
    """Who gave the password. Raises AuthenticationFailed for a ticket that is none, or is older than LIFE."""
    try:
        ticket = msgspec.json.decode(
            unseal(pepper, _PURPOSE, "", base64.urlsafe_b64decode(text)), type=_Ticket
        )
    except (binascii.Error, ValueError, Unavailable, msgspec.MsgspecError):
        raise _ended() from None
    if now > ticket.ends_at:
        raise _ended()
    return ticket.right


def _ended() -> AuthenticationFailed:
    return AuthenticationFailed("This sign-in took too long. Begin again.", code="sign_in_expired")
