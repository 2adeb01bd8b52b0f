"""Signing in by an identity provider: from a mail address to the provider, and from whom it names to a person.

A person is linked by issuer and subject. A mail address alone never opens an account that has one: its person gives the
password once, which links the two.
"""

import secrets
from datetime import timedelta
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import actor_of
from admin.audit import record, record_self
from admin.factor_codes import GivenCode
from admin.identity_providers import PURPOSE
from admin.logins import (
    SignIn,
    check_rule,
    prove,
    right_password,
    wrong_credentials,
)
from admin.oidc_client import Client, Identity
from admin.sign_in_attempts import counted_code, mail_address
from admin.transactions import write_system
from core.db import Database
from core.errors import AuthenticationFailed, Conflict, InvalidRequest, RateLimited
from core.ids import uuid7
from tenants import identity_providers, members, organisations
from tenants.identity_providers import Provider
from tenants.names import clean_email
from tenants.passwords import hash_password
from tenants.sealed import unseal
from tenants.views import UserView

PER_DAY = 100
"""Newcomers of one organisation within a day."""


class Unlinked(msgspec.Struct, frozen=True):
    """Whom the provider names by the mail address of an account; the account's password links the two."""

    provider_id: UUID
    issuer: str
    subject: str
    user_id: UUID
    email: str
    needs_code: bool


async def provider_of(database: Database, email: str) -> Provider:
    """The provider of a mail address. Raises AuthenticationFailed."""
    known_shape, email = mail_address(email)
    async with database.read() as connection:
        found = (
            await identity_providers.find_by_domain(connection, email.partition("@")[2])
            if known_shape
            else None
        )
    if found is None:
        raise AuthenticationFailed(
            "No identity provider is known for this mail address. Sign in with a password.",
            code="oidc_no_provider",
        )
    return found


async def get_provider(database: Database, provider_id: UUID) -> Provider:
    """The provider to which the browser was sent. Raises AuthenticationFailed when it was removed meanwhile."""
    async with database.read() as connection:
        return await _present(connection, provider_id)


async def offered(database: Database) -> bool:
    """Whether the sign-in form offers identity providers."""
    async with database.read() as connection:
        return await identity_providers.any_there(connection)


def client_of(provider: Provider, pepper: bytes, allow_hosts: frozenset[str]) -> Client:
    """The platform as the provider knows it. Raises Unavailable under another pepper."""
    secret = unseal(pepper, PURPOSE, str(provider.id), provider.sealed_client_secret)
    return Client(provider.issuer, provider.client_id, secret.decode(), allow_hosts)


async def sign_in_by(
    database: Database, provider: Provider, identity: Identity, *, address: str = ""
) -> SignIn | Unlinked:
    """The person whom the provider names: linked before, made now where it has a default role, or to be linked.

    Raises AuthenticationFailed, whose code says why, and PermissionDenied when the rule demands more.
    """
    email = _clean(provider, identity)
    async with write_system(database) as connection:
        provider = await _present(connection, provider.id)
        user_id = await identity_providers.linked_user(connection, identity.issuer, identity.subject)
        if user_id is None:
            login = await members.find_login(connection, email)
            if login is not None:
                user = _checked(provider, login.user)
                return Unlinked(
                    provider.id, identity.issuer, identity.subject, user.id, email, user.second_factor
                )
            user_id = await _make(connection, provider, identity, email)
        user = _checked(provider, await members.get_user(connection, user_id, lock=True))
        return await _signed_in(connection, provider, user, address)


async def link(
    database: Database,
    unlinked: Unlinked,
    password: str,
    *,
    code: GivenCode | None = None,
    address: str = "",
) -> SignIn:
    """Link the account whose password this is, and sign its person in.

    Raises AuthenticationFailed for a wrong password or code, RateLimited as signing in, Conflict while another person's
    password is not confirmed.
    """
    right = await right_password(database, unlinked.email, password, address=address)
    async with counted_code(database, right.user_id, code, address), write_system(database) as connection:
        provider = await _present(connection, unlinked.provider_id)
        _check_domain(provider, unlinked.email)
        proved = await prove(connection, right, address=address, code=code)
        if proved is None or right.user_id != unlinked.user_id:
            raise wrong_credentials()
        user = _checked(provider, await members.get_user(connection, right.user_id))
        if await members.unconfirmed_change(connection, user.id) is not None:
            raise Conflict(
                f"another person gave {user.email} this password, which links nothing until a third one confirms it"
            )
        if not await identity_providers.link(connection, unlinked.issuer, unlinked.subject, user.id):
            raise _no_account()
        await record_self(
            connection,
            proved.actor,
            "user.link_identity",
            {"issuer": unlinked.issuer, "subject": unlinked.subject},
        )
        return await _signed_in(connection, provider, user, address)


async def _present(connection: AsyncConnection, provider_id: UUID) -> Provider:
    found = await identity_providers.get(connection, provider_id)
    if found is None:
        raise AuthenticationFailed(
            "The identity provider was removed meanwhile. Begin again.", code="oidc_no_provider"
        )
    return found


async def _make(connection: AsyncConnection, provider: Provider, identity: Identity, email: str) -> UUID:
    """Make the person, in the provider's default role.

    Raises AuthenticationFailed without one, and RateLimited beyond PER_DAY people of the organisation.
    """
    if provider.default_role is None or provider.tenant_id is None:
        raise _no_account()
    await organisations.get_tenant(
        connection, provider.tenant_id, lock=True
    )  # one newcomer at a time is counted
    if await identity_providers.count_made(connection, provider.tenant_id, timedelta(days=1)) >= PER_DAY:
        raise RateLimited(
            f"the identity provider has brought {PER_DAY} newcomers to the organisation within a day; come tomorrow, "
            "or ask an owner for an invitation",
            code="too_many_newcomers",
            retry_after_s=3600.0,
        )
    user_id = uuid7()
    password_hash = await hash_password(secrets.token_urlsafe(32))  # a password that no person knows
    if not await members.insert_user(
        connection, provider.tenant_id, user_id, email, password_hash, provider.default_role
    ) or not await identity_providers.link(connection, identity.issuer, identity.subject, user_id):
        raise _no_account()  # another sign-in made the account first
    user = _checked(provider, await members.get_user(connection, user_id))
    await record(
        connection,
        actor_of("user", user),
        "user.create",
        tenant_id=user.tenant_id,
        object_kind="user",
        object_id=user_id,
        after={"email": email, "role": user.role, "issuer": identity.issuer, "subject": identity.subject},
    )
    return user_id


async def _signed_in(connection: AsyncConnection, provider: Provider, user: UserView, address: str) -> SignIn:
    actor = actor_of("user", user)
    await check_rule(connection, user.tenant_id, "oidc")
    await identity_providers.mark_used(connection, provider.id)
    await record_self(connection, actor, "user.sign_in", {"address": address[:64], "proved_by": "oidc"})
    return SignIn(actor, None, "oidc")


def _checked(provider: Provider, user: UserView | None) -> UserView:
    """`user` when the provider speaks for it: active, and of the provider's organisation."""
    if user is None or user.status != "active" or user.tenant_id != provider.tenant_id:
        raise _no_account()
    return user


def _clean(provider: Provider, identity: Identity) -> str:
    """The mail address, for which the provider must speak. Raises AuthenticationFailed."""
    if not identity.email_verified:
        raise AuthenticationFailed(
            "The identity provider does not say that this mail address is verified (email_verified).",
            code="oidc_mail_not_verified",
        )
    try:
        email = clean_email(identity.email)
    except InvalidRequest:
        raise _foreign(identity.email) from None
    _check_domain(provider, email)
    return email


def _check_domain(provider: Provider, email: str) -> None:
    if email.partition("@")[2] not in provider.mail_domains:
        raise _foreign(email)


def _foreign(email: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"The identity provider names {email[:100]!r}, whose domain is not allowed here.",
        code="oidc_mail_domain",
    )


def _no_account() -> AuthenticationFailed:
    return AuthenticationFailed(
        "There is no account for you here, or it is disabled. Ask an owner of your organisation for an invitation.",
        code="oidc_no_account",
    )
