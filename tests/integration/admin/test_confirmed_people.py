"""An account is a second person only when another person than its maker says so."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyotp
import pytest
from typer.testing import CliRunner

from admin import credits as admin_credits
from admin import decisions, second_factor
from admin import users as admin_users
from admin.actor import Actor
from admin.factor_codes import GivenCode
from admin.logins import authenticate_token, check_password, verify_login
from admin.recovery import make_recovery_code, recover_password
from billing.ledger.approvals import Approval
from cli.main import app as penstock
from core.db import Database
from core.errors import AuthenticationFailed, Conflict, PermissionDenied, WaitsForApproval
from tests.integration.admin.people import console_session, is_open
from tests.integration.billing.support import Customer, make_customer
from tests.support.tenancy import ADMIN, PEPPER, audit_actions

PASSWORD = "correct horse battery"
SHELL = Actor(kind="cli", id="root", label="root", role="platform_admin")


async def make(database: Database, by: Actor, name: str, role: str = "platform_admin") -> Actor:
    """A person of the platform, made by `by`, who signs in."""
    email = f"{name}@example.com"
    await admin_users.create_user(database, by, email=email, password=PASSWORD, role=role)
    actor = await verify_login(database, email, PASSWORD)
    assert actor is not None
    return actor


async def request(database: Database, by: Actor, customer: Customer, usd: str = "500") -> UUID:
    """A grant of credit that waits."""
    with pytest.raises(WaitsForApproval) as waits:
        await admin_credits.grant_credit(
            database, by, tenant_id=customer.tenant_id, amount_usd=usd, reason="friends"
        )
    assert waits.value.details is not None
    return UUID(waits.value.details["approval_id"])


async def approve(database: Database, by: Actor, approval_id: UUID) -> Any:
    return await decisions.decide(database, by, approval_id=approval_id, approve=True)


async def confirmations(database: Database) -> list[Approval]:
    """Requests to confirm people, the oldest first."""
    return await decisions.list_approvals(database, ADMIN, kind="person.confirm")


async def test_an_admin_does_not_approve_with_an_account_of_their_making(database: Database) -> None:
    ada, bob = await make(database, ADMIN, "ada"), await make(database, ADMIN, "bob", "finance")
    customer = await make_customer(database)
    eve = await make(database, ada, "eve")
    mallory = await make(database, eve, "mallory")
    for requester, approver in ((ada, eve), (eve, ada), (ada, mallory), (eve, mallory), (bob, eve)):
        with pytest.raises(Conflict, match="a third person must approve"):
            await approve(database, approver, await request(database, requester, customer))
    of_eve, of_mallory = await confirmations(database)
    for approver, one in ((ada, of_eve), (eve, of_eve), (ada, of_mallory), (bob, of_mallory)):
        with pytest.raises(Conflict):
            await approve(database, approver, one.id)
    await approve(database, bob, of_eve.id)
    await approve(database, eve, await request(database, ada, customer))
    await approve(database, bob, of_mallory.id)
    await approve(database, mallory, await request(database, ada, customer))


async def test_a_new_password_makes_a_person_unconfirmed_until_another_confirms_it(
    database: Database,
) -> None:
    ada, bob, cid = [await make(database, ADMIN, name) for name in ("ada", "bob", "cid")]
    customer = await make_customer(database)
    waiting = await request(database, ada, customer)
    for password in ("first of adas choice", "second of adas choice"):
        await admin_users.reset_password(database, ada, user_id=UUID(bob.id), password=password)
    await admin_users.change_password(database, bob, current="second of adas choice", new=PASSWORD)
    with pytest.raises(Conflict, match="gave bob@"):
        await approve(database, bob, waiting)
    first, second = await confirmations(database)
    with pytest.raises(Conflict, match="changed again since"):
        await approve(database, cid, first.id)
    await approve(database, cid, second.id)
    await approve(database, bob, waiting)
    assert await confirmations(database) == [first]


async def test_an_unconfirmed_person_has_no_allowance(database: Database) -> None:
    ada = await make(database, ADMIN, "ada")
    customer = await make_customer(database)
    eve = await make(database, ada, "eve")
    await request(database, eve, customer, "1")


async def test_a_shell_makes_the_first_two_people_and_no_more(database: Database) -> None:
    ada, bob = await make(database, SHELL, "ada"), await make(database, SHELL, "bob")
    customer = await make_customer(database)
    await approve(database, bob, await request(database, ada, customer))
    with pytest.raises(PermissionDenied, match="set PENSTOCK_ADMIN_TOKEN"):
        await make(database, SHELL, "eve")
    assert await verify_login(database, "eve@example.com", PASSWORD) is None
    await admin_users.reset_password(database, ada, user_id=UUID(bob.id), password=PASSWORD)
    for act in (make(database, SHELL, "eve"), _reset(database, SHELL, bob)):
        with pytest.raises(PermissionDenied, match="set PENSTOCK_ADMIN_TOKEN"):
            await act


async def test_a_shell_helps_a_platform_whose_second_person_cannot_be_confirmed(database: Database) -> None:
    ada = await make(database, ADMIN, "ada")
    bob = await make(database, ada, "bob")
    customer = await make_customer(database)
    waiting = await request(database, ada, customer)
    with pytest.raises(Conflict):
        await approve(database, bob, waiting)
    await _reset(database, SHELL, bob)
    await approve(database, bob, waiting)


async def _reset(database: Database, by: Actor, person: Actor) -> None:
    await admin_users.reset_password(database, by, user_id=UUID(person.id), password=PASSWORD)


async def test_two_people_recover_a_lost_password_without_a_third(database: Database) -> None:
    ada, bob = await make(database, ADMIN, "ada"), await make(database, ADMIN, "bob")
    customer = await make_customer(database)
    code = await make_recovery_code(database, bob)
    waiting = await request(database, ada, customer)
    await admin_users.reset_password(database, ada, user_id=UUID(bob.id), password="of adas choice")
    as_bob = await verify_login(database, "bob@example.com", "of adas choice")
    assert as_bob is not None
    stolen = await admin_users.create_admin_token(
        database, as_bob, pepper=PEPPER, user_id=UUID(bob.id), name="of ada"
    )
    with pytest.raises(Conflict, match="makes no recovery code"):
        await make_recovery_code(database, as_bob)
    with pytest.raises(Conflict, match="gave bob@"):
        await approve(database, as_bob, waiting)
    for wrong in ("0" * 40, "", "of adas choice"):
        with pytest.raises(AuthenticationFailed):
            await recover_password(database, email="bob@example.com", code=wrong, password=PASSWORD)
    opened = await console_session(database, as_bob)
    assert await is_open(database, opened)
    await recover_password(database, email="bob@example.com", code=code, password="bobs own secret")
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, stolen.secret, pepper=PEPPER)
    assert not await is_open(database, opened), "sessions of before have ended"
    assert await verify_login(database, "bob@example.com", "of adas choice") is None
    again = await verify_login(database, "bob@example.com", "bobs own secret")
    assert again is not None
    await approve(database, again, waiting)
    with pytest.raises(AuthenticationFailed):  # it works once
        await recover_password(database, email="bob@example.com", code=code, password=PASSWORD)
    actions = await audit_actions(database)
    assert (actions.count("user.make_recovery_code"), actions.count("user.recover_password")) == (1, 1)


async def test_a_changed_password_ends_the_recovery_code(database: Database) -> None:
    bob = await make(database, ADMIN, "bob")
    code = await make_recovery_code(database, bob)
    await admin_users.change_password(database, bob, current=PASSWORD, new="bobs own secret")
    with pytest.raises(AuthenticationFailed):
        await recover_password(database, email="bob@example.com", code=code, password=PASSWORD)


async def test_a_confirmed_password_ends_what_was_opened_with_it_before(database: Database) -> None:
    ada, bob, cid = [await make(database, ADMIN, name) for name in ("ada", "bob", "cid")]
    old = await console_session(database, bob)
    await admin_users.reset_password(database, ada, user_id=UUID(bob.id), password="of adas choice")
    assert not await is_open(database, old), "a reset ends them at once"
    as_bob = await verify_login(database, "bob@example.com", "of adas choice")
    assert as_bob is not None
    token = await admin_users.create_admin_token(
        database, as_bob, pepper=PEPPER, user_id=UUID(bob.id), name="of ada"
    )
    opened = await console_session(database, as_bob)
    [one] = await confirmations(database)
    await approve(database, cid, one.id)
    assert not await is_open(database, opened)
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, token.secret, pepper=PEPPER)


async def test_the_commands_make_and_use_a_recovery_code(
    database: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, ADMIN, "bob")
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    invoke = CliRunner().invoke
    made = await asyncio.to_thread(
        invoke, penstock, ["users", "recovery-code", "bob@example.com", "--json"], PASSWORD
    )
    code = json.loads(made.stdout)["recovery_code"]
    words = ["users", "recover", "bob@example.com", "--json"]
    wrong = await asyncio.to_thread(invoke, penstock, words, "guess\nbobs own secret\n")
    assert (wrong.exit_code, "recovery code is wrong" in wrong.stderr) == (2, True)
    done = await asyncio.to_thread(invoke, penstock, words, f"{code}\nbobs own secret\n")
    assert json.loads(done.stdout)["email"] == "bob@example.com"
    assert await verify_login(database, "bob@example.com", "bobs own secret") is not None


async def test_a_second_factor_enrolled_before_the_confirmation_ends_with_it(database: Database) -> None:
    ada, bob, cid = [await make(database, ADMIN, name) for name in ("ada", "bob", "cid")]
    await admin_users.reset_password(database, ada, user_id=UUID(bob.id), password=PASSWORD)
    right = await check_password(database, bob.label, PASSWORD)
    assert right is not None
    made = await second_factor.begin_enrolment(database, right, pepper=PEPPER)
    now = datetime.now(UTC)
    code = GivenCode(pyotp.TOTP(made.secret).at(now), PEPPER, now)
    await second_factor.confirm_enrolment(database, right, code)
    [waiting] = await confirmations(database)
    await approve(database, cid, waiting.id)
    assert await verify_login(database, bob.label, PASSWORD) is not None, "no code of ada's is asked for"
