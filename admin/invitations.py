"""Invitations: an owner invites an address with a role; a person with the mailed secret joins with an own password."""

import secrets
from datetime import timedelta
from uuid import UUID

import msgspec

from admin.actor import Actor, actor_of, require
from admin.audit import record
from admin.sign_in_attempts import count_attempt
from admin.transactions import page_size, write_system
from billing.notifications import mail
from billing.notifications.mail import SmtpServer
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, RateLimited
from core.ids import uuid7
from tenants import invitations, logins, members, organisations
from tenants.key_format import hash_key
from tenants.names import check_password, clean_email
from tenants.passwords import hash_password
from tenants.roles import GRANTABLE, READERS, TENANT_MANAGERS, TENANT_ROLES, parse_role
from tenants.views import InvitationView, UserView

LIFE = timedelta(days=7)
"""How long an invitation can be accepted."""
PER_DAY = 100
"""Invitations of one organisation within 24 hours."""


class Invited(msgspec.Struct, frozen=True):
    """A new invitation. `secret` is None with a mail server, else to be shown once and stored nowhere."""

    view: InvitationView
    mailed: bool
    secret: str | None

    def __repr__(self) -> str:
        """Without the secret, so that no log can show it."""
        return f"Invited(view={self.view!r}, mailed={self.mailed})"


async def invite(
    database: Database,
    actor: Actor,
    *,
    pepper: bytes,
    smtp: SmtpServer | None,
    tenant_id: UUID,
    email: str,
    role: str,
) -> Invited:
    """Invite an address. It replaces an open invitation of the same address; for an address that has an account, only
    acceptance fails. Without a mail server the caller gets the secret; after a refused mail, invite again.

    Raises InvalidRequest, PermissionDenied for a role the actor may not give, RateLimited beyond PER_DAY, NotFound.
    """
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    new_role = parse_role(role)
    if new_role not in TENANT_ROLES:
        raise InvalidRequest(
            f"role must be one of {', '.join(TENANT_ROLES)}, not {role[:40]!r}", param="role"
        )
    if new_role not in GRANTABLE[actor.role]:
        raise PermissionDenied(f"the role {actor.role} may not give the role {new_role}")
    email = clean_email(email)
    secret = f"pen_invite_{secrets.token_urlsafe(32)}"
    async with write_system(database) as connection:
        tenant = await organisations.get_tenant(connection, tenant_id, lock=True)
        if tenant is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
        if await invitations.count_since(connection, tenant_id, timedelta(days=1)) >= PER_DAY:
            raise RateLimited(
                f"the organisation has made {PER_DAY} invitations within a day; make more tomorrow",
                code="too_many_invitations",
                retry_after_s=3600.0,
            )
        await invitations.revoke_open(connection, tenant_id, email=email)
        view = await invitations.insert_invitation(
            connection,
            tenant_id,
            uuid7(),
            email=email,
            role=new_role,
            secret_hash=hash_key(secret, pepper),
            invited_by=actor.label,
            life=LIFE,
        )
        await record(
            connection,
            actor,
            "invitation.create",
            tenant_id=tenant_id,
            object_kind="invitation",
            object_id=view.id,
            after=view,
        )
    mailed = smtp is not None and await _send(smtp, view, tenant.name, secret)
    return Invited(view, mailed, secret if smtp is None else None)


async def list_invitations(
    database: Database, actor: Actor, *, tenant_id: UUID, limit: int = 1000, after: UUID | None = None
) -> list[InvitationView]:
    """Invitations of the organisation, closed ones included."""
    require(actor, *READERS, tenant_id=tenant_id)
    async with database.read() as connection:
        return await invitations.list_invitations(connection, tenant_id, limit=page_size(limit), after=after)


async def revoke_invitation(
    database: Database, actor: Actor, *, tenant_id: UUID, invitation_id: UUID
) -> InvitationView:
    """Revoke an open invitation. Raises NotFound when the organisation has no open one of this id."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    async with write_system(database) as connection:
        found = await invitations.revoke_open(connection, tenant_id, invitation_id=invitation_id)
        if not found:
            raise NotFound(f"the organisation has no open invitation with the id {invitation_id}")
        await record(
            connection,
            actor,
            "invitation.revoke",
            tenant_id=tenant_id,
            object_kind="invitation",
            object_id=invitation_id,
            after=found[0],
        )
    return found[0]


async def accept(
    database: Database, *, pepper: bytes, secret: str, password: str, address: str = ""
) -> UserView:
    """Join with an invitation's secret and a new password.

    Raises InvalidRequest for a password of the wrong shape, and with the code `invalid_invitation` for a secret that is
    unknown, used, revoked or expired, without telling which; Conflict when the address has an account; RateLimited
    after 5 wrong secrets from the network address within 15 minutes.
    """
    check_password(password)
    if address:
        await count_attempt(database, f"invitation from {address}", address)
    secret_hash = hash_key(secret, pepper)
    async with database.system() as connection:
        if await invitations.find_open(connection, secret_hash) is None:
            raise _invalid()
    password_hash = await hash_password(password)
    async with write_system(database) as connection:
        found = await invitations.find_open(connection, secret_hash, lock=True)
        if found is None:
            raise _invalid()
        user_id = uuid7()
        if not await members.insert_user(
            connection, found.tenant_id, user_id, found.email, password_hash, found.role
        ):
            raise Conflict(
                f"the address {found.email} has an account already; sign in with it", param="secret"
            )
        await invitations.mark_accepted(connection, found.tenant_id, found.id)
        if address:
            await logins.clear_failures(connection, f"invitation from {address}", address[:64])
        user = await members.get_user(connection, user_id)
        if user is None:
            raise LookupError("a user just made is not there")
        await record(
            connection,
            actor_of("user", user),
            "invitation.accept",
            tenant_id=found.tenant_id,
            object_kind="invitation",
            object_id=found.id,
            after=user,
        )
    return user


async def _send(smtp: SmtpServer, view: InvitationView, name: str, secret: str) -> bool:
    """Whether the mail server has taken the invitation."""
    body = (
        f"{view.invited_by} invites you to the organisation {name} as {view.role}.\n\n"
        f"To join, send this secret with a password of your own to POST /v1/invitations/accept:\n\n{secret}\n\n"
        f"It works once, until {view.expires_at:%Y-%m-%d %H:%M} UTC. If you did not expect this mail, ignore it.\n"
    )
    message = mail.compose(smtp, view.email, f"Invitation to {name}", body, view.id)
    return await mail.send(smtp, message) is None


def _invalid() -> InvalidRequest:
    return InvalidRequest(
        "The invitation is not valid: it may be used, revoked or expired. Ask for a new one.",
        code="invalid_invitation",
        param="secret",
    )
