"""The second factor of a person: enrolled, renewed and disabled with the password, removed by the platform's admins.

A session or token alone does none of these acts: a page left open must not let another person change how its owner
signs in.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require, visible_user
from admin.audit import record, record_self
from admin.factor_codes import GivenCode, new_backup_codes, new_secret, uri_of, use_totp, wrong_code
from admin.logins import RightPassword, SignIn, prove, wrong_credentials
from admin.sign_in_attempts import counted_code
from admin.transactions import write_system
from core.db import Database
from core.errors import Conflict, PermissionDenied
from tenants import admin_tokens, members, second_factors
from tenants.admin_tokens import SESSION_KINDS
from tenants.roles import PLATFORM_ADMIN
from tenants.sign_in_rules import read_rule
from tenants.views import UserView

T = TypeVar("T", covariant=True)


class Enrolment(msgspec.Struct, frozen=True):
    """A second factor that a code must confirm still. Shown to its person only."""

    secret: str
    """In base32, to type in."""
    uri: str
    """What a QR code says."""

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return "Enrolment()"


class Enrolled(msgspec.Struct, frozen=True):
    """A second factor that a code has confirmed."""

    backup_codes: Sequence[str]
    """Shown once."""
    signed_in: SignIn
    """The person, proved by password and code."""

    def __repr__(self) -> str:
        """Without the codes, so that no log can show them."""
        return "Enrolled()"


class FactorState(msgspec.Struct, frozen=True):
    """The second factor of a person as it may be shown."""

    enrolled: bool
    backup_codes_left: int


class CodeAct(Protocol[T]):
    """An act of a person that takes the password and a code."""

    def __call__(
        self, database: Database, right: RightPassword, code: GivenCode, /, *, address: str = ""
    ) -> Awaitable[T]:
        """Do it. Raises AuthenticationFailed for a wrong code, Conflict."""


async def state_of(database: Database, user_id: UUID) -> FactorState:
    """Whether a person has a second factor, and how many backup codes are left."""
    async with database.read() as connection:
        return FactorState(
            await second_factors.has(connection, user_id),
            await second_factors.count_backup_codes(connection, user_id),
        )


async def begin_enrolment(
    database: Database, right: RightPassword, *, pepper: bytes, address: str = ""
) -> Enrolment:
    """Make a secret, in place of an earlier one that no code has confirmed.

    Raises Conflict when the person has a second factor, AuthenticationFailed.
    """
    async with _proved(database, right, address, None) as (connection, _):
        secret = await new_secret(connection, right.user_id, pepper)
    return Enrolment(secret, uri_of(secret, right.email))


async def confirm_enrolment(
    database: Database, right: RightPassword, code: GivenCode, *, address: str = "", keep: UUID | None = None
) -> Enrolled:
    """Enrol by a first code. What the password alone has opened ends, except `keep`, the session in use.

    Raises AuthenticationFailed for a wrong code, Conflict when the person has a second factor.
    """
    async with _proved(database, right, address, None) as (connection, signed_in):
        if not await use_totp(connection, right.user_id, code):
            raise wrong_code()
        await second_factors.confirm(connection, right.user_id)
        await admin_tokens.revoke_all(
            connection, right.user_id, ("token", *SESSION_KINDS), but=keep, proved_by=["password"]
        )
        await record_self(connection, signed_in.actor, "user.enrol_second_factor")
        codes = await new_backup_codes(connection, right.user_id, code.pepper)
    return Enrolled(codes, msgspec.structs.replace(signed_in, proved_by="second_factor"))


async def renew_backup_codes(
    database: Database, right: RightPassword, code: GivenCode, *, address: str = ""
) -> Sequence[str]:
    """Make new backup codes, shown once, in place of all earlier ones.

    Raises AuthenticationFailed for a wrong code, Conflict when the person has no second factor.
    """
    async with _proved(database, right, address, code) as (connection, signed_in):
        await record_self(connection, signed_in.actor, "user.make_backup_codes")
        return await new_backup_codes(connection, right.user_id, code.pepper)


async def disable(database: Database, right: RightPassword, code: GivenCode, *, address: str = "") -> None:
    """Sign in with the password alone from now on.

    Raises AuthenticationFailed for a wrong code, Conflict when the person has no second factor, PermissionDenied when
    the person must have one.
    """
    async with _proved(database, right, address, code) as (connection, signed_in):
        if await read_rule(connection, right.tenant_id) == "second_factor":
            raise PermissionDenied(
                "a second factor is demanded of this account, so it cannot be disabled",
                code="second_factor_demanded",
            )
        await second_factors.remove(connection, right.user_id)
        await record_self(connection, signed_in.actor, "user.disable_second_factor")


async def remove_for(
    database: Database, actor: Actor, *, user_id: UUID, reason: str | None = None
) -> UserView:
    """Remove the second factor of a person who lost it; all sessions and tokens of the person end.

    Raises Conflict when there is none, NotFound, PermissionDenied for all but other admins of the platform.
    """
    require(actor, PLATFORM_ADMIN)
    if actor.kind in ("user", "token") and actor.id == str(user_id):
        raise PermissionDenied("you cannot remove your own second factor; disable it with a code")
    async with write_system(database) as connection:
        before = visible_user(actor, user_id, await members.get_user(connection, user_id, lock=True))
        if not before.second_factor:
            raise Conflict(f"{before.email} has no second factor")
        await second_factors.remove(connection, user_id)
        await members.end_access(connection, user_id)
        after = msgspec.structs.replace(before, second_factor=False)
        await record(
            connection,
            actor,
            "user.remove_second_factor",
            tenant_id=before.tenant_id,
            object_kind="user",
            object_id=user_id,
            reason=reason,
            before=before,
            after=after,
        )
    return after


@asynccontextmanager
async def _proved(
    database: Database, right: RightPassword, address: str, code: GivenCode | None
) -> AsyncIterator[tuple[AsyncConnection, SignIn]]:
    """A transaction of the person, whose row is locked: with a code where the act takes one, else before enrolment."""
    async with counted_code(database, right.user_id, code, address), write_system(database) as connection:
        enrolled = await second_factors.has(connection, right.user_id)
        if enrolled and code is None:
            raise Conflict(
                f"{right.email} has a second factor; disable it with a code first",
                code="second_factor_exists",
            )
        if not enrolled and code is not None:
            raise Conflict(f"{right.email} has no second factor", code="no_second_factor")
        signed_in = await prove(connection, right, address=address, code=code)
        if signed_in is None:
            raise wrong_credentials()
        yield connection, signed_in
