"""Counts attempts to sign in: passwords by mail and network address, codes of a second factor by person.

Each counts as failed before it is checked, and is forgotten when it was right, so parallel ones cannot evade the count.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from admin.actor import actor_of
from admin.audit import record_self
from admin.factor_codes import WRONG_CODE, GivenCode
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, RateLimited
from tenants import logins, members, second_factors
from tenants.names import clean_email
from tenants.second_factors import MAX_WRONG_CODES


async def count_attempt(database: Database, email: str, address: str) -> None:
    """Count an attempt to give the password of a mail address as failed. Raises RateLimited after too many."""
    async with database.system() as connection:
        wait_s = await logins.count_attempt(connection, email, address[:64])
    if wait_s is not None:
        raise RateLimited(
            "Too many failed sign-ins. Wait a while and try again.",
            code="too_many_logins",
            retry_after_s=wait_s,
        )


async def clear_attempts(database: Database, email: str, address: str) -> None:
    """Forget the attempts that were counted, since one succeeded."""
    async with database.system() as connection:
        await logins.clear_failures(connection, email, address[:64])


def mail_address(typed: str) -> tuple[bool, str]:
    """(whether `typed` is a valid address, the key under which to count the attempt)."""
    try:
        return True, clean_email(typed[:1024])
    except InvalidRequest:
        return False, typed[:254]


@asynccontextmanager
async def counted_code(
    database: Database, user_id: UUID, code: GivenCode | None, address: str
) -> AsyncIterator[None]:
    """Count a code that is checked within; `second_factors.forget_wrong_codes` there makes it a right one.

    Raises AuthenticationFailed after `MAX_WRONG_CODES` wrong ones in a row, whatever the code is.
    """
    if code is not None and code.text.strip():
        async with database.system() as connection:
            if not await second_factors.count_code(connection, user_id):
                raise _locked()
    try:
        yield
    except AuthenticationFailed as error:
        if error.code == WRONG_CODE:
            await _record_wrong_code(database, user_id, address)
        raise


async def _record_wrong_code(database: Database, user_id: UUID, address: str) -> None:
    """Add an audit row for the first wrong code within `logins.WINDOW`, and one for the last that is allowed."""
    async with database.system() as connection:
        count = await second_factors.note_wrong_code(connection, user_id, logins.WINDOW)
        user = None if count is None else await members.get_user(connection, user_id)
        if count is not None and user is not None:
            action = "user.lock_second_factor" if count >= MAX_WRONG_CODES else "user.wrong_second_factor"
            facts: dict[str, object] = {"address": address[:64], "wrong_codes": count}
            await record_self(connection, actor_of("user", user), action, facts)


def _locked() -> AuthenticationFailed:
    return AuthenticationFailed(
        f"The second factor of this account is locked after {MAX_WRONG_CODES} wrong codes in a row. Ask an admin of "
        "the platform to remove it, then enrol a new one.",
        code="second_factor_locked",
        param="code",
    )
