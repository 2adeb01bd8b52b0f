"""What sign-ins must prove, set for the people of an organisation or of the platform (tenant_id None)."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, readable, require
from admin.audit import record
from admin.transactions import write_system
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from tenants import identity_providers, organisations, sign_in_rules
from tenants.names import clean_reason
from tenants.roles import TENANT_MANAGERS
from tenants.sign_in_rules import RULES, Rule

PLATFORM = "platform"


class RuleView(msgspec.Struct, frozen=True):
    """The rule of an organisation or of the platform."""

    tenant_id: UUID | None
    rule: Rule
    ended: int = 0
    """How many sessions and tokens the change has ended."""


async def get_rule(database: Database, actor: Actor, *, tenant_id: UUID | None = None) -> RuleView:
    """The present rule. Raises PermissionDenied for another organisation, or the platform's to its members."""
    if tenant_id is None:
        require(actor, *TENANT_MANAGERS)
    else:
        readable(actor, tenant_id)
    async with database.read() as connection:
        return RuleView(tenant_id, await sign_in_rules.read_rule(connection, tenant_id))


async def set_rule(
    database: Database, actor: Actor, *, tenant_id: UUID | None = None, rule: str, reason: str | None = None
) -> RuleView:
    """Set the rule; sessions and tokens that were proved by less end at once, the actor's own included.

    Raises Conflict for `oidc` unless a person has signed in through the provider since it was last changed (a wrong
    client secret would lock all people out), InvalidRequest, NotFound, PermissionDenied for all but owners and
    admins of the platform.
    """
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    new = _clean(rule)
    why = None if reason is None else clean_reason(reason)
    async with write_system(database) as connection:
        if tenant_id is not None and await organisations.get_tenant(connection, tenant_id) is None:
            raise NotFound(f"there is no organisation with the id {tenant_id}", param="tenant_id")
        await identity_providers.lock(connection)
        if new == "oidc":
            await _check_usable(connection, tenant_id)
        await sign_in_rules.wait_for_openings(connection)
        before = RuleView(tenant_id, await sign_in_rules.read_rule(connection, tenant_id))
        await sign_in_rules.write_rule(connection, tenant_id, new)
        after = RuleView(
            tenant_id, new, await sign_in_rules.end_what_does_not_meet(connection, tenant_id, new)
        )
        await record(
            connection,
            actor,
            "sign_in.set_rule",
            tenant_id=tenant_id,
            object_kind="tenant" if tenant_id is not None else PLATFORM,
            object_id=tenant_id or PLATFORM,
            reason=why,
            before=before,
            after=after,
        )
    return after


async def _check_usable(connection: AsyncConnection, tenant_id: UUID | None) -> None:
    """Raise Conflict unless a sign-in through the present identity provider has succeeded."""
    provider = await identity_providers.find(connection, tenant_id)
    if provider is None:
        raise Conflict("there is no identity provider; set one first (`penstock sign-in provider set`)")
    if provider.used_at is None:
        raise Conflict(
            f"no person has signed in through {provider.issuer} since it was last changed; sign in through it once, "
            "then require it",
            code="oidc_not_tried",
        )


def _clean(rule: str) -> Rule:
    for known in RULES:
        if rule == known:
            return known
    raise InvalidRequest(f"rule must be one of {', '.join(RULES)}, not {rule[:40]!r}", param="rule")
