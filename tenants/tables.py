"""Tables of tenancy, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from core.columns import clock_instant, instant, string, tenant, uid
from core.db import metadata

tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    string("name"),
    Column("slug", Text, nullable=False, unique=True),
    Column("status", Text, nullable=False, server_default="active"),
    Column("tier", Text, nullable=False, server_default="standard"),
    instant("created_at", now=True),
    instant("throttle_until", nullable=True),
    Column("throttle_requests_per_min", Integer),
    Column("throttle_concurrency", Integer),
    Column("share_percent", Integer, nullable=False, server_default="100"),
    Column("highest_tier", Text),
)
"""Organisations, the customers that pay. Until `throttle_until` the throttle columns cap the tenant's limits."""

projects = Table(
    "projects",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    string("name"),
    Column("status", Text, nullable=False, server_default="active"),
    instant("created_at", now=True),
    Column("responses_kept_days", Integer),
    UniqueConstraint("tenant_id", "name"),
    UniqueConstraint("tenant_id", "id"),
)
"""Groups of keys and limits inside an organisation."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    uid("project_id"),
    string("name"),
    string("kind"),
    Column("hash", LargeBinary, nullable=False, unique=True),
    string("last4"),
    Column("status", Text, nullable=False, server_default="active"),
    Column("allowed_models", ARRAY(Text)),
    Column("tagged", Boolean, nullable=False, server_default="false"),
    Column("quota_status", SmallInteger, nullable=False, server_default="402"),
    Column("cors_origins", ARRAY(Text)),
    instant("created_at", now=True),
    instant("expires_at", nullable=True),
    instant("revoked_at", nullable=True),
    instant("last_used_at", nullable=True),
    Column("networks", ARRAY(Text)),
    Column("scopes", ARRAY(Text)),
    Column("regions", ARRAY(Text)),
    Column("gpus", ARRAY(Text)),
    Column("previous_hash", LargeBinary),
    instant("previous_until", nullable=True),
    ForeignKeyConstraint(["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"]),
    Index(None, "tenant_id", "project_id"),
    Index(None, "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    Index(
        "uq_api_keys_previous_hash",
        "previous_hash",
        unique=True,
        postgresql_where=text("previous_hash IS NOT NULL"),
    ),
    Index("ix_api_keys_cors_origins", "id", postgresql_where=text("cors_origins IS NOT NULL")),
)
"""Customers' keys: only HMAC and last four characters, never the key itself. `tagged`: see tenants/key_format.py; false
as long as any secret of the key may have no tag. `networks`, `scopes`, `regions` and `gpus`: null = no restriction.
`quota_status` and `cors_origins`: see tenants/client_settings.py."""

limits = Table(
    "limits",
    metadata,
    Column("scope_kind", Text, primary_key=True),
    Column("scope_id", Uuid, primary_key=True),
    tenant(),
    Column("requests_per_min", BigInteger),
    Column("input_tokens_per_min", BigInteger),
    Column("output_tokens_per_min", BigInteger),
    Column("concurrency", BigInteger),
    Column("tokens_per_day", BigInteger),
    Index(None, "tenant_id"),
)
"""Limits of a tenant, project or key; null = no limit of that kind."""

users = Table(
    "users",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("email", Text, nullable=False, unique=True),
    string("password_hash"),
    Column("status", Text, nullable=False, server_default="active"),
    instant("created_at", now=True),
    Column("unconfirmed_change", Uuid),
    Column("ever_confirmed", Boolean, nullable=False, server_default="true"),
    Column("recovery_hash", Text),
    instant("sessions_from", nullable=True),
)
"""Users of the console. Email addresses are stored in lower case. `unconfirmed_change` is the last change of a platform
person's credentials while another person has not confirmed it. Processes of the release before end console sessions
from before `sessions_from`; the next release drops it."""

memberships = Table(
    "memberships",
    metadata,
    Column("user_id", Uuid, ForeignKey("users.id"), primary_key=True),
    tenant(nullable=True),
    string("role"),
    Index(None, "tenant_id"),
)
"""The one role of a user, in one organisation or on the platform (tenant null)."""

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False),
    string("name"),
    Column("hash", LargeBinary, nullable=False, unique=True),
    string("last4"),
    instant("created_at", now=True),
    Column(
        "expires_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=text("now() + interval '365 days'"),
    ),
    instant("revoked_at", nullable=True),
    instant("last_used_at", nullable=True),
    Column("kind", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False, server_default="{read,write,access}"),
    Column("address", Text, nullable=False, server_default=""),
    Column("client", Text, nullable=False, server_default=""),
    Column("proved_by", Text, nullable=False, server_default="password"),
    Index(None, "user_id"),
)
"""Tokens of the admin REST, sessions there, and sessions of the console (`kind`). Each acts with its user's current
role. `address` and `client` say where a session was opened, `proved_by` how its person signed in: tenants/proofs.py."""

second_factors = Table(
    "second_factors",
    metadata,
    Column("user_id", Uuid, ForeignKey("users.id"), primary_key=True),
    Column("sealed_secret", LargeBinary, nullable=False),
    instant("created_at", now=True),
    instant("confirmed_at", nullable=True),
    Column("last_step", BigInteger, nullable=False, server_default="0"),
    Column("wrong_codes", Integer, nullable=False, server_default="0"),
    instant("wrong_recorded_at", nullable=True),
)
"""Second factors (TOTP): the secret sealed under the pepper (tenants/sealed.py), and the time step of the last code.
`wrong_codes` were given since the last right one; `wrong_recorded_at`: when one was last recorded in the audit log."""

backup_codes = Table(
    "backup_codes",
    metadata,
    Column("user_id", Uuid, ForeignKey("second_factors.user_id", ondelete="CASCADE"), primary_key=True),
    Column("hash", LargeBinary, primary_key=True),
    instant("used_at", nullable=True),
)
"""Codes in place of the second factor's: only HMACs. Each works once."""

sign_in_rules = Table(
    "sign_in_rules",
    metadata,
    tenant(nullable=True),
    string("rule"),
    UniqueConstraint("tenant_id", postgresql_nulls_not_distinct=True),
)
"""What sign-ins must prove, for an organisation's people or the platform's (tenant null); without a row a password."""

identity_providers = Table(
    "identity_providers",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(nullable=True),
    string("issuer"),
    string("client_id"),
    Column("sealed_client_secret", LargeBinary, nullable=False),
    Column("mail_domains", ARRAY(Text), nullable=False),
    Column("default_role", Text),
    instant("used_at", nullable=True),
    UniqueConstraint("tenant_id", postgresql_nulls_not_distinct=True),
)
"""The identity provider (OpenID Connect) of an organisation, or of the platform's people (tenant null). The client
secret is sealed (tenants/sealed.py). `default_role`: the role of a new account; null = the provider makes none.
`used_at`: the first sign-in through the provider since its last change; null = none."""

identity_links = Table(
    "identity_links",
    metadata,
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("user_id", Uuid, ForeignKey("users.id"), nullable=False),
    instant("created_at", now=True),
    Index(None, "user_id"),
)
"""Which person a subject of an issuer is."""

invitations = Table(
    "invitations",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    string("email"),
    string("role"),
    Column("hash", LargeBinary, nullable=False, unique=True),
    string("invited_by"),
    instant("created_at", now=True),
    instant("expires_at"),
    instant("accepted_at", nullable=True),
    instant("revoked_at", nullable=True),
    Index(None, "tenant_id"),
)
"""Invitations of members. Only the HMAC of the secret is kept, which works once."""

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Uuid, primary_key=True),
    instant("at", now=True),
    string("actor_kind"),
    string("actor_id"),
    string("actor_label"),
    string("action"),
    Column("tenant_id", Uuid),
    string("object_kind"),
    string("object_id"),
    Column("reason", Text),
    Column("before", JSONB(none_as_null=True)),
    Column("after", JSONB(none_as_null=True)),
    Index(None, "tenant_id", "id"),
)
"""Records of administrative changes. Append-only: a trigger refuses update and delete."""

denied_acts = Table(
    "denied_acts",
    metadata,
    Column("actor_kind", Text, primary_key=True),
    Column("actor_id", Text, primary_key=True),
    Column("act", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("minute", DateTime(timezone=True), primary_key=True),
    string("actor_label"),
    Column("tenant_id", Uuid),
    string("address"),
    Column("count", BigInteger, nullable=False, server_default="1"),
    clock_instant("first_at"),
    clock_instant("last_at"),
)
"""Refused administrative acts of the present minute, counted; a job moves those of past minutes to the audit log."""

audit_cursors = Table(
    "audit_cursors",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)
"""The number of the last row of the audit log that a receiver was sent."""

tenancy_changes = Table(
    "tenancy_changes",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    string("kind"),
    uid("tenant_id"),
    uid("object_id"),
    instant("at", now=True),
    Column("xact", BigInteger, nullable=False),
    Index(None, "xact"),
)
"""Changes of the tables above, written by their triggers and polled by every API process. `xact` is the id of the
writing transaction: readers continue from the oldest one still in progress, so no late commit is skipped."""

login_failures = Table(
    "login_failures",
    metadata,
    Column("subject", LargeBinary, primary_key=True),
    Column("failures", Integer, nullable=False),
    instant("window_start", now=True),
)
"""Failed sign-ins per hash of email address, network address, or both."""
