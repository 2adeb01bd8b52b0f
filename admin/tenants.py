"""Organisations: create, rename, suspend, resume, throttle."""

from datetime import timedelta
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.approval_limit import Acting, Facts, under_limit
from admin.audit import record
from admin.transactions import page_size, read, write
from billing.ledger import starter_credit
from billing.ledger.accounts import open_account, set_credit_limit
from billing.ledger.money_rules import read_rules
from core.clock import Clock, SystemClock
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import pico_to_usd
from tenants import limit_store, organisations, projects
from tenants.names import clean_name, clean_reason, slug_of
from tenants.principal import NO_LIMITS, Limits
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES, READERS, TENANT_MANAGERS
from tenants.views import TenantView

BillingMode = Literal["prepaid", "postpaid"]

TIERS = ("priority", "standard", "batch")
TIER_SET = "tenant.set_tier"
"""The kind of changes of tier under the approval limit; without a bound, since prices differ by tier."""
HIGHEST_TIER_SET = "tenant.set_highest_tier"
"""The kind of changes of the dearest tier that a request may ask for, which takes two people as the tier does."""
DEFAULT_PROJECT = "default"
SHARE_PERCENT_MAX = 10_000
"""Percent; the scheduler's limit of weights, 100 times the default share."""
THROTTLE_MINUTES_MAX = 7 * 24 * 60


async def create_tenant(
    database: Database,
    actor: Actor,
    *,
    name: str,
    tier: str = "standard",
    billing_mode: BillingMode = "prepaid",
    limits: Limits = NO_LIMITS,
) -> TenantView:
    """Make an organisation with its project "default", its billing account and its own `limits`.

    A prepaid one gets the starter credit (billing/ledger/starter_credit.py). A postpaid one may owe the platform's
    default credit limit (admin/money_rules.py).

    Raises Conflict when the short name made of `name` is taken, InvalidRequest for a bad name, tier or mode.
    """
    require(actor, PLATFORM_ADMIN)
    name = clean_name(name)
    slug = slug_of(name)
    _check_tier(tier)
    if billing_mode not in ("prepaid", "postpaid"):
        raise InvalidRequest(
            f"billing_mode must be prepaid or postpaid, not {billing_mode!r}", param="billing_mode"
        )
    async with write(database, actor) as connection:
        tenant = await organisations.insert_tenant(connection, uuid7(), name, slug, tier)
        if tenant is None:
            raise Conflict(f"an organisation with the short name {slug!r} exists already", param="name")
        await projects.insert_project(connection, tenant.id, uuid7(), DEFAULT_PROJECT)
        await open_account(connection, tenant.id, billing_mode)
        credit_limit: str | None = None
        if billing_mode == "postpaid":
            credit_limit = pico_to_usd((await read_rules(connection)).default_credit_limit)
            await set_credit_limit(connection, tenant.id, credit_limit)
        await limit_store.put_limits(connection, tenant.id, "tenant", tenant.id, limits)
        starter = None
        if billing_mode == "prepaid":
            starter = await starter_credit.grant(connection, tenant.id, actor.label)
        await record(
            connection,
            actor,
            "tenant.create",
            tenant_id=tenant.id,
            object_kind="tenant",
            object_id=tenant.id,
            after={
                "name": name,
                "slug": slug,
                "tier": tier,
                "billing_mode": billing_mode,
                "credit_limit_usd": credit_limit,
                "limits": msgspec.structs.asdict(limits),
                "starter_credit_usd": None if starter is None else starter.amount_usd,
            },
        )
    return tenant


async def get_tenant(database: Database, actor: Actor, *, tenant_id: UUID) -> TenantView:
    """One organisation. Raises NotFound."""
    async with read(database, actor, READERS, tenant_id=tenant_id) as connection:
        tenant = await organisations.get_tenant(connection, tenant_id)
    if tenant is None:
        raise _unknown(tenant_id)
    return tenant


async def find_tenant(database: Database, actor: Actor, *, text: str) -> TenantView:
    """The organisation that a person means: by id, short name or name.

    Raises NotFound, or Conflict when several organisations have that name.
    """
    async with read(database, actor, PLATFORM_ROLES) as connection:
        try:
            tenant = await organisations.get_tenant(connection, UUID(text))
            found = [] if tenant is None else [tenant]
        except ValueError:
            found = await organisations.find_tenants(connection, text)
    exact = [tenant for tenant in found if tenant.slug == text.lower()]
    found = exact or found
    if not found:
        raise NotFound(f"there is no organisation {text!r}; the list shows their short names", param="tenant")
    if len(found) > 1:
        slugs = ", ".join(tenant.slug for tenant in found)
        raise Conflict(f"several organisations are named {text!r}; use a short name: {slugs}", param="tenant")
    return found[0]


async def list_tenants(
    database: Database, actor: Actor, *, limit: int = 1000, after: UUID | None = None
) -> list[TenantView]:
    """Organisations from the oldest on, after the one with id `after`. A tenant role sees its own."""
    async with read(database, actor, READERS, tenant_id=actor.tenant_id) as connection:
        return await organisations.list_tenants(connection, limit=page_size(limit), after=after)


async def rename_tenant(database: Database, actor: Actor, *, tenant_id: UUID, name: str) -> TenantView:
    """Rename an organisation; its short name stays. Raises NotFound, InvalidRequest."""
    require(actor, *TENANT_MANAGERS, tenant_id=tenant_id)
    name = clean_name(name)
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id)
        await organisations.set_name(connection, tenant_id, name)
        return await _read_and_record(connection, actor, "tenant.rename", before)


async def _present(database: Database, actor: Actor, tenant_id: UUID) -> TenantView:
    """Return an organisation as it is before a change that waits. Raises NotFound."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        before = await organisations.get_tenant(connection, tenant_id)
    if before is None:
        raise _unknown(tenant_id)
    return before


async def set_tier(
    database: Database, actor: Actor, *, tenant_id: UUID, tier: str, reason: str
) -> TenantView:
    """Change the tier, which selects queue band and prices. Waits for a second person, as a change of prices does.

    Raises NotFound, InvalidRequest, WaitsForApproval.
    """
    require(actor, PLATFORM_ADMIN)
    _check_tier(tier)
    before = await _present(database, actor, tenant_id)
    return await under_limit(
        database,
        actor,
        apply_tier,
        kind=TIER_SET,
        tenant_id=tenant_id,
        amount=0 if before.tier == tier else None,
        facts={"previous_tier": before.tier, "tier": tier, "reason": clean_reason(reason)},
    )


async def apply_tier(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> TenantView:
    """Carry out `set_tier`. Raises Conflict when the tier has changed since the request."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await _locked(connection, tenant_id)
    if before.tier != facts["previous_tier"]:
        raise Conflict(
            f"the organisation is in the tier {before.tier} now, not {facts['previous_tier']}: reject this request "
            "and request the change again"
        )
    await organisations.set_tier(connection, tenant_id, facts["tier"])
    return await _read_and_record(connection, acting.actor, TIER_SET, before, facts["reason"])


async def set_highest_tier(
    database: Database, actor: Actor, *, tenant_id: UUID, tier: str | None, reason: str
) -> TenantView:
    """Set the dearest tier that a request may ask for; None = the organisation's. Waits for a second person.

    One below its tier changes nothing: its own may always be asked for. Raises NotFound, InvalidRequest,
    WaitsForApproval.
    """
    require(actor, PLATFORM_ADMIN)
    if tier is not None:
        _check_tier(tier)
    before = await _present(database, actor, tenant_id)
    return await under_limit(
        database,
        actor,
        apply_highest_tier,
        kind=HIGHEST_TIER_SET,
        tenant_id=tenant_id,
        amount=0 if before.highest_tier == tier else None,
        facts={
            "previous_highest_tier": before.highest_tier,
            "highest_tier": tier,
            "reason": clean_reason(reason),
        },
    )


async def apply_highest_tier(
    connection: AsyncConnection, acting: Acting, tenant_id: UUID | None, facts: Facts
) -> TenantView:
    """Carry out `set_highest_tier`. Raises Conflict when it has changed since the request."""
    assert tenant_id is not None  # noqa: S101 - requests of this kind always name it
    before = await _locked(connection, tenant_id)
    if before.highest_tier != facts["previous_highest_tier"]:
        raise Conflict(
            f"the organisation's highest tier is {before.highest_tier or 'its own'} now, not "
            f"{facts['previous_highest_tier'] or 'its own'}: reject this request and request the change again"
        )
    await organisations.set_highest_tier(connection, tenant_id, facts["highest_tier"])
    return await _read_and_record(connection, acting.actor, HIGHEST_TIER_SET, before, facts["reason"])


async def set_share(
    database: Database, actor: Actor, *, tenant_id: UUID, percent: int, reason: str
) -> TenantView:
    """Set the fair share of busy pools within the tier: 1 to SHARE_PERCENT_MAX, default 100.

    Raises NotFound, InvalidRequest.
    """
    require(actor, PLATFORM_ADMIN)
    reason = clean_reason(reason)
    if not 1 <= percent <= SHARE_PERCENT_MAX:
        raise InvalidRequest(
            f"share_percent must be 1 to {SHARE_PERCENT_MAX}, not {percent}", param="share_percent"
        )
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id)
        await organisations.set_share(connection, tenant_id, percent)
        return await _read_and_record(connection, actor, "tenant.set_share", before, reason)


async def suspend_tenant(database: Database, actor: Actor, *, tenant_id: UUID, reason: str) -> TenantView:
    """Refuse the organisation's keys and abort its streams. Raises Conflict when it is suspended, NotFound."""
    return await _change_status(database, actor, tenant_id, "suspended", "tenant.suspend", reason)


async def resume_tenant(
    database: Database, actor: Actor, *, tenant_id: UUID, reason: str | None = None
) -> TenantView:
    """Resume a suspended organisation. Raises Conflict when it is active, NotFound."""
    return await _change_status(database, actor, tenant_id, "active", "tenant.resume", reason)


async def throttle_tenant(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    minutes: int = 60,
    requests_per_min: int = 60,
    concurrency: int = 4,
    reason: str,
    clock: Clock | None = None,
) -> TenantView:
    """Cap the organisation's requests and concurrency for `minutes`; 0 minutes lifts a throttle.

    The cap lowers its own limits and never raises them. Raises NotFound, InvalidRequest.
    """
    require(actor, PLATFORM_ADMIN)
    reason = clean_reason(reason)
    if not 0 <= minutes <= THROTTLE_MINUTES_MAX:
        raise InvalidRequest(f"minutes must be 0 to {THROTTLE_MINUTES_MAX}, not {minutes}", param="minutes")
    for param, value in (("requests_per_min", requests_per_min), ("concurrency", concurrency)):
        if not 1 <= value <= 1_000_000:
            raise InvalidRequest(
                f"{param} must be 1 to 1000000, not {value}; to stop it all, suspend", param=param
            )
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id)
        if minutes == 0:
            await organisations.set_throttle(connection, tenant_id, None, None, None)
            return await _read_and_record(connection, actor, "tenant.unthrottle", before, reason)
        until = (clock or SystemClock()).now() + timedelta(minutes=minutes)
        await organisations.set_throttle(connection, tenant_id, until, requests_per_min, concurrency)
        return await _read_and_record(connection, actor, "tenant.throttle", before, reason)


async def _change_status(
    database: Database, actor: Actor, tenant_id: UUID, status: str, action: str, reason: str | None
) -> TenantView:
    require(actor, PLATFORM_ADMIN)
    reason = None if reason is None else clean_reason(reason)
    async with write(database, actor) as connection:
        before = await _locked(connection, tenant_id)
        if before.status == status:
            raise Conflict(f"the organisation {before.slug!r} is {status} already")
        await organisations.set_status(connection, tenant_id, status)
        return await _read_and_record(connection, actor, action, before, reason)


async def _locked(connection: AsyncConnection, tenant_id: UUID) -> TenantView:
    tenant = await organisations.get_tenant(connection, tenant_id, lock=True)
    if tenant is None:
        raise _unknown(tenant_id)
    return tenant


async def _read_and_record(
    connection: AsyncConnection, actor: Actor, action: str, before: TenantView, reason: str | None = None
) -> TenantView:
    """Read the organisation again after its change, and log both states."""
    after = await _locked(connection, before.id)
    await record(
        connection,
        actor,
        action,
        tenant_id=before.id,
        object_kind="tenant",
        object_id=before.id,
        reason=reason,
        before=before,
        after=after,
    )
    return after


def _check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise InvalidRequest(f"tier must be one of {', '.join(TIERS)}, not {tier[:40]!r}", param="tier")


def _unknown(tenant_id: UUID) -> NotFound:
    return NotFound(f"there is no organisation with the id {tenant_id}")
