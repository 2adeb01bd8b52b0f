"""Tables of notices, endpoints, deliveries and alert rules, for SQLAlchemy Core. The migrations own the DDL."""

from sqlalchemy import (
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from core.columns import clock_instant, instant, pico, string, tenant, uid
from core.db import metadata

notices = Table(
    "notices",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(nullable=True),
    string("kind"),
    string("subject"),
    string("body"),
    Column("facts", JSONB, nullable=False),
    Column("dedupe_key", Text),
    clock_instant("created_at"),
    instant("planned_at", nullable=True),
    UniqueConstraint("dedupe_key"),
    Index("ix_notices_tenant_id_created_at", "tenant_id", "created_at"),
    Index("ix_notices_unplanned", "created_at", postgresql_where=text("planned_at IS NULL")),
)
"""Notices to an organisation, or to the platform's operators (no tenant)."""

notice_endpoints = Table(
    "notice_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(nullable=True),
    string("channel"),
    string("target"),
    Column("kinds", ARRAY(Text)),
    Column("secret_version", Integer, nullable=False, server_default=text("1")),
    string("created_by"),
    clock_instant("created_at"),
    instant("removed_at", nullable=True),
    Index("ix_notice_endpoints_tenant_id", "tenant_id", postgresql_where=text("removed_at IS NULL")),
)
"""Endpoints of notices: webhooks and mailboxes."""

notice_deliveries = Table(
    "notice_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("notice_id", Uuid, ForeignKey("notices.id"), nullable=False),
    Column("endpoint_id", Uuid, ForeignKey("notice_endpoints.id")),
    Column("tenant_id", Uuid),
    string("channel"),
    string("target"),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_try_at", DateTime(timezone=True), server_default=func.clock_timestamp()),
    Column("last_error", Text),
    clock_instant("created_at"),
    instant("done_at", nullable=True),
    UniqueConstraint("notice_id", "channel", "target"),
    Index("ix_notice_deliveries_due", "next_try_at", postgresql_where=text("state = 'pending'")),
    Index("ix_notice_deliveries_tenant_id", "tenant_id"),
)
"""Deliveries of a notice to an endpoint."""

alert_rules = Table(
    "alert_rules",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    string("kind"),
    string("scope"),
    uid("scope_id"),
    pico("amount", nullable=True),
    Column("thresholds", ARRAY(SmallInteger), nullable=False),
    instant("fired_at", nullable=True),
    string("created_by"),
    clock_instant("created_at"),
    UniqueConstraint("tenant_id", "kind", "scope_id"),
)
"""Alert rules: budgets of projects and keys, thresholds of budgets, and low-balance amounts."""

alert_events = Table(
    "alert_events",
    metadata,
    tenant(),
    string("scope"),
    Column("scope_id", Uuid, primary_key=True),
    Column("month", Date, primary_key=True),
    Column("threshold", SmallInteger, primary_key=True, autoincrement=False),
    pico("budget"),
    pico("spent"),
    clock_instant("at"),
    Index("ix_alert_events_tenant_id", "tenant_id"),
)
"""Crossed thresholds, once per month and scope."""
