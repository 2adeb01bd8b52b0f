"""Roles: nobody raises himself, nobody crosses into another organisation."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from admin import audit as admin_audit
from admin import keys as admin_keys
from admin import limits as admin_limits
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin import users
from admin.actor import Actor
from core.db import Database
from core.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    PermissionDenied,
    WaitsForApproval,
)
from tenants.principal import Limits
from tenants.roles import ALL_ROLES, PLATFORM_ROLES, TENANT_ROLES, Role
from tests.integration.admin.people import PASSWORD, person
from tests.support.tenancy import ADMIN, PEPPER, Organisation, audit_actions, make_organisation, member


@pytest.mark.promise(27)
@pytest.mark.parametrize("role", ALL_ROLES)
async def test_nobody_changes_his_own_role(database: Database, role: Role) -> None:
    acme = await make_organisation(database)
    actor = await person(database, role, None if role in PLATFORM_ROLES else acme.tenant_id)
    before = await audit_actions(database)
    for wanted in ALL_ROLES:
        with pytest.raises((PermissionDenied, Conflict, InvalidRequest)):
            await users.set_role(database, actor, user_id=UUID(actor.id), role=wanted)
    assert await audit_actions(database) == before
    assert await users.verify_login(database, actor.label, PASSWORD) == actor


@pytest.mark.promise(27)
@pytest.mark.parametrize("role", ALL_ROLES)
async def test_who_may_give_which_role(database: Database, role: Role) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Other")
    actor = await person(database, role, None if role in PLATFORM_ROLES else acme.tenant_id)
    given = set()
    for wanted in ALL_ROLES:
        for where in (None, acme.tenant_id, other.tenant_id):
            try:
                await users.create_user(
                    database,
                    actor,
                    email=f"{uuid4().hex}@example.com",
                    password=PASSWORD,
                    role=wanted,
                    tenant_id=where,
                )
            except (PermissionDenied, InvalidRequest):
                continue
            given.add((wanted, where))
    if role == "platform_admin":
        everywhere = {(one, where) for one in TENANT_ROLES for where in (acme.tenant_id, other.tenant_id)}
        assert given == everywhere | {(one, None) for one in PLATFORM_ROLES}
    elif role == "tenant_owner":
        assert given == {(one, acme.tenant_id) for one in TENANT_ROLES}
    else:
        assert given == set()


async def test_the_last_head_stays_even_when_two_go_at_once(database: Database) -> None:
    one, two = await person(database, "platform_admin"), await person(database, "platform_admin")
    results = await asyncio.gather(
        users.set_role(database, one, user_id=UUID(two.id), role="finance"),
        users.disable_user(database, two, user_id=UUID(one.id)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "UserView"]


async def test_an_organisation_has_a_bounded_number_of_active_keys(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await make_organisation(database)
    monkeypatch.setitem(admin_keys.MAX_ACTIVE_KEYS, "test", 3)
    owner = await person(database, "tenant_owner", acme.tenant_id)

    async def create(kind: str = "test") -> admin_keys.CreatedKey:
        return await admin_keys.create_key(
            database, owner, pepper=PEPPER, tenant_id=acme.tenant_id, project_id=acme.project_id, name="x",
            kind=kind,
        )  # fmt: skip

    made = await asyncio.gather(*(create() for _ in range(5)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in made) == ["Conflict"] * 2 + ["CreatedKey"] * 3
    [refusal, _] = [one for one in made if isinstance(one, Conflict)]
    assert (refusal.code, "3 active test keys" in refusal.message) == ("too_many_keys", True)
    await create("live")
    [key, *_] = [one for one in made if isinstance(one, admin_keys.CreatedKey)]
    await admin_keys.revoke_key(database, owner, key_id=key.view.id)
    await create()


ACTS: dict[str, Callable[[Database, Actor, Organisation], Awaitable[object]]] = {
    "get_tenant": lambda d, a, o: admin_tenants.get_tenant(d, a, tenant_id=o.tenant_id),
    "rename_tenant": lambda d, a, o: admin_tenants.rename_tenant(
        d, a, tenant_id=o.tenant_id, name="Mine now"
    ),
    "set_tier": lambda d, a, o: admin_tenants.set_tier(d, a, tenant_id=o.tenant_id, tier="batch", reason="x"),
    "set_highest_tier": lambda d, a, o: admin_tenants.set_highest_tier(
        d, a, tenant_id=o.tenant_id, tier="priority", reason="x"
    ),
    "set_retention": lambda d, a, o: admin_projects.set_retention(
        d, a, tenant_id=o.tenant_id, project_id=o.project_id, days=0
    ),
    "set_share": lambda d, a, o: admin_tenants.set_share(d, a, tenant_id=o.tenant_id, percent=5, reason="x"),
    "suspend": lambda d, a, o: admin_tenants.suspend_tenant(d, a, tenant_id=o.tenant_id, reason="x"),
    "resume": lambda d, a, o: admin_tenants.resume_tenant(d, a, tenant_id=o.tenant_id, reason="x"),
    "throttle": lambda d, a, o: admin_tenants.throttle_tenant(d, a, tenant_id=o.tenant_id, reason="x"),
    "find_tenant": lambda d, a, o: admin_tenants.find_tenant(d, a, text="other"),
    "create_tenant": lambda d, a, o: admin_tenants.create_tenant(d, a, name="New"),
    "list_projects": lambda d, a, o: admin_projects.list_projects(d, a, tenant_id=o.tenant_id),
    "create_project": lambda d, a, o: admin_projects.create_project(d, a, tenant_id=o.tenant_id, name="x"),
    "archive_project": lambda d, a, o: admin_projects.archive_project(
        d, a, tenant_id=o.tenant_id, project_id=o.project_id
    ),
    "list_keys": lambda d, a, o: admin_keys.list_keys(d, a, tenant_id=o.tenant_id),
    "get_key": lambda d, a, o: admin_keys.get_key(d, a, key_id=o.key_id),
    "create_key": lambda d, a, o: admin_keys.create_key(
        d, a, pepper=PEPPER, tenant_id=o.tenant_id, project_id=o.project_id, name="x"
    ),
    "revoke_key": lambda d, a, o: admin_keys.revoke_key(d, a, key_id=o.key_id),
    "find_key": lambda d, a, o: admin_keys.find_key(d, a, pepper=PEPPER, raw=o.key),
    "get_limits": lambda d, a, o: admin_limits.get_limits(
        d, a, tenant_id=o.tenant_id, scope_kind="key", scope_id=o.key_id
    ),
    "list_limits": lambda d, a, o: admin_limits.list_limits(d, a, tenant_id=o.tenant_id),
    "set_limits": lambda d, a, o: admin_limits.set_limits(
        d, a, tenant_id=o.tenant_id, scope_kind="key", scope_id=o.key_id, limits=Limits(concurrency=1)
    ),
    "list_users": lambda d, a, o: users.list_users(d, a, tenant_id=o.tenant_id),
    "list_audit": lambda d, a, o: admin_audit.list_audit(d, a, tenant_id=o.tenant_id),
}


@pytest.mark.promise(23)
@pytest.mark.parametrize("role", TENANT_ROLES)
async def test_no_act_crosses_into_another_organisation(database: Database, role: Role) -> None:
    mine, other = await make_organisation(database, "Mine"), await make_organisation(database, "Other")
    actor = member(mine.tenant_id, role)
    before = await audit_actions(database)
    crossed = []
    for name, act in ACTS.items():
        try:
            await act(database, actor, other)
        except (PermissionDenied, NotFound):
            continue
        crossed.append(name)
    assert crossed == []
    assert await audit_actions(database) == before
    # Scopes of another organisation under one's own id.
    with pytest.raises(PenstockError):
        await admin_keys.create_key(
            database, actor, pepper=PEPPER, tenant_id=mine.tenant_id, project_id=other.project_id, name="x"
        )
    for kind, scope_id in (("key", other.key_id), ("project", other.project_id), ("tenant", other.tenant_id)):
        with pytest.raises(PenstockError):
            await admin_limits.set_limits(
                database,
                actor,
                tenant_id=mine.tenant_id,
                scope_kind=kind,
                scope_id=scope_id,
                limits=Limits(concurrency=1),
            )
    assert [tenant.id for tenant in await admin_tenants.list_tenants(database, actor)] == [mine.tenant_id]
    assert {entry.tenant_id for entry in await admin_audit.list_audit(database, actor)} == {mine.tenant_id}


ALLOWED_AT_HOME: dict[Role, set[str]] = {
    "tenant_viewer": {
        "get_tenant", "list_projects", "list_keys", "get_key", "get_limits", "list_limits", "list_users", "list_audit",
    },
    "finance": {
        "get_tenant", "list_projects", "list_keys", "get_key", "get_limits", "list_limits", "list_users", "list_audit",
        "find_tenant", "find_key",
    },
}  # fmt: skip
ALLOWED_AT_HOME["tenant_developer"] = ALLOWED_AT_HOME["tenant_viewer"] | {"create_key", "revoke_key"}
ALLOWED_AT_HOME["tenant_owner"] = ALLOWED_AT_HOME["tenant_developer"] | {
    "rename_tenant", "create_project", "archive_project", "set_limits", "set_retention",
}  # fmt: skip
ALLOWED_AT_HOME["platform_admin"] = set(ACTS)


@pytest.mark.parametrize("role", ALL_ROLES)
async def test_what_each_role_may_do_at_home(database: Database, role: Role) -> None:
    allowed = set()
    for number, (name, act) in enumerate(ACTS.items()):
        mine = await make_organisation(database, f"Mine {number}")
        if name == "find_tenant":
            await make_organisation(database, "Other")
        if name == "resume":
            await admin_tenants.suspend_tenant(database, ADMIN, tenant_id=mine.tenant_id, reason="x")
        actor = member(mine.tenant_id, role)
        if role in PLATFORM_ROLES:
            actor = Actor(actor.kind, actor.id, actor.label, role)
        try:
            await act(database, actor, mine)
        except PermissionDenied:
            continue
        except WaitsForApproval:
            assert name in ("set_tier", "set_highest_tier")
        allowed.add(name)
    assert allowed == ALLOWED_AT_HOME[role]


async def test_an_owner_does_not_lift_what_the_platform_set(database: Database) -> None:
    mine = await make_organisation(database)
    with pytest.raises(PermissionDenied):
        await admin_limits.set_limits(
            database,
            member(mine.tenant_id),
            tenant_id=mine.tenant_id,
            scope_kind="tenant",
            scope_id=mine.tenant_id,
            limits=Limits(),
        )


async def test_the_platforms_people_are_listed_alone_and_in_pages(database: Database) -> None:
    acme = await make_organisation(database)
    mine = []
    for _ in range(3):  # by turns, so that a page of all people would hold both
        mine.append(UUID((await person(database, "finance")).id))
        await person(database, "tenant_viewer", acme.tenant_id)
    first = await users.list_users(database, ADMIN, platform_only=True, limit=2)
    rest = await users.list_users(database, ADMIN, platform_only=True, limit=2, after=first[-1].id)
    assert [one.id for one in (*first, *rest)] == mine
    owner = member(acme.tenant_id)
    assert await users.list_users(database, owner, platform_only=True) == [], "none of the platform's"


async def test_a_failed_act_leaves_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit row is part of the act: without it the act is undone."""
    acme = await make_organisation(database)

    async def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the audit log is broken")

    monkeypatch.setattr("admin.tenants.record", broken)
    monkeypatch.setattr("admin.keys.record", broken)
    with pytest.raises(RuntimeError):
        await admin_tenants.create_tenant(database, ADMIN, name="Never")
    with pytest.raises(RuntimeError):
        await admin_keys.revoke_key(database, ADMIN, key_id=acme.key_id)
    assert [tenant.name for tenant in await admin_tenants.list_tenants(database, ADMIN)] == ["Acme"]
    assert (await admin_keys.get_key(database, ADMIN, key_id=acme.key_id)).status == "active"


async def test_the_audit_row_tells_before_and_after(database: Database) -> None:
    acme = await make_organisation(database)
    await admin_tenants.suspend_tenant(database, ADMIN, tenant_id=acme.tenant_id, reason="unpaid")
    (entry,) = await admin_audit.list_audit(database, ADMIN, action="tenant.suspend")
    assert (entry.actor_kind, entry.actor_label, entry.reason) == ("system", "test", "unpaid")
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["status"], entry.after["status"]) == ("active", "suspended")
    async with database.system() as connection:
        with pytest.raises(ValueError, match="secret"):
            await admin_audit.record(
                connection,
                ADMIN,
                "x",
                tenant_id=None,
                object_kind="x",
                object_id="x",
                after={"secret": "pen_live_x"},
            )
