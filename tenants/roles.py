"""Roles of users and the roles that each may grant, so that no user can exceed the own role or leave the own tenant."""

from typing import Literal

Role = Literal["platform_admin", "finance", "tenant_owner", "tenant_developer", "tenant_viewer"]

PLATFORM_ADMIN: Role = "platform_admin"
FINANCE: Role = "finance"
TENANT_OWNER: Role = "tenant_owner"
TENANT_DEVELOPER: Role = "tenant_developer"
TENANT_VIEWER: Role = "tenant_viewer"

PLATFORM_ROLES: tuple[Role, ...] = (PLATFORM_ADMIN, FINANCE)
"""Roles that see every organisation; `finance` changes only prices and credits."""
TENANT_ROLES: tuple[Role, ...] = (TENANT_OWNER, TENANT_DEVELOPER, TENANT_VIEWER)
"""Roles that see one organisation: the owner manages it, a developer creates and revokes keys, a viewer reads."""
ALL_ROLES: tuple[Role, ...] = (*PLATFORM_ROLES, *TENANT_ROLES)

READERS: tuple[Role, ...] = ALL_ROLES
KEY_MANAGERS: tuple[Role, ...] = (PLATFORM_ADMIN, TENANT_OWNER, TENANT_DEVELOPER)
TENANT_MANAGERS: tuple[Role, ...] = (PLATFORM_ADMIN, TENANT_OWNER)

GRANTABLE: dict[Role, tuple[Role, ...]] = {
    PLATFORM_ADMIN: ALL_ROLES,
    FINANCE: (),
    TENANT_OWNER: TENANT_ROLES,
    TENANT_DEVELOPER: (),
    TENANT_VIEWER: (),
}
"""Role -> the roles that it may grant, for a tenant owner within the own organisation only."""


def parse_role(value: str) -> Role | None:
    """The role named `value`, or None."""
    for role in ALL_ROLES:
        if role == value:
            return role
    return None
