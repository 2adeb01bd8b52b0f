"""People: create, role, password, disable.

An actor cannot change their own role, grant a role above it, or change people of another organisation.
"""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, readable, require, require_scope, user_id_of, visible_user
from admin.approval_limit import Acting, Facts, person_of
from admin.audit import record
from admin.logins import (
    CreatedToken,
    authenticate_token,
    check_still_signed_in,
    create_admin_token,
    list_admin_tokens,
    revoke_admin_token,
    verify_login,
)
from admin.sign_in_attempts import count_attempt
from admin.transactions import page_size, write_system
from billing.ledger import approvals
from core.db import Database
from core.errors import AuthenticationFailed, Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from tenants import identity_providers, logins, members, organisations, second_factors
from tenants.names import check_password, clean_email
from tenants.passwords import hash_password, verify_password
from tenants.roles import (
    ALL_ROLES,
    GRANTABLE,
    PLATFORM_ADMIN,
    PLATFORM_ROLES,
    READERS,
    TENANT_MANAGERS,
    TENANT_OWNER,
    Role,
    parse_role,
)
from tenants.views import UserView

__all__ = [
    "CreatedToken",
    "authenticate_token",
    "change_password",
    "create_admin_token",
    "create_user",
    "disable_user",
    "enable_user",
    "get_user",
    "list_admin_tokens",
    "list_users",
    "reset_password",
    "revoke_admin_token",
    "set_role",
    "verify_login",
]


CONFIRM = "person.confirm"
"""The kind of requests to confirm that a person of the platform is not the one who gave the password."""


async def create_user(
    database: Database,
    actor: Actor,
    *,
    email: str,
    password: str,
    role: str,
    tenant_id: UUID | None = None,
) -> UserView:
    """Make a person with one role: a tenant role with its organisation, or a platform role without one.

    A person of the platform takes part in acts of two people once another person has confirmed them (`CONFIRM`). Raises
    PermissionDenied for a role the actor may not give, Conflict when the address is taken, NotFound,
    InvalidRequest.
    """
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    new_role = _grantable(actor, role)
    if (new_role in PLATFORM_ROLES) != (tenant_id is None):
        need = "takes no organisation" if tenant_id is not None else "needs an organisation"
        raise InvalidRequest(f"the role {new_role} {need}", param="tenant_id")
    email = clean_email(email)
    password_hash = await hash_password(check_password(password))
    user_id = uuid7()
    async with write_system(database) as connection:
        if tenant_id is not None and await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
        if not await members.insert_user(connection, tenant_id, user_id, email, password_hash, new_role):
            raise Conflict(f"the address {email} is taken", param="email")
        if tenant_id is None:
            await _ask_to_confirm(connection, actor, user_id, email, new=True)
        return await _read_and_record(connection, actor, "user.create", user_id, None)


async def list_users(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID | None = None,
    limit: int = 1000,
    after: UUID | None = None,
    platform_only: bool = False,
) -> list[UserView]:
    """People of one organisation; of all and the platform when a platform role names none.

    `platform_only`: of the platform alone. Oldest first, at most `limit`, after the person `after`.
    """
    scope = readable(actor, tenant_id)
    async with database.read() as connection:
        return await members.list_users(
            connection, scope, limit=page_size(limit), after=after, platform_only=platform_only
        )


async def get_user(database: Database, actor: Actor, *, user_id: UUID) -> UserView:
    """One person the actor may see. Raises NotFound."""
    require(actor, *READERS, tenant_id=actor.tenant_id)
    async with database.read() as connection:
        return visible_user(actor, user_id, await members.get_user(connection, user_id))


async def set_role(database: Database, actor: Actor, *, user_id: UUID, role: str) -> UserView:
    """Change a person's role within the same organisation, or on the platform. The person's sessions and tokens end.

    Raises PermissionDenied for the actor's own role or one the actor may not give or take, Conflict for the last
    owner or admin, NotFound, InvalidRequest.
    """
    new_role = _grantable(actor, role)
    async with write_system(database) as connection:
        before = await _locked(connection, actor, user_id, "change your own role")
        if (new_role in PLATFORM_ROLES) != (before.tenant_id is None):
            where = "on the platform" if before.tenant_id is None else "in an organisation"
            raise InvalidRequest(
                f"{before.email} works {where}, where there is no role {new_role}", param="role"
            )
        if before.role == new_role:
            raise Conflict(f"{before.email} has the role {new_role} already")
        await _check_not_last(connection, before)
        await members.set_role(connection, user_id, new_role)
        await members.end_access(connection, user_id)  # tokens were made for what the role before might do
        return await _read_and_record(connection, actor, "user.set_role", user_id, before)


async def disable_user(database: Database, actor: Actor, *, user_id: UUID) -> UserView:
    """Disable a person, with sessions and tokens. Raises Conflict for the last owner or admin, NotFound."""
    async with write_system(database) as connection:
        before = await _locked(connection, actor, user_id, "disable yourself")
        if before.status == "disabled":
            raise Conflict(f"{before.email} is disabled already")
        await _check_not_last(connection, before)
        await members.set_status(connection, user_id, "disabled")
        await members.end_access(connection, user_id)  # so that none works again once the person is enabled
        return await _read_and_record(connection, actor, "user.disable", user_id, before)


async def enable_user(database: Database, actor: Actor, *, user_id: UUID) -> UserView:
    """Enable a disabled person. Raises Conflict when active, NotFound."""
    async with write_system(database) as connection:
        before = await _locked(connection, actor, user_id, "enable yourself")
        if before.status == "active":
            raise Conflict(f"{before.email} is active already")
        await members.set_status(connection, user_id, "active")
        return await _read_and_record(connection, actor, "user.enable", user_id, before)


async def reset_password(database: Database, actor: Actor, *, user_id: UUID, password: str) -> UserView:
    """Set another person's password.

    All sessions, tokens and links to identities of the person end. A person of the platform must be confirmed, as a new
    one, which ends those made since, and a second factor (`apply_confirmation`).
    Raises PermissionDenied for the actor's own, NotFound, InvalidRequest.
    """
    password_hash = await hash_password(check_password(password))
    async with write_system(database) as connection:
        before = await _locked(
            connection, actor, user_id, "reset your own password; change it with the old one"
        )
        await members.set_password_hash(connection, user_id, password_hash)
        await members.end_access(connection, user_id)  # of whoever knew the password of before
        await identity_providers.unlink(connection, user_id)
        if before.tenant_id is None:
            await _ask_to_confirm(connection, actor, user_id, before.email, new=False)
        return await _read_and_record(connection, actor, "user.reset_password", user_id, before)


async def change_password(
    database: Database, actor: Actor, *, current: str, new: str, address: str = ""
) -> None:
    """Change the actor's own password, and end all sessions, tokens, links to identities and the recovery code: who
    knew the old password may have made them. Wrong ones count as failed sign-ins from the network address `address`.

    Raises PermissionDenied for a token without the scope `access`, before it learns anything about passwords,
    AuthenticationFailed when `current` is wrong, InvalidRequest, RateLimited.
    """
    require_scope(actor, "access")
    user_id = user_id_of(actor)
    check_password(new, "new")
    await count_attempt(database, actor.label, address)
    async with database.read() as connection:
        user = await members.get_user(connection, user_id)
        login = None if user is None else await members.find_login(connection, user.email)
    if not await verify_password(current[:1024], None if login is None else login.password_hash):
        raise AuthenticationFailed("the present password is wrong", code="wrong_password", param="current")
    password_hash = await hash_password(new)
    async with write_system(database) as connection:
        await check_still_signed_in(
            connection, actor, user_id, None if login is None else login.password_hash
        )
        await logins.clear_failures(connection, actor.label, address[:64])
        await members.set_password_hash(connection, user_id, password_hash)
        await members.end_access(connection, user_id)
        await members.set_recovery_hash(connection, user_id, None)
        await identity_providers.unlink(connection, user_id)
        await _read_and_record(connection, actor, "user.change_password", user_id, user)


async def apply_confirmation(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> UserView:
    """Carry out an approved `CONFIRM`; sessions, tokens, links to identities and the second factor of before end.

    Raises Conflict when the credentials were given again since.
    """
    del tenant_id
    user_id = UUID(facts["user_id"])
    before = await members.get_user(connection, user_id, lock=True)
    if str(await members.unconfirmed_change(connection, user_id)) != facts["change_id"]:
        raise Conflict(f"the password of {facts['email']} was changed again since; reject this request")
    await members.mark_confirmed(connection, user_id)
    await members.end_access(connection, user_id)  # of whoever used the password that another person gave
    await identity_providers.unlink(connection, user_id)
    await second_factors.remove(connection, user_id)
    return await _read_and_record(connection, acting.actor, "user.confirm", user_id, before)


async def _ask_to_confirm(
    connection: AsyncConnection, actor: Actor, user_id: UUID, email: str, *, new: bool
) -> None:
    """Request the confirmation of credentials that `actor` has just given to a person of the platform.

    The platform itself needs none. Nor does a shell without a token until two people are confirmed: whoever sets the
    platform up says who they are. Raises PermissionDenied for such a shell later.
    """
    change_id = uuid7()
    await members.lock_administrators(connection)
    await members.mark_unconfirmed(connection, user_id, change_id, new=new)
    if actor.kind == "system" or (actor.kind == "cli" and not await members.has_two_people(connection)):
        await members.mark_confirmed(connection, user_id)
        return
    await approvals.admit(
        connection,
        kind=CONFIRM,
        by=person_of(actor),
        tenant_id=None,
        amount=None,
        facts={
            "user_id": str(user_id),
            "email": email,
            "change_id": str(change_id),
            "reason": "a new person" if new else "a new password",
        },
        source_id=change_id,
    )


def _grantable(actor: Actor, role: str) -> Role:
    """`role` when the actor may grant it. Raises PermissionDenied, InvalidRequest."""
    new_role = parse_role(role)
    if new_role is None:
        raise InvalidRequest(f"role must be one of {', '.join(ALL_ROLES)}, not {role[:40]!r}", param="role")
    if new_role not in GRANTABLE[actor.role]:
        raise PermissionDenied(f"the role {actor.role} may not give the role {new_role}")
    return new_role


async def _locked(connection: AsyncConnection, actor: Actor, user_id: UUID, own_act: str) -> UserView:
    """The locked row of a person whom the actor may change. Raises NotFound, PermissionDenied."""
    await members.lock_administrators(connection)
    user = visible_user(actor, user_id, await members.get_user(connection, user_id, lock=True))
    require(actor, *TENANT_MANAGERS, tenant_id=user.tenant_id)
    if actor.kind in ("user", "token") and actor.id == str(user_id):
        raise PermissionDenied(f"you cannot {own_act}")
    if user.role not in GRANTABLE[actor.role]:
        raise PermissionDenied(f"the role {actor.role} may not change a {user.role}")
    return user


async def _check_not_last(connection: AsyncConnection, user: UserView) -> None:
    """Raise Conflict when `user` is the last active owner of an organisation or the last platform admin."""
    if user.status != "active" or user.role not in (PLATFORM_ADMIN, TENANT_OWNER):
        return
    if await members.count_other_administrators(connection, user.tenant_id, user.id) == 0:
        raise Conflict(f"{user.email} is the last active {user.role}; make another one first")


async def _read_and_record(
    connection: AsyncConnection, actor: Actor, action: str, user_id: UUID, before: UserView | None
) -> UserView:
    """Read the person again after the change, and log both states."""
    after = await members.get_user(connection, user_id)
    if after is None:
        raise LookupError("a user just changed is not there")
    await record(
        connection,
        actor,
        action,
        tenant_id=after.tenant_id,
        object_kind="user",
        object_id=user_id,
        before=before,
        after=after,
    )
    return after
