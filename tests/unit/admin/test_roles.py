"""Who may do what, as a table: every role against every rule."""

from uuid import uuid4

import pytest

from admin.actor import Actor, require, user_id_of, visible_user
from core.clock import SystemClock
from core.errors import NotFound, PermissionDenied
from tenants.roles import (
    ALL_ROLES,
    GRANTABLE,
    PLATFORM_ADMIN,
    PLATFORM_ROLES,
    TENANT_ROLES,
    Role,
    parse_role,
)
from tenants.views import UserView

MINE, OTHER = uuid4(), uuid4()


def actor(role: Role) -> Actor:
    return Actor("user", str(uuid4()), "x", role, None if role in PLATFORM_ROLES else MINE)


@pytest.mark.promise(23)
@pytest.mark.parametrize("role", ALL_ROLES)
def test_platform_roles_act_everywhere_and_tenant_roles_at_home_only(role: Role) -> None:
    who = actor(role)
    require(who, *ALL_ROLES, tenant_id=MINE)
    if role in PLATFORM_ROLES:
        require(who, *ALL_ROLES, tenant_id=OTHER)
        require(who, *ALL_ROLES)
        return
    for elsewhere in (OTHER, None):
        with pytest.raises(PermissionDenied):
            require(who, *ALL_ROLES, tenant_id=elsewhere)


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_role_that_is_not_named_is_refused(role: Role) -> None:
    others = [other for other in ALL_ROLES if other != role]
    with pytest.raises(PermissionDenied, match=role):
        require(actor(role), *others, tenant_id=MINE)


def test_a_platform_role_with_a_tenant_is_held_to_that_tenant() -> None:
    odd = Actor("user", "x", "x", PLATFORM_ADMIN, MINE)
    assert not odd.is_platform
    with pytest.raises(PermissionDenied):
        require(odd, *ALL_ROLES, tenant_id=OTHER)


@pytest.mark.promise(27)
@pytest.mark.parametrize("role", ALL_ROLES)
def test_nobody_gives_a_role_above_his_own(role: Role) -> None:
    assert role == PLATFORM_ADMIN or not set(GRANTABLE[role]) & set(PLATFORM_ROLES)
    assert set(GRANTABLE) == set(ALL_ROLES)
    assert parse_role(role) == role
    assert parse_role(role.upper()) is None


@pytest.mark.parametrize("role", TENANT_ROLES)
def test_people_of_other_organisations_look_like_nobody(role: Role) -> None:
    for tenant_id in (OTHER, None):
        user = UserView(
            uuid4(), "x@example.com", "active", "tenant_viewer", tenant_id, None, SystemClock().now()
        )
        with pytest.raises(NotFound):
            visible_user(actor(role), user.id, user)
    with pytest.raises(NotFound):
        visible_user(actor(PLATFORM_ADMIN), uuid4(), None)


def test_only_people_have_accounts() -> None:
    with pytest.raises(PermissionDenied):
        user_id_of(Actor("cli", "root", "root", PLATFORM_ADMIN))
