"""What sign-ins must prove: what was proved by less ends, and who has no second factor can do nothing before."""

import asyncio
from uuid import UUID

import pyotp
import pytest

from admin import second_factor, sessions, sign_in_rules, users
from admin.actor import Actor, system_actor
from admin.logins import authenticate_token, check_password, complete, create_admin_token, sign_in
from core.db import Database
from core.errors import AuthenticationFailed, InvalidRequest, NotFound, PermissionDenied
from tenants import sign_in_rules as rules
from tenants.admin_tokens import Opened
from tests.integration.admin.people import PASSWORD, console_session, is_open, person
from tests.integration.admin.rest import NOBODY
from tests.integration.admin.test_second_factor import enrol, given, later
from tests.support.tenancy import ADMIN, PEPPER, audit_actions, make_organisation
from tests.support.waiting import until


async def token_of(database: Database, actor: Actor) -> str:
    made = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=UUID(actor.id), name="old")
    return made.secret


async def works(database: Database, token: str) -> bool:
    try:
        await authenticate_token(database, token, pepper=PEPPER)
    except AuthenticationFailed:
        return False
    return True


async def test_what_a_password_alone_has_opened_ends(database: Database) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Globex")
    owner = await person(database, "tenant_owner", acme.tenant_id)
    stranger = await person(database, "tenant_owner", other.tenant_id)
    careful = await enrol(database, await person(database, "tenant_developer", acme.tenant_id))
    kept = await sessions.open_session(
        database,
        pepper=PEPPER,
        email=careful.actor.label,
        password=PASSWORD,
        code=careful.codes[0],
        opened=Opened(),
    )
    ended = [await token_of(database, one) for one in (owner, careful.actor)]
    session, theirs = await console_session(database, owner), await token_of(database, stranger)

    set_to = await sign_in_rules.set_rule(
        database, owner, tenant_id=acme.tenant_id, rule="second_factor", reason="policy"
    )
    assert (set_to.rule, set_to.ended) == ("second_factor", 3)
    assert (await audit_actions(database))[-1] == "sign_in.set_rule"
    assert [await works(database, one) for one in ended] == [False, False]
    assert not await is_open(database, session)
    assert await works(database, kept.secret)
    assert await works(database, theirs)
    await sign_in_rules.set_rule(database, ADMIN, tenant_id=acme.tenant_id, rule="password")
    assert [await works(database, one) for one in ended] == [False, False], "they ended for good"


async def test_who_has_no_second_factor_enrols_one_and_can_do_nothing_before(database: Database) -> None:
    acme = await make_organisation(database)
    ada = await person(database, "tenant_owner", acme.tenant_id)
    await sign_in_rules.set_rule(database, ADMIN, tenant_id=acme.tenant_id, rule="second_factor")
    right = await check_password(database, ada.label, PASSWORD)
    assert right is not None
    assert right.must_enrol
    for refused in (
        complete(database, right),
        sign_in(database, ada.label, PASSWORD),
        sessions.open_session(database, pepper=PEPPER, email=ada.label, password=PASSWORD, opened=Opened()),
        create_admin_token(database, ada, pepper=PEPPER, user_id=UUID(ada.id), name="mine"),
        console_session(database, ada),
    ):
        with pytest.raises(PermissionDenied, match="needs a second factor"):
            await refused
    made = await second_factor.begin_enrolment(database, right, pepper=PEPPER)
    done = await second_factor.confirm_enrolment(database, right, given(pyotp.TOTP(made.secret).at(later(0))))
    assert done.signed_in.proved_by == "second_factor"
    again = await sign_in(database, ada.label, PASSWORD, code=given(done.backup_codes[0]))
    assert again is not None
    assert again.actor == ada
    anew = await check_password(database, ada.label, PASSWORD)
    assert anew is not None
    assert not anew.must_enrol
    with pytest.raises(PermissionDenied, match="cannot be disabled"):
        await second_factor.disable(database, anew, given(done.backup_codes[1]))
    await second_factor.remove_for(database, ADMIN, user_id=UUID(ada.id))
    with pytest.raises(PermissionDenied, match="needs a second factor"):
        await users.verify_login(database, ada.label, PASSWORD)


async def test_the_platforms_people_have_a_rule_of_their_own(database: Database) -> None:
    acme = await make_organisation(database)
    boss, finance = await person(database, "platform_admin"), await person(database, "finance")
    owner = await person(database, "tenant_owner", acme.tenant_id)
    mine = await token_of(database, owner)
    assert (await sign_in_rules.set_rule(database, boss, rule="second_factor")).tenant_id is None
    assert (await sign_in_rules.get_rule(database, boss)).rule == "second_factor"
    assert (await sign_in_rules.get_rule(database, owner, tenant_id=acme.tenant_id)).rule == "password"
    with pytest.raises(PermissionDenied):
        await users.verify_login(database, finance.label, PASSWORD)
    assert await works(database, mine)
    assert await users.verify_login(database, owner.label, PASSWORD) == owner
    # The first start of `penstock up` still makes its token, and a shell lets everybody in again.
    assert await works(database, await token_of(database, boss))
    shell = Actor(kind="cli", id="root", label="root", role="platform_admin")
    await sign_in_rules.set_rule(database, shell, rule="password", reason="nobody can sign in")
    assert await users.verify_login(database, finance.label, PASSWORD) == finance


async def test_who_may_set_it(database: Database) -> None:
    acme, other = await make_organisation(database), await make_organisation(database, "Globex")
    owner = await person(database, "tenant_owner", acme.tenant_id)
    developer = await person(database, "tenant_developer", acme.tenant_id)
    for who, tenant_id in (
        (developer, acme.tenant_id),
        (owner, other.tenant_id),
        (owner, None),
        (await person(database, "finance"), None),
    ):
        with pytest.raises(PermissionDenied):
            await sign_in_rules.set_rule(database, who, tenant_id=tenant_id, rule="second_factor")
    for who, tenant_id in ((developer, None), (owner, other.tenant_id)):
        with pytest.raises(PermissionDenied):
            await sign_in_rules.get_rule(database, who, tenant_id=tenant_id)
    with pytest.raises(InvalidRequest, match="rule must be one of password, second_factor"):
        await sign_in_rules.set_rule(database, owner, tenant_id=acme.tenant_id, rule="thumb")
    with pytest.raises(NotFound):
        await sign_in_rules.set_rule(database, ADMIN, tenant_id=UUID(NOBODY), rule="password")


async def test_nothing_slips_through_while_the_rule_changes(database: Database) -> None:
    """Whatever is opened at the same time is refused, or is there when it is ended."""
    acme = await make_organisation(database)
    owner = await person(database, "tenant_owner", acme.tenant_id)
    opened: list[bytes] = []

    async def open_more() -> None:
        while True:
            opened.append(await console_session(database, owner))

    async def open_some() -> None:
        with pytest.raises(PermissionDenied, match="needs a second factor"):
            await open_more()

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(open_some())
        await until(lambda: bool(opened))
        await sign_in_rules.set_rule(
            database, system_actor("test"), tenant_id=acme.tenant_id, rule="second_factor"
        )
    assert opened
    assert not [one for one in opened if await is_open(database, one)]
    async with database.read() as connection:
        assert await rules.read_rule(connection, acme.tenant_id) == "second_factor"
