"""Resolves the hash of a key to its principal, or to the reason of its refusal."""

from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_network
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import AuthenticationFailed, PenstockError, TenantSuspended
from tenants.key_format import cache_salt
from tenants.limit_store import LIMIT_NAMES
from tenants.principal import NO_LIMITS, Limits, Principal
from tenants.scoping import platform_wide
from tenants.tables import api_keys, limits, projects, tenants

TEST_LIMITS = Limits(requests_per_min=600, concurrency=16)
"""What a test key may do at most; it costs nothing but the time of the API process."""

_REFUSALS: dict[str, tuple[type[PenstockError], str, str]] = {
    "unknown": (
        AuthenticationFailed,
        "invalid_api_key",
        "Incorrect API key provided: it is not known. Check that it was copied whole, "
        "or make a new one in the console.",
    ),
    "malformed": (
        AuthenticationFailed,
        "invalid_api_key",
        "Incorrect API key provided: keys look like pen_live_ and 38 letters and digits. "
        "Check that it was copied whole.",
    ),
    "revoked": (
        AuthenticationFailed,
        "api_key_revoked",
        "Incorrect API key provided: it has been revoked. Make a new one in the console.",
    ),
    "rotated": (
        AuthenticationFailed,
        "api_key_rotated",
        "Incorrect API key provided: it was replaced, and the time in which both worked is over. Use the new one.",
    ),
    "expired": (
        AuthenticationFailed,
        "api_key_expired",
        "Incorrect API key provided: it has expired. Make a new one in the console.",
    ),
    "archived": (
        AuthenticationFailed,
        "project_archived",
        "Incorrect API key provided: its project is archived. Use a key of another project.",
    ),
    "suspended": (
        TenantSuspended,
        "tenant_suspended",
        "The organisation is suspended. Its owner can ask support to resume it.",
    ),
}
"""Refusals by what was found. The first words of those of keys are OpenAI's: clients tell a wrong key by them."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a key is refused."""

    reason: str
    """A key of _REFUSALS."""
    key_id: UUID | None = None

    def error(self) -> PenstockError:
        """The error to raise; its message says what to do and never contains the key."""
        kind, code, message = _REFUSALS[self.reason]
        return kind(message, code=code)


class Admission(msgspec.Struct, frozen=True):
    """A valid key: its principal and until when it applies."""

    principal: Principal
    expires_at: datetime | None
    throttled: Principal | None = None
    """The principal with the throttle applied, valid before `throttle_until`."""
    throttle_until: datetime | None = None

    def at(self, now: datetime) -> Principal | None:
        """The principal at the instant `now`; None once the key has expired."""
        if self.expires_at is not None and self.expires_at <= now:
            return None
        if self.throttle_until is not None and now < self.throttle_until:
            return self.throttled
        return self.principal


_LIMIT_SCOPES = {
    "key": limits.alias("key_limits"),
    "project": limits.alias("project_limits"),
    "tenant": limits.alias("tenant_limits"),
}
_SCOPE_IDS = {"key": api_keys.c.id, "project": projects.c.id, "tenant": tenants.c.id}

_SOURCE = api_keys.join(
    projects, and_(projects.c.id == api_keys.c.project_id, projects.c.tenant_id == api_keys.c.tenant_id)
).join(tenants, tenants.c.id == api_keys.c.tenant_id)
_LIMITED_SOURCE = _SOURCE
for _kind, _alias in _LIMIT_SCOPES.items():
    _LIMITED_SOURCE = _LIMITED_SOURCE.outerjoin(
        _alias,
        and_(
            _alias.c.scope_kind == _kind,
            _alias.c.scope_id == _SCOPE_IDS[_kind],
            _alias.c.tenant_id == tenants.c.id,
        ),
    )

_PRINCIPAL_QUERY = select(
    api_keys.c.id,
    api_keys.c.project_id,
    api_keys.c.tenant_id,
    api_keys.c.last4,
    api_keys.c.kind,
    api_keys.c.status,
    api_keys.c.expires_at,
    api_keys.c.allowed_models,
    api_keys.c.networks,
    api_keys.c.scopes,
    api_keys.c.regions,
    api_keys.c.gpus,
    api_keys.c.hash,
    api_keys.c.previous_until,
    api_keys.c.quota_status,
    api_keys.c.cors_origins,
    projects.c.status.label("project_status"),
    projects.c.responses_kept_days,
    tenants.c.name.label("tenant"),
    tenants.c.status.label("tenant_status"),
    tenants.c.tier,
    tenants.c.share_percent,
    tenants.c.highest_tier,
    tenants.c.throttle_until,
    tenants.c.throttle_requests_per_min,
    tenants.c.throttle_concurrency,
    *(alias.c[name].label(f"{kind}_{name}") for kind, alias in _LIMIT_SCOPES.items() for name in LIMIT_NAMES),
).select_from(_LIMITED_SOURCE)


@platform_wide("authentication: the key alone identifies its organisation")
async def resolve_key(
    connection: AsyncConnection, key_hash: bytes, pepper: bytes, now: datetime
) -> Admission | Refusal:
    """Look a key up by its hash, with the one query of every authentication that is not cached."""
    query = _PRINCIPAL_QUERY.where(or_(api_keys.c.hash == key_hash, api_keys.c.previous_hash == key_hash))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return Refusal("unknown")
    verdict = _evaluate(row, pepper, now)
    if isinstance(verdict, Refusal) or row.hash == key_hash:
        return verdict
    if row.previous_until <= now:
        return Refusal("rotated", row.id)
    until = min(row.previous_until, row.expires_at or row.previous_until)
    return msgspec.structs.replace(verdict, expires_at=until)


def _evaluate(row: Row[*tuple[Any, ...]], pepper: bytes, now: datetime) -> Admission | Refusal:
    """The admission or refusal of one key's row."""
    if row.status != "active":
        return Refusal("revoked", row.id)
    if row.expires_at is not None and row.expires_at <= now:
        return Refusal("expired", row.id)
    if row.project_status != "active":
        return Refusal("archived", row.id)
    if row.tenant_status != "active":
        return Refusal("suspended", row.id)
    principal = Principal(
        key_id=row.id,
        project_id=row.project_id,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        last4=row.last4,
        kind=row.kind,
        tier=row.tier,
        key_limits=_limits_of(row, "key"),
        project_limits=_limits_of(row, "project"),
        tenant_limits=_limits_of(row, "tenant"),
        allowed_models=None if row.allowed_models is None else frozenset(row.allowed_models),
        cache_salt=cache_salt(row.tenant_id, pepper),
        share_percent=row.share_percent,
        networks=None if row.networks is None else tuple(map(ip_network, row.networks)),
        scopes=None if row.scopes is None else frozenset(row.scopes),
        regions=tuple(row.regions or ()),
        gpus=tuple(row.gpus or ()),
        quota_status=row.quota_status,
        cors_origins=frozenset(row.cors_origins or ()),
        responses_kept_days=row.responses_kept_days,
        highest_tier=row.highest_tier or "",
    )
    if principal.kind == "test":
        return Admission(_of_test_key(principal), row.expires_at)
    throttled = None
    if row.throttle_until is not None:
        capped = principal.tenant_limits.capped(row.throttle_requests_per_min, row.throttle_concurrency)
        throttled = msgspec.structs.replace(principal, tenant_limits=capped)
    return Admission(principal, row.expires_at, throttled, row.throttle_until)


def _of_test_key(principal: Principal) -> Principal:
    """A test key uses nothing of its project and organisation, so only its own limits hold, within TEST_LIMITS."""
    return msgspec.structs.replace(
        principal,
        key_limits=principal.key_limits.capped(TEST_LIMITS.requests_per_min, TEST_LIMITS.concurrency),
        project_limits=NO_LIMITS,
        tenant_limits=NO_LIMITS,
    )


def _limits_of(row: Row[*tuple[Any, ...]], kind: str) -> Limits:
    return Limits(*(getattr(row, f"{kind}_{name}") for name in LIMIT_NAMES))


@platform_wide("revocation: finds the inactive keys among those that changes of any organisation touch")
async def inactive_keys(
    connection: AsyncConnection,
    key_ids: Sequence[UUID],
    project_ids: Sequence[UUID],
    tenant_ids: Sequence[UUID],
) -> set[UUID]:
    """Those of the given keys, and of the keys of the given projects and tenants, that no longer authenticate.

    A given key without a row counts as inactive.
    """
    active = and_(
        api_keys.c.status == "active",
        projects.c.status == "active",
        tenants.c.status == "active",
    )
    query = (
        select(api_keys.c.id, active.label("active"))
        .select_from(_SOURCE)
        .where(
            or_(
                api_keys.c.id.in_(key_ids),
                projects.c.id.in_(project_ids),
                tenants.c.id.in_(tenant_ids),
            )
        )
    )
    state = {row.id: row.active for row in await connection.execute(query)}
    return {key_id for key_id, is_active in state.items() if not is_active} | (set(key_ids) - state.keys())


@platform_wide("expiry of keys of any organisation")
async def expired_between(connection: AsyncConnection, after: datetime, until: datetime) -> set[UUID]:
    """Keys that expired after `after` and not later than `until`."""
    query = select(api_keys.c.id).where(api_keys.c.expires_at > after, api_keys.c.expires_at <= until)
    return set((await connection.execute(query)).scalars())
