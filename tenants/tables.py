"""Tables of tenancy, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from core.db import metadata

_NOW = text("now()")


def _instant(name: str, *, now: bool = False) -> "Column[object]":
    """A timestamptz column: set by the database's clock at insertion, or nullable."""
    if now:
        return Column(name, DateTime(timezone=True), nullable=False, server_default=_NOW)
    return Column(name, DateTime(timezone=True))


tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("slug", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False, server_default="active"),
    Column("tier", Text, nullable=False, server_default="standard"),
    _instant("created_at", now=True),
    _instant("throttle_until"),
    Column("throttle_requests_per_min", Integer),
    Column("throttle_concurrency", Integer),
    Column("share_percent", Integer, nullable=False, server_default="100"),
)
"""Organisations: who pays. Until `throttle_until` the two throttle figures cap the tenant's limits."""

projects = Table(
    "projects",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="active"),
    _instant("created_at", now=True),
    UniqueConstraint("tenant_id", "name"),
    UniqueConstraint("tenant_id", "id"),
)
"""What keys and limits are grouped by inside an organisation."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("project_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("last4", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="active"),
    Column("allowed_models", ARRAY(Text)),
    _instant("created_at", now=True),
    _instant("expires_at"),
    _instant("revoked_at"),
    _instant("last_used_at"),
    ForeignKeyConstraint(["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"]),
    Index(None, "tenant_id", "project_id"),
    Index(None, "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
"""Customers' keys: HMAC and last four characters only, never the key itself."""

limits = Table(
    "limits",
    metadata,
    Column("scope_kind", Text, primary_key=True),
    Column("scope_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("requests_per_min", BigInteger),
    Column("input_tokens_per_min", BigInteger),
    Column("output_tokens_per_min", BigInteger),
    Column("concurrency", BigInteger),
    Column("tokens_per_day", BigInteger),
    Index(None, "tenant_id"),
)
"""Limits of a tenant, project or key; null = none of that kind."""

users = Table(
    "users",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("email", Text, nullable=False, unique=True),
    Column("password_hash", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="active"),
    _instant("created_at", now=True),
)
"""People who sign in to the console. Addresses are stored in lower case."""

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", Uuid, ForeignKey("users.id"), primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    Column("role", Text, nullable=False),
    Index(None, "tenant_id"),
)
"""The one role a person has: in one organisation, or on the platform (tenant null)."""

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("last4", Text, nullable=False),
    _instant("created_at", now=True),
    _instant("expires_at"),
    _instant("revoked_at"),
    _instant("last_used_at"),
    Index(None, "user_id"),
)
"""Bearer tokens of the admin REST; each acts with its user's present role."""

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Uuid, primary_key=True),
    _instant("at", now=True),
    Column("actor_kind", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("actor_label", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("tenant_id", Uuid),
    Column("object_kind", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("reason", Text),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
    Index(None, "tenant_id", "id"),
)
"""Who changed what, when and why. Append-only: a trigger refuses update and delete."""

tenancy_changes = Table(
    "tenancy_changes",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("object_id", Uuid, nullable=False),
    _instant("at", now=True),
    Column("xact", BigInteger, nullable=False),
    Index(None, "xact"),
)
"""Written by triggers on the tables above, polled by every API process. `xact` is the writing transaction's id:
readers continue from the oldest transaction that was still open, so that a late commit is never skipped."""

login_failures = Table(
    "login_failures",
    metadata,
    Column("subject", LargeBinary, primary_key=True),
    Column("failures", Integer, nullable=False),
    _instant("window_start", now=True),
)
"""Failed sign-ins by a hash of what was tried (address book kept out of it)."""
