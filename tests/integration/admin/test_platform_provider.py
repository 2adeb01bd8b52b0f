"""The identity provider of the platform's people: set by two of them, once there are two."""

from uuid import UUID

import pytest

from admin import decisions, identity_providers, oidc_sign_in, users
from admin.actor import Actor
from admin.oidc_client import Identity
from admin.oidc_sign_in import Unlinked
from core.db import Database
from core.errors import Conflict, PermissionDenied, WaitsForApproval
from tests.integration.admin.people import PASSWORD, person
from tests.support.tenancy import ADMIN, PEPPER, audit_actions

SHELL = Actor(kind="cli", id="root", label="root", role="platform_admin")
ISSUER, OTHER = "https://login.example.com", "https://other.example"


async def set_to(
    database: Database,
    actor: Actor,
    issuer: str = ISSUER,
    *,
    client_id: str = "penstock",
    secret: str | None = "s3cret",
    domain: str = "example.com",
) -> identity_providers.ProviderView:
    return await identity_providers.set_provider(
        database,
        actor,
        pepper=PEPPER,
        allow_hosts=frozenset(),
        issuer=issuer,
        client_id=client_id,
        client_secret=secret,
        mail_domains=[domain],
    )


async def asked(database: Database, actor: Actor, issuer: str = ISSUER, **more: str) -> UUID:
    """The request that `actor` makes."""
    with pytest.raises(WaitsForApproval) as waits:
        await set_to(database, actor, issuer, **more)
    assert waits.value.details is not None
    return UUID(waits.value.details["approval_id"])


async def issuer_of(database: Database) -> tuple[str, str] | None:
    found = await identity_providers.get_provider(database, ADMIN)
    return None if found is None else (found.issuer, found.client_id)


async def test_the_first_person_and_the_shell_set_it_alone_until_there_are_two(database: Database) -> None:
    ada = await person(database, "platform_admin")
    await set_to(database, SHELL)
    await set_to(database, ada, OTHER)
    await person(database, "finance")
    with pytest.raises(PermissionDenied, match="PENSTOCK_ADMIN_TOKEN"):
        await set_to(database, SHELL)
    await asked(database, ada)
    assert await issuer_of(database) == (OTHER, "penstock")


async def test_another_person_approves_a_new_issuer_or_client_id(database: Database) -> None:
    ada, bob = await person(database, "platform_admin"), await person(database, "finance")
    first = await asked(database, ada)
    assert await issuer_of(database) is None
    with pytest.raises(Conflict, match="another person must approve"):
        await decisions.decide(database, ada, approval_id=first, approve=True)
    await decisions.decide(database, bob, approval_id=first, approve=True)
    assert await issuer_of(database) == (ISSUER, "penstock")
    provider = await oidc_sign_in.provider_of(database, "x@example.com")
    assert oidc_sign_in.client_of(provider, PEPPER, frozenset()).client_secret == "s3cret"

    await set_to(database, ada, secret="another", domain="b.example")  # the same provider
    other = await asked(database, ada, client_id="other")
    await decisions.decide(database, bob, approval_id=other, approve=True)
    assert await issuer_of(database) == (ISSUER, "other")
    rejected = await asked(database, ada, OTHER)
    await decisions.decide(database, bob, approval_id=rejected, approve=False)
    assert await issuer_of(database) == (ISSUER, "other")
    actions = await audit_actions(database)
    assert actions.count("identity_provider.set.request") == 3
    assert actions.count("identity_provider.set.approve") == 2
    assert actions.count("sign_in.set_provider") == 3


async def test_a_new_password_by_another_person_forgets_the_link(database: Database) -> None:
    ada, bob = await person(database, "platform_admin"), await person(database, "finance")
    await set_to(database, ADMIN)
    provider = await oidc_sign_in.provider_of(database, bob.label)
    identity = Identity(ISSUER, "bob", bob.label, True)
    met = await oidc_sign_in.sign_in_by(database, provider, identity)
    assert isinstance(met, Unlinked)
    await oidc_sign_in.link(database, met, PASSWORD)
    await users.reset_password(database, ada, user_id=UUID(bob.id), password="of adas choice")
    assert isinstance(await oidc_sign_in.sign_in_by(database, provider, identity), Unlinked)
