"""Roles of people, and who may hand out which. The rule behind it: nobody raises himself, nobody leaves his tenant."""

from typing import Literal

Role = Literal["platform_admin", "finance", "tenant_owner", "tenant_developer", "tenant_viewer"]

PLATFORM_ADMIN: Role = "platform_admin"
FINANCE: Role = "finance"
TENANT_OWNER: Role = "tenant_owner"
TENANT_DEVELOPER: Role = "tenant_developer"
TENANT_VIEWER: Role = "tenant_viewer"

PLATFORM_ROLES: tuple[Role, ...] = (PLATFORM_ADMIN, FINANCE)
"""See every organisation; `finance` changes prices and credits only."""
TENANT_ROLES: tuple[Role, ...] = (TENANT_OWNER, TENANT_DEVELOPER, TENANT_VIEWER)
"""See one organisation: the owner runs it, a developer makes and revokes keys, a viewer reads."""
ALL_ROLES: tuple[Role, ...] = (*PLATFORM_ROLES, *TENANT_ROLES)

READERS: tuple[Role, ...] = ALL_ROLES
KEY_MAKERS: tuple[Role, ...] = (PLATFORM_ADMIN, TENANT_OWNER, TENANT_DEVELOPER)
TENANT_RUNNERS: tuple[Role, ...] = (PLATFORM_ADMIN, TENANT_OWNER)

GRANTABLE: dict[Role, tuple[Role, ...]] = {
    PLATFORM_ADMIN: ALL_ROLES,
    FINANCE: (),
    TENANT_OWNER: TENANT_ROLES,
    TENANT_DEVELOPER: (),
    TENANT_VIEWER: (),
}
"""Role -> the roles its holder may give to others (a tenant owner only inside his own organisation)."""


def parse_role(value: str) -> Role | None:
    """The role named `value`, or None."""
    for role in ALL_ROLES:
        if role == value:
            return role
    return None
