"""The identity provider (OpenID Connect) of an organisation, or of the platform's people: set, shown, removed.

An owner says who the provider is. Which mail domains it speaks for is said by the platform's admins alone: a mail
address finds its provider by its domain, so an organisation may not claim a domain of others.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, admit, person_of, waits
from admin.audit import record
from admin.oidc_client import check_issuer
from admin.transactions import write_system
from billing.ledger import approvals
from billing.ledger.approvals import Approval
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from tenants import identity_providers, members, organisations
from tenants.identity_providers import Provider
from tenants.names import clean_email
from tenants.roles import TENANT_MANAGERS, TENANT_ROLES
from tenants.sealed import seal
from tenants.sign_in_rules import read_rule

PURPOSE = "identity provider"
"""For which client secrets are sealed."""
PROVIDER_SET = "identity_provider.set"
"""The kind of requests to set the provider of the platform's people."""
MAX_DOMAINS = 20


class ProviderView(msgspec.Struct, frozen=True):
    """A provider as it may be shown."""

    tenant_id: UUID | None
    issuer: str
    client_id: str
    mail_domains: list[str]
    default_role: str | None
    """Role of an account made at the first sign-in; None = people without an account are refused."""


async def get_provider(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None
) -> ProviderView | None:
    """The provider; None without one. Raises PermissionDenied for all but owners and admins."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    async with database.read() as connection:
        found = await identity_providers.find(connection, tenant_id)
    return None if found is None else _view(found)


async def set_provider(
    database: Database,
    actor: Actor,
    *,
    pepper: bytes,
    allow_hosts: frozenset[str],
    tenant_id: UUID | None = None,
    issuer: str,
    client_id: str,
    client_secret: str | None = None,
    mail_domains: Sequence[str],
    default_role: str | None = None,
) -> ProviderView:
    """Set the provider, in place of an earlier one, whose client secret stays unless one is given. Another issuer or
    client id needs its own secret. A new secret ends the sign-ins that browsers have begun with the earlier one.

    On a platform with two people another person must approve a new issuer or client id of the platform's provider.
    Raises WaitsForApproval then; InvalidRequest for an issuer that may not be asked and for a default role of the
    platform, whose people are made by name; Conflict for a domain of another provider, and for a change that would lock
    out people who sign in by it only; NotFound; PermissionDenied for all but owners and admins, and for a domain that
    an owner adds.
    """
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    check_issuer(issuer, allow_hosts)
    domains = _clean_domains(mail_domains)
    if not 0 < len(client_id) <= 255 or not client_id.isprintable():
        raise InvalidRequest("client_id must be 1 to 255 printable characters", param="client_id")
    if default_role is not None and (tenant_id is None or default_role not in TENANT_ROLES):
        raise InvalidRequest(
            f"default_role must be one of {', '.join(TENANT_ROLES)}, and of an organisation",
            param="default_role",
        )
    async with write_system(database) as connection:
        if tenant_id is None:  # before all others, as acts under the approval limit take it
            await approvals.lock(connection, person_of(actor), None)
        await identity_providers.lock(connection)
        if tenant_id is not None and await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
        before = await identity_providers.find(connection, tenant_id)
        await _check_domains(connection, actor, before, domains)
        if client_secret:
            # A new id: a browser that was sent to the earlier one brings its code to no other issuer.
            provider_id = uuid7()
            sealed = seal(pepper, PURPOSE, str(provider_id), client_secret.encode())
        elif before is not None and (before.issuer, before.client_id) == (issuer, client_id):
            provider_id, sealed = before.id, before.sealed_client_secret
        else:
            raise InvalidRequest("give the client secret that the provider has issued", param="client_secret")
        after = Provider(provider_id, tenant_id, issuer, client_id, sealed, domains, default_role)
        await _check_reachable(connection, before, after)
        waiting = await _ask_second_person(connection, actor, before, after)
        if waiting is None:
            await _put(connection, actor, before, after)
    if waiting is not None:
        raise waits(waiting)
    return _view(after)


async def apply_provider(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> ProviderView:
    """Carry out an approved `PROVIDER_SET`. Raises Conflict for a domain that another provider has by now."""
    await identity_providers.lock(connection)
    before = await identity_providers.find(connection, tenant_id)
    after = msgspec.convert(facts, Provider)
    await _check_domains(connection, acting.actor, before, after.mail_domains)
    await _check_reachable(connection, before, after)
    await _put(connection, acting.actor, before, after)
    return _view(after)


async def _ask_second_person(
    connection: AsyncConnection, actor: Actor, before: Provider | None, after: Provider
) -> Approval | None:
    """The request that a new provider of the platform's people waits for; None where one person may set it.

    Its operator can sign in as each person whom it names, and so could be two people.
    """
    if after.tenant_id is not None or (
        before is not None and (before.issuer, before.client_id) == (after.issuer, after.client_id)
    ):
        return None
    await members.lock_administrators(connection)
    if not await members.has_two_people(connection):
        return None
    facts: Facts = msgspec.to_builtins(after)
    return await admit(connection, actor, kind=PROVIDER_SET, tenant_id=None, amount=None, facts=facts)


async def _put(connection: AsyncConnection, actor: Actor, before: Provider | None, after: Provider) -> None:
    await identity_providers.put(connection, after)
    await _record(connection, actor, "sign_in.set_provider", after.tenant_id, before, after)


async def remove_provider(database: Database, actor: Actor, *, tenant_id: UUID | None = None) -> None:
    """Remove the provider. Raises Conflict while nothing else is allowed, NotFound, PermissionDenied."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    async with write_system(database) as connection:
        await identity_providers.lock(connection)
        before = await identity_providers.find(connection, tenant_id)
        if before is None:
            raise NotFound("there is no identity provider")
        if await read_rule(connection, tenant_id) == "oidc":
            raise Conflict("people sign in by it only; allow another way first (`penstock sign-in require`)")
        await identity_providers.remove(connection, tenant_id)
        await _record(connection, actor, "sign_in.remove_provider", tenant_id, before, None)


async def _check_domains(
    connection: AsyncConnection, actor: Actor, before: Provider | None, domains: list[str]
) -> None:
    had = () if before is None else before.mail_domains
    for domain in domains:
        other = await identity_providers.find_by_domain(connection, domain)
        if other is not None and (before is None or other.id != before.id):
            raise Conflict(f"the domain {domain} belongs to another identity provider", param="mail_domains")
        if domain not in had and not actor.is_platform:
            raise PermissionDenied(
                f"an admin of the platform adds the mail domain {domain}: ask for it, and say that it is yours"
            )


async def _check_reachable(connection: AsyncConnection, before: Provider | None, after: Provider) -> None:
    """Raise Conflict for a change that would leave people who must sign in by the provider no way in."""
    if before is None or await read_rule(connection, after.tenant_id) != "oidc":
        return
    if after.mail_domains and (before.issuer, before.client_id) == (after.issuer, after.client_id):
        return
    raise Conflict(
        "people sign in by this identity provider only, so its issuer and client id cannot change and it keeps a mail "
        "domain; allow another way first (`penstock sign-in require`)"
    )


async def _record(
    connection: AsyncConnection,
    actor: Actor,
    action: str,
    tenant_id: UUID | None,
    before: Provider | None,
    after: Provider | None,
) -> None:
    await record(
        connection,
        actor,
        action,
        tenant_id=tenant_id,
        object_kind="tenant" if tenant_id is not None else "platform",
        object_id=tenant_id or "platform",
        before=None if before is None else _view(before),
        after=None if after is None else _view(after),
    )


def _clean_domains(names: Sequence[str]) -> list[str]:
    """Domains in lower case, each once. Raises InvalidRequest."""
    if len(names) > MAX_DOMAINS:
        raise InvalidRequest(f"at most {MAX_DOMAINS} mail domains", param="mail_domains")
    found = set[str]()
    for name in names:
        try:
            found.add(clean_email(f"user@{name.strip()}").partition("@")[2])
        except InvalidRequest:
            raise InvalidRequest(f"{name[:100]!r} is no mail domain", param="mail_domains") from None
    return sorted(found)


def _view(provider: Provider) -> ProviderView:
    return ProviderView(
        provider.tenant_id,
        provider.issuer,
        provider.client_id,
        provider.mail_domains,
        provider.default_role,
    )
