"""Second factors: enrolled by a code, asked for at each sign-in, each code works once, guessing is throttled."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyotp
import pytest
from sqlalchemy import text

from admin import second_factor, sessions, sign_in_tickets, users
from admin.actor import Actor
from admin.audit import list_audit
from admin.factor_codes import BACKUP_CODES, STEP_S, GivenCode
from admin.logins import (
    RightPassword,
    authenticate_token,
    check_password,
    complete,
    create_admin_token,
    sign_in,
)
from core.db import Database
from core.errors import AuthenticationFailed, Conflict, PermissionDenied, RateLimited, Unavailable
from tenants import logins
from tenants.admin_tokens import Opened
from tenants.second_factors import MAX_WRONG_CODES
from tests.integration.admin.people import PASSWORD, console_session, is_open, person
from tests.integration.admin.rest import Caller
from tests.support.tenancy import ADMIN, PEPPER, audit_actions, make_organisation

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def later(steps: int) -> datetime:
    return NOW + timedelta(seconds=STEP_S * steps)


def given(code: str, now: datetime = NOW) -> GivenCode:
    return GivenCode(code, PEPPER, now)


class Enrolled:
    """A person with a second factor, enrolled at NOW."""

    def __init__(self, database: Database, actor: Actor, secret: str, codes: list[str]) -> None:
        self.database, self.actor, self.codes = database, actor, codes
        self._totp = pyotp.TOTP(secret)
        self.secret = secret

    def code(self, steps: int) -> str:
        """The code of `steps` after the enrolment."""
        return self._totp.at(later(steps))

    async def sign_in(self, code: str, steps: int = 0, address: str = "192.0.2.1") -> str | None:
        """How the person is proved who signs in with `code`."""
        found = await sign_in(
            self.database,
            self.actor.label,
            PASSWORD,
            address=address,
            code=given(code, later(steps)),
        )
        return None if found is None else found.proved_by

    async def right(self) -> RightPassword:
        return await right_of(self.database, self.actor)


async def right_of(database: Database, actor: Actor) -> RightPassword:
    right = await check_password(database, actor.label, PASSWORD, address="192.0.2.1")
    assert right is not None
    return right


@pytest.fixture
async def ada(database: Database) -> Enrolled:
    acme = await make_organisation(database)
    return await enrol(database, await person(database, "tenant_owner", acme.tenant_id))


async def enrol(database: Database, actor: Actor) -> Enrolled:
    right = await right_of(database, actor)
    made = await second_factor.begin_enrolment(database, right, pepper=PEPPER, address="192.0.2.1")
    totp = pyotp.parse_uri(made.uri)
    assert isinstance(totp, pyotp.TOTP)
    assert (totp.secret, totp.issuer, totp.name) == (made.secret, "Penstock", actor.label)
    done = await second_factor.confirm_enrolment(database, right, given(totp.at(NOW)), address="192.0.2.1")
    return Enrolled(database, actor, made.secret, list(done.backup_codes))


async def test_sign_ins_ask_for_a_code_which_works_once(ada: Enrolled) -> None:
    database, label = ada.database, ada.actor.label
    with pytest.raises(AuthenticationFailed, match="second factor") as refused:
        await sign_in(database, label, PASSWORD)
    assert refused.value.code == "second_factor_required"
    with pytest.raises(AuthenticationFailed):
        await users.verify_login(database, label, PASSWORD)
    assert await sign_in(database, label, "wrong password", code=given(ada.code(1))) is None

    with pytest.raises(AuthenticationFailed) as used:
        await ada.sign_in(ada.code(0))  # it has enrolled
    assert used.value.code == "wrong_second_factor"
    assert await ada.sign_in(ada.code(1), 1) == "second_factor"
    with pytest.raises(AuthenticationFailed):
        await ada.sign_in(ada.code(1), 1)
    with pytest.raises(AuthenticationFailed):
        await ada.sign_in(ada.code(0), 1)  # of an earlier step than the one accepted
    assert await ada.sign_in(f" {ada.code(2)[:3]} {ada.code(2)[3:]} ", 2) == "second_factor"


async def test_clocks_may_differ_by_one_step(ada: Enrolled) -> None:
    for ahead in (12, 8):
        with pytest.raises(AuthenticationFailed):
            await ada.sign_in(ada.code(ahead), 10)
    assert await ada.sign_in(ada.code(9), 10) == "second_factor"
    assert await ada.sign_in(ada.code(11), 10) == "second_factor"


async def test_one_code_signs_in_once_even_in_parallel(ada: Enrolled) -> None:
    async def attempt(address: str) -> str | None:
        try:
            return await ada.sign_in(ada.code(1), 1, address)
        except AuthenticationFailed as error:
            return error.code

    results = await asyncio.gather(*(attempt(f"192.0.2.{n}") for n in range(4)))
    assert sorted(map(str, results)) == ["second_factor", *["wrong_second_factor"] * 3]


async def test_a_backup_code_works_once_and_new_ones_end_the_old(ada: Enrolled) -> None:
    database = ada.database
    assert len(set(ada.codes)) == BACKUP_CODES
    first, second, *_ = ada.codes
    assert await ada.sign_in(first.upper().replace("-", " ")) == "second_factor"
    assert (await audit_actions(database))[-2:] == ["user.use_backup_code", "user.sign_in"]
    with pytest.raises(AuthenticationFailed):
        await ada.sign_in(first)
    user_id = UUID(ada.actor.id)
    assert await second_factor.state_of(database, user_id) == second_factor.FactorState(
        True, BACKUP_CODES - 1
    )
    renewed = await second_factor.renew_backup_codes(
        database, await ada.right(), given(ada.code(1), later(1))
    )
    assert (await audit_actions(database))[-1] == "user.make_backup_codes"
    with pytest.raises(AuthenticationFailed):
        await ada.sign_in(second)
    assert await ada.sign_in(renewed[3]) == "second_factor"
    assert (await second_factor.state_of(database, user_id)).backup_codes_left == BACKUP_CODES - 1


async def test_guessing_codes_is_throttled_with_the_passwords(ada: Enrolled) -> None:
    for _ in range(logins.FAILURES_PER_EMAIL_AND_ADDRESS):
        with pytest.raises(AuthenticationFailed):
            await ada.sign_in("000000")
    with pytest.raises(RateLimited):
        await ada.sign_in(ada.code(1), 1)
    with pytest.raises(RateLimited):  # the right password alone forgets no failures
        await check_password(ada.database, ada.actor.label, PASSWORD, address="192.0.2.1")
    assert await ada.sign_in(ada.code(1), 1, "192.0.2.9") == "second_factor"


async def test_wrong_codes_in_a_row_lock_the_second_factor(ada: Enrolled) -> None:
    database, user_id = ada.database, UUID(ada.actor.id)

    async def wrong(n: int) -> str:
        with pytest.raises(AuthenticationFailed) as refused:
            await ada.sign_in("000000", 1, f"198.51.100.{n}")
        return refused.value.code

    async def counted_so_far(count: int) -> None:
        async with database.system() as connection:
            await connection.execute(text("UPDATE second_factors SET wrong_codes = :n"), {"n": count})

    await counted_so_far(MAX_WRONG_CODES - 1)
    assert await ada.sign_in(ada.code(1), 1) == "second_factor", "the last one that is allowed is checked"
    assert [await wrong(n) for n in range(3)] == ["wrong_second_factor"] * 3
    await counted_so_far(MAX_WRONG_CODES - 1)
    assert await wrong(4) == "wrong_second_factor"
    assert await wrong(5) == "second_factor_locked"
    for locked in (
        ada.sign_in(ada.code(2), 2),
        ada.sign_in(ada.codes[0]),
        second_factor.disable(database, await ada.right(), given(ada.code(2), later(2))),
    ):
        with pytest.raises(AuthenticationFailed, match="locked after 100 wrong codes") as refused:
            await locked
        assert refused.value.code == "second_factor_locked"
    rows = [
        (row.action, row.actor_label, row.after)
        for row in reversed(await list_audit(database, ADMIN, action="user."))
        if row.action in ("user.wrong_second_factor", "user.lock_second_factor")
    ]
    assert rows == [
        ("user.wrong_second_factor", ada.actor.label, {"address": "198.51.100.0", "wrong_codes": 1}),
        ("user.lock_second_factor", ada.actor.label, {"address": "198.51.100.4", "wrong_codes": 100}),
    ], "one row within the window, and one for the lock"

    await second_factor.remove_for(database, ADMIN, user_id=user_id, reason="locked")
    anew = await enrol(database, ada.actor)
    assert await anew.sign_in(anew.code(1), 1) == "second_factor"


async def test_parallel_wrong_codes_do_not_pass_the_bound(ada: Enrolled) -> None:
    async with ada.database.system() as connection:
        await connection.execute(
            text("UPDATE second_factors SET wrong_codes = :n"), {"n": MAX_WRONG_CODES - 2}
        )

    async def attempt(address: str) -> str | None:
        with pytest.raises(AuthenticationFailed) as refused:
            await ada.sign_in("000000", 1, address)
        return refused.value.code

    results = await asyncio.gather(*(attempt(f"192.0.2.{n}") for n in range(6)))
    assert sorted(map(str, results)) == ["second_factor_locked"] * 4 + ["wrong_second_factor"] * 2


@pytest.mark.parametrize(
    "code", ["", "   ", "12345", "\ud800\ud800", "１２３４５６", "x" * 10_000, "000000\x00"]
)
async def test_what_is_no_code_is_refused(ada: Enrolled, code: str) -> None:
    with pytest.raises(AuthenticationFailed):
        await ada.sign_in(code)


async def test_a_wrong_first_code_enrols_nothing(database: Database) -> None:
    actor = await person(database, "platform_admin")
    right = await right_of(database, actor)
    first = await second_factor.begin_enrolment(database, right, pepper=PEPPER)
    made = await second_factor.begin_enrolment(database, right, pepper=PEPPER)
    for code in ("000000", pyotp.TOTP(first.secret).at(NOW)):  # the secret of before was replaced
        with pytest.raises(AuthenticationFailed):
            await second_factor.confirm_enrolment(database, right, given(code))
    assert await users.verify_login(database, actor.label, PASSWORD) == actor
    assert "user.enrol_second_factor" not in await audit_actions(database)
    await second_factor.confirm_enrolment(database, right, given(pyotp.TOTP(made.secret).at(NOW)))
    for again in (
        second_factor.begin_enrolment(database, right, pepper=PEPPER),
        second_factor.confirm_enrolment(
            database, right, given(pyotp.TOTP(made.secret).at(later(1)), later(1))
        ),
    ):
        with pytest.raises(Conflict, match="has a second factor"):
            await again


async def test_disabling_takes_the_password_and_a_code(ada: Enrolled) -> None:
    database, right = ada.database, await ada.right()
    with pytest.raises(AuthenticationFailed):
        await second_factor.disable(database, right, given("000000"))
    await users.reset_password(database, ADMIN, user_id=UUID(ada.actor.id), password="another password")
    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        await second_factor.disable(database, right, given(ada.code(1), later(1)))
    anew = await check_password(database, ada.actor.label, "another password")
    assert anew is not None
    assert anew.needs_code, "a new password takes no second factor away"
    await second_factor.disable(database, anew, given(ada.code(1), later(1)))
    assert (await audit_actions(database))[-1] == "user.disable_second_factor"
    assert (await users.verify_login(database, ada.actor.label, "another password")) == ada.actor
    with pytest.raises(Conflict, match="no second factor"):
        await second_factor.disable(database, anew, given(ada.codes[0]))


async def test_an_admin_removes_a_lost_one_which_ends_all_access(ada: Enrolled) -> None:
    database, acme, user_id = ada.database, ada.actor.tenant_id, UUID(ada.actor.id)
    token = await create_admin_token(database, ada.actor, pepper=PEPPER, user_id=user_id, name="mine")
    session = await console_session(database, ada.actor)
    boss = await enrol(database, await person(database, "platform_admin"))
    owner = await person(database, "tenant_owner", acme)
    finance = await person(database, "finance")
    for who in (owner, finance, ada.actor):
        with pytest.raises(PermissionDenied):
            await second_factor.remove_for(database, who, user_id=user_id)
    with pytest.raises(PermissionDenied, match="your own"):
        await second_factor.remove_for(database, boss.actor, user_id=UUID(boss.actor.id))
    after = await second_factor.remove_for(database, boss.actor, user_id=user_id, reason="phone lost")
    assert not after.second_factor
    assert (await audit_actions(database))[-1] == "user.remove_second_factor"
    assert not await is_open(database, session)
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, token.secret, pepper=PEPPER)
    assert await users.verify_login(database, ada.actor.label, PASSWORD) == ada.actor
    with pytest.raises(Conflict, match="has no second factor"):
        await second_factor.remove_for(database, boss.actor, user_id=user_id)


async def test_an_admin_removes_one_over_rest(ada: Enrolled, admin: Caller) -> None:
    path = f"/users/{ada.actor.id}/second-factor/remove"
    assert (await admin("GET", f"/users/{ada.actor.id}")).json()["second_factor"] is True
    before = await audit_actions(ada.database)
    removed = await admin("POST", path, {"reason": "phone lost"})
    assert (removed.status_code, removed.json()["second_factor"]) == (200, False)
    assert await audit_actions(ada.database) == [*before, "user.remove_second_factor"]
    assert (await admin("POST", path)).status_code == 409


async def test_what_is_opened_says_how_its_person_signed_in(ada: Enrolled, database: Database) -> None:
    signed_in = await sign_in(database, ada.actor.label, PASSWORD, code=given(ada.code(1), later(1)))
    assert signed_in is not None
    view = await sessions.open_console_session(
        database, signed_in, token_hash=b"x" * 32, opened=Opened(), now=datetime.now(UTC)
    )
    assert view.proved_by == "second_factor"
    found = await sessions.find_console_session(database, b"x" * 32, now=datetime.now(UTC), use=False)
    assert found is not None
    token = await create_admin_token(
        database, found[0], pepper=PEPPER, user_id=UUID(ada.actor.id), name="made in the session"
    )
    assert token.view.proved_by == "second_factor"
    rest = await sessions.open_session(
        database, pepper=PEPPER, email=ada.actor.label, password=PASSWORD, code=ada.codes[0], opened=Opened()
    )
    assert rest.view.proved_by == "second_factor"


async def test_no_secret_or_code_is_stored_or_logged(ada: Enrolled, database: Database) -> None:
    await ada.sign_in(ada.codes[0])
    async with database.system() as connection:
        rows = [
            repr(tuple(row))
            for table in ("second_factors", "backup_codes", "audit_log")
            for row in await connection.execute(text(f"SELECT * FROM {table}"))
        ]
    stored = "".join(rows)
    for secret in (ada.secret, *ada.codes, *(code.replace("-", "") for code in ada.codes)):
        assert secret not in stored


async def test_another_pepper_is_named_as_the_cause(ada: Enrolled) -> None:
    with pytest.raises(Unavailable, match="PENSTOCK_KEY_PEPPER"):
        await complete(ada.database, await ada.right(), code=GivenCode("123456", b"another", NOW))


async def test_a_ticket_ends_and_cannot_be_changed(ada: Enrolled) -> None:
    ticket = sign_in_tickets.issue(await ada.right(), PEPPER, NOW)
    assert sign_in_tickets.read(ticket, PEPPER, NOW).right.email == ada.actor.label
    late = NOW + sign_in_tickets.LIFE + timedelta(seconds=1)
    changed = ticket[:-8] + ("A" if ticket[-8] != "A" else "B") + ticket[-7:]
    for text_, pepper, now in (
        (ticket, PEPPER, late),
        (changed, PEPPER, NOW),
        (ticket, b"another", NOW),
        ("", PEPPER, NOW),
        ("é" * 40, PEPPER, NOW),
    ):
        with pytest.raises(AuthenticationFailed, match="Begin again"):
            sign_in_tickets.read(text_, pepper, now)
    right = sign_in_tickets.read(ticket, PEPPER, NOW).right
    await users.reset_password(ada.database, ADMIN, user_id=UUID(ada.actor.id), password="another password")
    assert await complete(ada.database, right, code=given(ada.code(1), later(1))) is None


async def test_what_the_password_alone_opened_ends_with_the_enrolment(database: Database) -> None:
    acme = await make_organisation(database)
    actor = await person(database, "tenant_owner", acme.tenant_id)
    kept, other = await console_session(database, actor), await console_session(database, actor)
    token = await create_admin_token(database, actor, pepper=PEPPER, user_id=UUID(actor.id), name="old")
    found = await sessions.find_console_session(database, kept, now=datetime.now(UTC), use=True)
    assert found is not None
    right = await right_of(database, actor)
    made = await second_factor.begin_enrolment(database, right, pepper=PEPPER)
    code = given(pyotp.TOTP(made.secret).at(NOW))
    await second_factor.confirm_enrolment(database, right, code, keep=found[1].id)
    assert (await is_open(database, kept), await is_open(database, other)) == (True, False)
    with pytest.raises(AuthenticationFailed):
        await authenticate_token(database, token.secret, pepper=PEPPER)
