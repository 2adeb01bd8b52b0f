"""Actors of administrative acts, and their permissions."""

from uuid import UUID

import msgspec

from core.errors import NotFound, PermissionDenied
from tenants.roles import ALL_ROLES, PLATFORM_ROLES, READERS, Role, parse_role
from tenants.token_scopes import Scope
from tenants.views import TokenView, UserView


class Actor(msgspec.Struct, frozen=True):
    """A person, token, shell user or part of the system, with the role it acts in."""

    kind: str
    """user | token | cli | system"""
    id: str
    label: str
    """Readable name: an e-mail address, a shell user or a job."""
    role: Role
    tenant_id: UUID | None = None
    """The organisation of a tenant role; None on the platform."""
    token: TokenView | None = None
    """The token or session by which it came, whose scopes limit it; None = none."""
    command: str = ""
    """The command line's command that acts, without its arguments, for the audit log; empty = none."""

    @property
    def is_platform(self) -> bool:
        """Whether the actor sees every organisation."""
        return self.role in PLATFORM_ROLES and self.tenant_id is None


def system_actor(label: str) -> Actor:
    """An actor for the platform itself, such as the first start, which creates the demo organisation."""
    return Actor(kind="system", id="system", label=label, role="platform_admin")


def actor_of(kind: str, user: UserView) -> Actor:
    """The actor that is `user`; `kind` is user or token. Raises LookupError for a role that is none."""
    role = parse_role(user.role)
    if role is None:
        raise LookupError(
            f"the database holds the role {user.role!r}, which is none of {', '.join(ALL_ROLES)}"
        )
    return Actor(kind=kind, id=str(user.id), label=user.email, role=role, tenant_id=user.tenant_id)


def require(actor: Actor, *roles: Role, tenant_id: UUID | None = None) -> None:
    """Raise PermissionDenied unless `actor` has one of `roles` and may act on organisation `tenant_id`.

    A platform role acts everywhere. A tenant role acts on its own organisation only, so an act without
    `tenant_id` (one on the platform) is refused to it.
    """
    if actor.role not in roles:
        raise PermissionDenied(
            f"the role {actor.role} may not do this; it takes {' or '.join(roles)}",
            details={"role": actor.role, "needed": list(roles)},
        )
    if actor.is_platform:
        return
    if actor.tenant_id is None or tenant_id != actor.tenant_id:
        raise PermissionDenied("this belongs to another organisation")


def require_scope(actor: Actor, scope: Scope) -> None:
    """Raise PermissionDenied when `actor` came by a token without `scope`."""
    if actor.token is None or scope in actor.token.scopes:
        return
    has = ", ".join(actor.token.scopes)
    raise PermissionDenied(
        f"this takes the scope {scope}, the token {actor.token.name!r} has {has}; make one with it, or sign in",
        code="token_scope",
    )


def readable(actor: Actor, tenant_id: UUID | None) -> UUID | None:
    """The organisation whose rows the actor may read: `tenant_id`, or a tenant role's own when that is None.

    None = every organisation, for a platform role. Raises PermissionDenied for an organisation that is not the actor's.
    """
    scope = tenant_id if actor.is_platform else (tenant_id or actor.tenant_id)
    require(actor, *READERS, tenant_id=scope)
    return scope


def user_id_of(actor: Actor) -> UUID:
    """The user id of an actor that signed in or used a token. Raises PermissionDenied for other kinds."""
    if actor.kind not in ("user", "token"):
        raise PermissionDenied(f"an actor of the kind {actor.kind} is no person with an account")
    return UUID(actor.id)


def visible_user(actor: Actor, user_id: UUID, user: UserView | None) -> UserView:
    """`user` when it exists and the actor may see it. Raises NotFound, also for another organisation's user."""
    if user is None or not (
        actor.is_platform or (actor.tenant_id is not None and actor.tenant_id == user.tenant_id)
    ):
        raise NotFound(f"there is no user with the id {user_id}")
    return user
