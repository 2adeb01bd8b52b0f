"""Values that tenancy queries return, for the API, the console and the command line. They hold no secrets."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenants.proofs import Proof


class TenantView(msgspec.Struct, frozen=True):
    """An organisation."""

    id: UUID
    name: str
    slug: str
    status: str
    """active | suspended"""
    tier: str
    """priority | standard | batch"""
    created_at: datetime
    throttle_until: datetime | None = None
    throttle_requests_per_min: int | None = None
    throttle_concurrency: int | None = None
    share_percent: int = 100
    """Weight in a busy pool relative to others of its tier, in percent."""
    highest_tier: str | None = None
    """The dearest tier that a request may ask for; None = its tier."""


class ProjectView(msgspec.Struct, frozen=True):
    """A project of an organisation."""

    id: UUID
    tenant_id: UUID
    name: str
    status: str
    """active | archived"""
    created_at: datetime
    responses_kept_days: int | None = None
    """Days for which stored responses are kept; None = the platform's, 0 = none are stored."""


class KeyView(msgspec.Struct, frozen=True):
    """An API key as it may be shown, without the key itself."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    project: str
    name: str
    kind: str
    """live | test"""
    last4: str
    status: str
    """active | revoked | expired"""
    allowed_models: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    networks: list[str] | None = None
    scopes: list[str] | None = None
    regions: list[str] | None = None
    gpus: list[str] | None = None
    previous_until: datetime | None = None
    """Until when the secret from before the last rotation is accepted."""
    quota_status: int = 402
    """Status of answers that money refuses: 402 | 429"""
    cors_origins: list[str] | None = None
    """Origins of browsers that may use the key; None = none."""


class UserView(msgspec.Struct, frozen=True):
    """A user with the one role."""

    id: UUID
    email: str
    status: str
    """active | disabled"""
    role: str
    tenant_id: UUID | None
    tenant: str | None
    created_at: datetime
    second_factor: bool = False
    """Whether sign-ins ask for a code of a second factor."""


class InvitationView(msgspec.Struct, frozen=True):
    """An invitation of a member, without its secret."""

    id: UUID
    tenant_id: UUID
    email: str
    role: str
    invited_by: str
    status: str
    """open | accepted | revoked | expired"""
    created_at: datetime
    expires_at: datetime


class TokenView(msgspec.Struct, frozen=True):
    """A token of the admin REST or a session as it may be shown, without the token itself."""

    id: UUID
    user_id: UUID
    kind: str
    """token | session (over REST) | console"""
    name: str
    last4: str
    scopes: tuple[str, ...]
    """What it may do at most (tenants.token_scopes); all for a session."""
    address: str
    """Network address from which a session was opened; empty for a token."""
    client: str
    """The program that opened a session, as it names itself; empty for a token."""
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None
    proved_by: Proof
    """How the person who opened or made it signed in."""


class AuditEntry(msgspec.Struct, frozen=True):
    """One row of the audit log."""

    id: UUID
    at: datetime
    actor_kind: str
    actor_id: str
    actor_label: str
    action: str
    tenant_id: UUID | None
    object_kind: str
    object_id: str
    reason: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
