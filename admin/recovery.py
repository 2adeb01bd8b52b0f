"""Recovery codes: a person who lost the password sets a new one without another person.

A code is made by a confirmed person who knows the password, is shown once and works once. So it proves that it is still
that person, and the new password needs no confirmation, also after another person has reset it. This lets a platform of
two people go on: no person becomes two by it.
"""

import secrets
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, actor_of, user_id_of
from admin.audit import record
from admin.sign_in_attempts import count_attempt, mail_address
from admin.transactions import write_system
from core.db import Database
from core.errors import AuthenticationFailed, Conflict
from tenants import identity_providers, logins, members
from tenants.names import check_password
from tenants.passwords import hash_password, verify_password
from tenants.views import UserView

CODE_BYTES = 20
"""Random bytes of a code."""


async def make_recovery_code(database: Database, actor: Actor) -> str:
    """Make the recovery code of a person who has just signed in, in place of an earlier one; it is stored as a hash.

    Raises Conflict while another person's password of theirs is not confirmed: the earlier code remains.
    """
    user_id = user_id_of(actor)
    code = secrets.token_hex(CODE_BYTES)
    code_hash = await hash_password(code)
    async with write_system(database) as connection:
        await members.lock_administrators(connection)
        if await members.unconfirmed_change(connection, user_id) is not None:
            raise Conflict(
                f"another person gave {actor.label} this password, so it makes no recovery code; one made before works"
            )
        await members.set_recovery_hash(connection, user_id, code_hash)
        await _record(connection, actor, "user.make_recovery_code", user_id, actor.tenant_id)
    return code


async def recover_password(
    database: Database, *, email: str, code: str, password: str, address: str = ""
) -> UserView:
    """Set a new password by a recovery code, which is then used up.

    All sessions and tokens of the person end: another person may have made them with a password that they gave. The
    person is confirmed, as when the code was made. Raises AuthenticationFailed for a wrong address or code, RateLimited
    as signing in, InvalidRequest.
    """
    new_hash = await hash_password(check_password(password))
    known_shape, email = mail_address(email)
    address = address[:64]
    await count_attempt(database, email, address)
    async with database.read() as connection:
        login = await members.find_login(connection, email) if known_shape else None
        known = None if login is None else await members.recovery_hash(connection, login.user.id)
    right = len(code) <= 1024 and await verify_password(code.strip().lower(), known)
    if login is None or not right or login.user.status != "active":
        raise AuthenticationFailed(
            "the mail address or the recovery code is wrong", code="wrong_recovery_code"
        )
    user = login.user
    async with write_system(database) as connection:
        await members.lock_administrators(connection)
        await members.get_user(connection, user.id, lock=True)
        if await members.recovery_hash(connection, user.id) != known:
            raise AuthenticationFailed("the recovery code was used meanwhile", code="wrong_recovery_code")
        await members.set_password_hash(connection, user.id, new_hash)
        await members.set_recovery_hash(connection, user.id, None)
        await members.mark_confirmed(connection, user.id)
        await members.end_access(connection, user.id)
        await identity_providers.unlink(connection, user.id)
        await logins.clear_failures(connection, email, address)
        await _record(connection, actor_of("user", user), "user.recover_password", user.id, user.tenant_id)
    return user


async def _record(
    connection: AsyncConnection, actor: Actor, action: str, user_id: UUID, tenant_id: UUID | None
) -> None:
    await record(connection, actor, action, tenant_id=tenant_id, object_kind="user", object_id=user_id)
