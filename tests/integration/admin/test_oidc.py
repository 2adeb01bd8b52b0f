"""Identity providers: the protocol against a real provider, whose word counts for whom, and what is refused."""

import hashlib
import re
import socket
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import msgspec
import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse
from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey
from sqlalchemy import text

from admin import identity_providers, oidc_client, oidc_sign_in, sessions, sign_in_rules, users
from admin.actor import Actor
from admin.logins import SignIn, create_admin_token
from admin.oidc_client import Asked, Client, Identity
from admin.oidc_sign_in import Unlinked
from console.deps import Console
from console.oidc import LIFE, Linking, ProviderSteps
from core.db import Database
from core.errors import (
    AuthenticationFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    PermissionDenied,
    RateLimited,
    Unavailable,
)
from core.settings import Settings
from tenants.admin_tokens import Opened
from tenants.identity_providers import Provider
from tenants.logins import FAILURES_PER_EMAIL
from tenants.roles import Role
from tenants.sealed import seal_text
from tests.integration.admin.people import PASSWORD, person
from tests.integration.admin.test_second_factor import enrol, given, later
from tests.support.clock import ManualClock
from tests.support.oidc import HOST, IGNORED, ProviderServer, provider_server
from tests.support.tenancy import ADMIN, PEPPER, Organisation, audit_actions, make_organisation

pytestmark = pytest.mark.filterwarnings(*IGNORED)
BACK = "https://console.example.com/sign-in/callback"
ALLOW = frozenset({HOST})


@pytest.fixture(scope="module")
def server() -> Iterator[ProviderServer]:
    with provider_server() as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> Client:
    return Client(server.issuer, "penstock", "the client secret", ALLOW)


@pytest.fixture
async def acme(database: Database) -> Organisation:
    return await make_organisation(database)


async def through(client: Client, server: ProviderServer, sub: str) -> tuple[Asked, str]:
    """To the provider and back: what was asked, and the code."""
    address, asked = await oidc_client.begin(client, BACK, login_hint="ada@example.com")
    back = await server.approve(address, sub)
    assert back["state"] == asked.state
    return asked, back["code"]


def now() -> datetime:
    return datetime.now(UTC)


async def test_the_provider_names_a_person(client: Client, server: ProviderServer) -> None:
    await server.know("ada", email="ada@example.com", email_verified=True)
    asked, code = await through(client, server, "ada")
    sent = {name: values[0] for name, values in server.asked[-1].items()}
    challenge = urlsafe_b64encode(hashlib.sha256(asked.verifier.encode()).digest()).rstrip(b"=").decode()
    assert sent == {
        "response_type": "code",
        "client_id": "penstock",
        "redirect_uri": BACK,
        "scope": "openid email",
        "state": asked.state,
        "nonce": asked.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "login_hint": "ada@example.com",
    }
    found = await oidc_client.finish(client, asked, code, now())
    assert found == Identity(server.issuer, "ada", "ada@example.com", True)
    with pytest.raises(AuthenticationFailed) as again:
        await oidc_client.finish(client, asked, code, now())
    assert again.value.code == "oidc_code_refused"


async def test_a_token_that_does_not_hold_is_refused(client: Client, server: ProviderServer) -> None:
    for asked_with, finished_with, at in (
        (client, client, now() + timedelta(hours=2)),
        (client, client, now() - timedelta(hours=2)),
        (client, None, now()),
    ):
        asked, code = await through(asked_with, server, "ada")
        if finished_with is None:
            asked = msgspec.structs.replace(asked, nonce="of another sign-in")
        with pytest.raises(AuthenticationFailed) as refused:
            await oidc_client.finish(client, asked, code, at)
        assert refused.value.code == "oidc_token"


@pytest.mark.parametrize("flaw", ["", "aud", "iss", "nonce", "azp", "key", "none", "HS256", "no sub", "junk"])
async def test_each_claim_and_the_signature_count(client: Client, flaw: str) -> None:
    key, other = RSAKey.generate_key(2048, {"kid": "a"}), RSAKey.generate_key(2048, {"kid": "a"})
    at = int(now().timestamp())
    claims = {"iss": client.issuer, "sub": "ada", "aud": "penstock", "nonce": "n", "iat": at, "exp": at + 60}
    claims |= {"azp": "else"} if flaw == "azp" else {flaw: "else"} if flaw in ("aud", "iss", "nonce") else {}
    if flaw == "no sub":
        claims["sub"] = ""
    secret = OctKey.import_key(client.client_secret)
    token = {
        "none": lambda: ".".join((_part({"alg": "none"}), _part(claims), "")),
        "HS256": lambda: jwt.encode({"alg": "HS256"}, claims, secret, algorithms=["HS256"]),
        "key": lambda: jwt.encode({"alg": "RS256", "kid": "a"}, claims, other),
        "junk": lambda: "a.b.c",
    }.get(flaw, lambda: jwt.encode({"alg": "RS256", "kid": "a"}, claims, key))()
    keys = {"keys": [key.as_dict(private=False)]}
    asked, tokens = Asked("s", "n", "v", BACK), oidc_client._Tokens(token)
    if not flaw:
        assert oidc_client._claims(client, asked, tokens, keys, now())["sub"] == "ada"
        return
    with pytest.raises(AuthenticationFailed) as refused:
        oidc_client._claims(client, asked, tokens, keys, now())
    assert refused.value.code == "oidc_token"


def _part(value: object) -> str:
    return urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


async def test_a_changed_key_works_at_once(client: Client, server: ProviderServer) -> None:
    asked, code = await through(client, server, "ada")
    await oidc_client.finish(client, asked, code, now())
    server.change_key()
    asked, code = await through(client, server, "ada")
    assert (await oidc_client.finish(client, asked, code, now())).subject == "ada"


async def test_mail_comes_from_the_user_information_where_the_token_has_none(
    client: Client, server: ProviderServer
) -> None:
    await server.know("ada", email="ada@example.com", email_verified="true")
    server.plain_tokens = True
    try:
        asked, code = await through(client, server, "ada")
        found = await oidc_client.finish(client, asked, code, now())
    finally:
        server.plain_tokens = False
    assert server.paths[-1] == "/userinfo"
    assert found == Identity(server.issuer, "ada", "ada@example.com", True)


@pytest.mark.parametrize(
    "issuer",
    [
        "http://login.example.com",
        "http://127.0.0.1:80",
        "ftp://login.example.com",
        "https://user@login.example.com",
        "https://login.example.com/#a",
        "https://login.example.com/?a=b",
        "https://login.example.com:0",
        "https:///nothing",
        "https://[::1",
        "https://lögin.example.com",
        "login.example.com",
        "",
    ],
)
def test_an_issuer_that_may_not_be_asked(issuer: str) -> None:
    with pytest.raises(InvalidRequest, match="the issuer"):
        oidc_client.check_issuer(issuer, frozenset())
    assert oidc_client.check_issuer("https://login.example.com/a", frozenset())
    with pytest.raises(InvalidRequest, match="https"):  # listed, but not loopback
        oidc_client.check_issuer("http://login.example.com", frozenset({"login.example.com"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254"])
async def test_private_addresses_are_not_asked(host: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        port = listening.getsockname()[1]
        private = Client(f"https://{host}:{port}", "penstock", "secret")
        with pytest.raises(Unavailable, match="cannot be reached"):
            await oidc_client.begin(private, BACK, login_hint="")
        assert "cannot be reached (ClientConnectorError)" in caplog.text
        with pytest.raises(BlockingIOError):
            listening.accept()


async def test_a_silent_provider_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oidc_client, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lost = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", "penstock", "secret", ALLOW)
        with pytest.raises(Unavailable):
            await oidc_client.begin(lost, BACK, login_hint="")
    assert "does not answer within" in caplog.text


async def test_a_provider_that_calls_itself_otherwise_is_refused(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    other = msgspec.structs.replace(client, issuer=client.issuer + "/")
    with pytest.raises(Unavailable) as refused:
        await oidc_client.begin(other, BACK, login_hint="")
    assert "calls itself" in caplog.text
    assert "calls itself" not in refused.value.message, "the page tells nobody what answers there"


async def test_an_issuer_leads_to_no_other_host_of_the_list(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    both = msgspec.structs.replace(client, allow_hosts=frozenset({HOST, "localhost"}))
    assert await oidc_client._ask(both, client.issuer + "/.well-known/openid-configuration", dict)
    elsewhere = client.issuer.replace(HOST, "localhost")
    with pytest.raises(Unavailable):
        await oidc_client._ask(both, f"{elsewhere}/jwks", dict)
    assert "names an address that must begin with https://" in caplog.text


async def test_an_answer_of_another_issuer_is_refused_before_its_code_is_sent(
    client: Client, server: ProviderServer
) -> None:
    asked, code = await through(client, server, "ada")
    before = list(server.paths)
    with pytest.raises(AuthenticationFailed, match="another identity provider"):
        await oidc_client.finish(client, asked, code, now(), answered_by="https://evil.example")
    assert server.paths == before
    assert await oidc_client.finish(client, asked, code, now(), answered_by=client.issuer)


def test_a_deeply_nested_token_is_refused(client: Client) -> None:
    key = RSAKey.generate_key(2048, {"kid": "deep", "use": "sig", "alg": "RS256"})
    token = jws.serialize_compact({"alg": "RS256", "kid": "deep"}, b"[" * 100_000, key)
    keys = {"keys": [key.as_dict(private=False)]}
    with pytest.raises(AuthenticationFailed) as refused:
        oidc_client._claims(client, Asked("s", "n", "v", BACK), oidc_client._Tokens(token), keys, now())
    assert refused.value.code == "oidc_token"


class Acme:
    """An organisation with a provider for example.com."""

    def __init__(self, database: Database, acme: Organisation, provider: Provider) -> None:
        self.database, self.tenant_id, self.provider = database, acme.tenant_id, provider

    async def person(self, role: Role = "tenant_developer") -> Actor:
        return await person(self.database, role, self.tenant_id)

    async def comes(self, subject: str, email: str, *, verified: bool = True) -> SignIn | Unlinked:
        identity = Identity(self.provider.issuer, subject, email, verified)
        return await oidc_sign_in.sign_in_by(self.database, self.provider, identity)

    async def refused(self, subject: str, email: str, *, verified: bool = True) -> str:
        with pytest.raises(PenstockError) as error:
            await self.comes(subject, email, verified=verified)
        return error.value.code


async def set_again(database: Database, tenant_id: UUID, **changed: object) -> None:
    """Set the provider of `with_provider` with something changed."""
    facts: dict[str, Any] = {
        "issuer": "https://login.example.com",
        "client_id": "penstock",
        "client_secret": "the client secret",
        "mail_domains": ["example.com"],
    }
    await identity_providers.set_provider(
        database,
        ADMIN,
        pepper=PEPPER,
        allow_hosts=frozenset(),
        tenant_id=tenant_id,
        **(facts | changed),
    )


async def with_provider(
    database: Database,
    acme: Organisation,
    *,
    role: str | None = None,
    domain: str = "example.com",
    issuer: str = "https://login.example.com",
    client_id: str = "penstock",
) -> Acme:
    await set_again(
        database,
        acme.tenant_id,
        issuer=issuer,
        client_id=client_id,
        mail_domains=[domain],
        default_role=role,
    )
    return Acme(database, acme, await oidc_sign_in.provider_of(database, f"x@{domain}"))


async def test_an_account_with_a_password_is_linked_by_it_once(
    database: Database, acme: Organisation
) -> None:
    there = await with_provider(database, acme)
    ada = await there.person("tenant_owner")
    met = await there.comes("sub-1", ada.label.upper())
    assert isinstance(met, Unlinked), "a mail address alone opens nothing"
    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        await oidc_sign_in.link(database, met, "guess")
    assert isinstance(await there.comes("sub-1", ada.label), Unlinked)
    linked = await oidc_sign_in.link(database, met, PASSWORD)
    assert (linked.actor, linked.proved_by) == (ada, "oidc")
    assert (await audit_actions(database))[-2:] == ["user.link_identity", "user.sign_in"]
    again = await there.comes("sub-1", ada.label)
    assert isinstance(again, SignIn)
    assert isinstance(await there.comes("sub-2", ada.label), Unlinked), "another subject is another person"
    view = await sessions.open_console_session(
        database, again, token_hash=b"x" * 32, opened=Opened(), now=now()
    )
    assert view.proved_by == "oidc"
    await users.change_password(database, ada, current=PASSWORD, new="another password")
    assert isinstance(await there.comes("sub-1", ada.label), Unlinked), "a thief may have made the link"


async def test_a_link_takes_the_second_factor_too(database: Database, acme: Organisation) -> None:
    there = await with_provider(database, acme)
    ada = await enrol(database, await there.person())
    met = await there.comes("sub-1", ada.actor.label)
    assert isinstance(met, Unlinked)
    assert met.needs_code
    with pytest.raises(AuthenticationFailed) as refused:
        await oidc_sign_in.link(database, met, PASSWORD)
    assert refused.value.code == "second_factor_required"
    linked = await oidc_sign_in.link(database, met, PASSWORD, code=given(ada.code(1), later(1)))
    assert linked.actor == ada.actor


async def test_a_link_needs_the_provider_of_the_beginning(database: Database, acme: Organisation) -> None:
    there = await with_provider(database, acme)
    ada = await there.person()
    met = await there.comes("sub-1", ada.label)
    assert isinstance(met, Unlinked)
    for changed, code in (
        ({"mail_domains": ["elsewhere.example"], "client_secret": None}, "oidc_mail_domain"),
        ({"issuer": "https://other.example"}, "oidc_no_provider"),
        ({"client_id": "other"}, "oidc_no_provider"),
        ({"client_secret": "rotated"}, "oidc_no_provider"),
    ):
        await set_again(database, acme.tenant_id, **changed)
        with pytest.raises(AuthenticationFailed) as refused:
            await oidc_sign_in.link(database, met, PASSWORD)
        assert refused.value.code == code


async def test_wrong_passwords_do_not_prolong_the_link(database: Database, acme: Organisation) -> None:
    there = await with_provider(database, acme)
    ada = await there.person()
    met = await there.comes("sub-1", ada.label)
    assert isinstance(met, Unlinked)
    clock = ManualClock()
    console = cast(
        Console, SimpleNamespace(database=database, key_pepper=PEPPER, clock=clock, settings=Settings())
    )
    steps = ProviderSteps(console)
    ticket = seal_text(PEPPER, "oidc link", Linking(met, clock.now() + LIFE))
    clock.advance(LIFE.total_seconds() - 1)
    page = await steps.link(ticket, "guess", "", "/", "")
    assert isinstance(page, HTMLResponse)
    again = re.search(r'name="ticket" value="([^"]+)"', bytes(page.body).decode())
    assert again is not None
    clock.advance(2)
    with pytest.raises(AuthenticationFailed) as refused:
        await steps.link(again[1], PASSWORD, "", "/", "")
    assert refused.value.code == "oidc_state"


async def test_newcomers_are_made_in_the_default_role_or_not_at_all(
    database: Database, acme: Organisation
) -> None:
    there = await with_provider(database, acme)
    assert await there.refused("sub-1", "new@example.com") == "oidc_no_account"
    there = await with_provider(database, acme, role="tenant_viewer")
    made = await there.comes("sub-1", "New@Example.com")
    assert isinstance(made, SignIn)
    assert (made.actor.label, made.actor.role) == ("new@example.com", "tenant_viewer")
    assert (await audit_actions(database))[-2:] == ["user.create", "user.sign_in"]
    again = await there.comes("sub-1", "renamed@example.com")
    assert isinstance(again, SignIn)
    assert again.actor == made.actor
    await users.disable_user(database, ADMIN, user_id=UUID(made.actor.id))
    assert await there.refused("sub-1", "new@example.com") == "oidc_no_account"


async def test_newcomers_of_a_day_are_bounded(
    database: Database, acme: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_sign_in, "PER_DAY", 2)
    there = await with_provider(database, acme, role="tenant_viewer")
    first = await there.comes("sub-1", "one@example.com")
    assert isinstance(first, SignIn)
    await there.comes("sub-2", "two@example.com")
    assert await there.refused("sub-3", "three@example.com") == "too_many_newcomers"
    assert isinstance(await there.comes("sub-1", "one@example.com"), SignIn), "who is there comes in"
    other = await with_provider(
        database,
        await make_organisation(database, "Globex"),
        role="tenant_viewer",
        domain="g.example",
        issuer="https://g.example",
    )
    assert isinstance(await other.comes("sub-1", "one@g.example"), SignIn), "each organisation counts its own"
    async with database.system() as connection:
        await connection.execute(
            text("UPDATE users SET created_at = created_at - interval '25 hours' WHERE id = :id"),
            {"id": first.actor.id},
        )
    assert isinstance(await there.comes("sub-3", "three@example.com"), SignIn)


async def test_whom_the_provider_does_not_speak_for(database: Database, acme: Organisation) -> None:
    there = await with_provider(database, acme, role="tenant_viewer")
    other = await make_organisation(database, "Globex")
    stranger = await person(database, "tenant_owner", other.tenant_id)
    boss = await person(database, "platform_admin")
    assert await there.refused("s", "a@example.com", verified=False) == "oidc_mail_not_verified"
    for email in ("a@else.example", "a@sub.example.com", "example.com", "", "a@example.com@else.example"):
        assert await there.refused("s", email) == "oidc_mail_domain"
    assert await there.refused("s", stranger.label) == "oidc_no_account"
    assert await there.refused("s", boss.label) == "oidc_no_account"
    theirs = await with_provider(database, other, role="tenant_viewer", domain="globex.example")
    assert isinstance(await there.comes("same", "one@example.com"), SignIn)
    assert await theirs.refused("same", "two@globex.example") == "oidc_no_account"
    with pytest.raises(AuthenticationFailed, match="No identity provider"):
        await oidc_sign_in.provider_of(database, "a@nowhere.example")
    await identity_providers.remove_provider(database, ADMIN, tenant_id=acme.tenant_id)
    assert await there.refused("same", "one@example.com") == "oidc_no_provider"


async def test_a_person_whom_another_one_gave_the_password_links_nothing(database: Database) -> None:
    await identity_providers.set_provider(
        database,
        ADMIN,
        pepper=PEPPER,
        allow_hosts=frozenset(),
        issuer="https://login.example.com",
        client_id="penstock",
        client_secret="secret",
        mail_domains=["example.com"],
    )
    for _ in range(2):
        await person(database, "finance")
    ada, bob = await person(database, "platform_admin"), await person(database, "finance")
    await users.reset_password(database, ada, user_id=UUID(bob.id), password="of adas choice")
    provider = await oidc_sign_in.provider_of(database, bob.label)
    met = await oidc_sign_in.sign_in_by(database, provider, Identity(provider.issuer, "ada", bob.label, True))
    assert isinstance(met, Unlinked)
    with pytest.raises(Conflict, match="third one"):
        await oidc_sign_in.link(database, met, "of adas choice")


async def test_only_the_provider_signs_in_where_that_is_the_rule(
    database: Database, acme: Organisation
) -> None:
    owner = await person(database, "tenant_owner", acme.tenant_id)
    with pytest.raises(Conflict, match="no identity provider"):
        await sign_in_rules.set_rule(database, owner, tenant_id=acme.tenant_id, rule="oidc")
    there = await with_provider(database, acme)
    with pytest.raises(Conflict, match="no person has signed in") as untried:
        await sign_in_rules.set_rule(database, owner, tenant_id=acme.tenant_id, rule="oidc")
    assert untried.value.code == "oidc_not_tried"
    met = await there.comes("sub-1", owner.label)
    assert isinstance(met, Unlinked)
    assert (await oidc_sign_in.link(database, met, PASSWORD)).actor == owner
    there = await with_provider(database, acme)  # with a client secret of its own, which was not tried
    with pytest.raises(Conflict, match="no person has signed in"):
        await sign_in_rules.set_rule(database, owner, tenant_id=acme.tenant_id, rule="oidc")
    assert isinstance(await there.comes("sub-1", owner.label), SignIn)
    enrolled = await enrol(database, await there.person())
    kept = await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=UUID(owner.id), name="old")
    set_to = await sign_in_rules.set_rule(database, owner, tenant_id=acme.tenant_id, rule="oidc")
    assert set_to.ended == 1
    assert kept.view.proved_by == "password"
    for refused in (
        users.verify_login(database, owner.label, PASSWORD),
        enrolled.sign_in(enrolled.codes[0]),
        create_admin_token(database, owner, pepper=PEPPER, user_id=UUID(owner.id), name="new"),
    ):
        with pytest.raises(PermissionDenied) as error:
            await refused
        assert error.value.code == "oidc_required"
    assert isinstance(await there.comes("sub-1", owner.label), SignIn)
    for locks_out in (
        {"mail_domains": []},
        {"client_id": "another"},
        {"issuer": "https://login.example.net"},
    ):
        with pytest.raises(Conflict, match="keeps a mail domain"):
            await set_again(database, acme.tenant_id, **locks_out)
    await set_again(database, acme.tenant_id, client_secret="rotated")
    with pytest.raises(Conflict, match="by it only"):
        await identity_providers.remove_provider(database, owner, tenant_id=acme.tenant_id)


async def test_who_sets_a_provider_and_whose_mail_domains_it_has(
    database: Database, acme: Organisation
) -> None:
    owner = await person(database, "tenant_owner", acme.tenant_id)
    other = await make_organisation(database, "Globex")

    async def set_to(
        actor: Actor, domains: list[str], *, tenant_id: UUID | None = acme.tenant_id, **more: str | None
    ) -> identity_providers.ProviderView:
        facts = {"issuer": "https://login.example.com", "client_id": "penstock", "client_secret": "s3cret"}
        return await identity_providers.set_provider(
            database,
            actor,
            pepper=PEPPER,
            allow_hosts=frozenset(),
            tenant_id=tenant_id,
            mail_domains=domains,
            **(facts | more),  # type: ignore[arg-type]
        )

    with pytest.raises(PermissionDenied, match="an admin of the platform adds"):
        await set_to(owner, ["example.com"])
    await set_to(ADMIN, [" Example.COM ", "b.example", "b.example"])
    view = await set_to(
        owner, ["example.com"], client_id="other", client_secret="s3cret", default_role="tenant_viewer"
    )
    assert (
        await set_to(
            owner, ["example.com"], client_id="other", client_secret=None, default_role="tenant_viewer"
        )
        == view
    )
    assert (view.mail_domains, view.client_id, view.default_role) == (
        ["example.com"],
        "other",
        "tenant_viewer",
    )
    assert await identity_providers.get_provider(database, owner, tenant_id=acme.tenant_id) == view
    with pytest.raises(PermissionDenied):  # it was given up
        await set_to(owner, ["b.example"])
    with pytest.raises(Conflict, match="another identity provider"):
        await set_to(ADMIN, ["example.com"], tenant_id=other.tenant_id)
    for changed in ({"issuer": "https://evil.example", "client_id": "other"}, {"client_id": "third"}):
        with pytest.raises(InvalidRequest, match="give the client secret"):
            await set_to(owner, ["example.com"], client_secret=None, **changed)
    for domains, more in (
        (["a b"], {}),
        (["@x.example"], {}),
        ([f"{n}.example" for n in range(21)], {}),
        (["c.example"], {"issuer": "http://login.example.com"}),
        (["c.example"], {"client_id": ""}),
        (["c.example"], {"default_role": "platform_admin"}),
    ):
        with pytest.raises(InvalidRequest):
            await set_to(ADMIN, domains, **more)
    with pytest.raises(InvalidRequest, match="default_role"):
        await set_to(ADMIN, ["c.example"], tenant_id=None, default_role="tenant_viewer")
    with pytest.raises(NotFound):
        await set_to(ADMIN, ["c.example"], tenant_id=uuid4())
    for who in (
        await person(database, "tenant_developer", acme.tenant_id),
        await person(database, "finance"),
    ):
        with pytest.raises(PermissionDenied):
            await set_to(who, ["example.com"])
        with pytest.raises(PermissionDenied):
            await identity_providers.get_provider(database, who, tenant_id=acme.tenant_id)
    async with database.system() as connection:
        for table in ("identity_providers", "audit_log"):
            rows = await connection.execute(text(f"SELECT * FROM {table}"))
            assert "s3cret" not in "".join(repr(tuple(row)) for row in rows)
    provider = await oidc_sign_in.provider_of(database, "x@example.com")
    assert oidc_sign_in.client_of(provider, PEPPER, frozenset()).client_secret == "s3cret"
    await identity_providers.remove_provider(database, owner, tenant_id=acme.tenant_id)
    with pytest.raises(NotFound):
        await identity_providers.remove_provider(database, owner, tenant_id=acme.tenant_id)
    actions = await audit_actions(database)
    assert (actions.count("sign_in.set_provider"), actions.count("sign_in.remove_provider")) == (3, 1)


async def test_the_steps_from_one_address_that_lead_nowhere_are_limited(database: Database) -> None:
    steps = ProviderSteps(
        cast(Console, SimpleNamespace(database=database, settings=Settings(), key_pepper=PEPPER))
    )
    for _ in range(FAILURES_PER_EMAIL):
        with pytest.raises(AuthenticationFailed):
            await steps.leave(cast(Request, None), "eve@nowhere.example", "/", "192.0.2.7")
    with pytest.raises(RateLimited):
        await steps.leave(cast(Request, None), "eve@nowhere.example", "/", "192.0.2.7")
    with pytest.raises(AuthenticationFailed):
        await steps.leave(cast(Request, None), "eve@nowhere.example", "/", "192.0.2.8")
