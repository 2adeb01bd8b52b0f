"""Tables of notices, alerts, statements and SLA credits, mirrored from migration 0012. The migration owns the DDL."""

from sqlalchemy import (
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from core.db import metadata


def _instant(name: str, *, now: bool = False) -> "Column[object]":
    default = func.clock_timestamp() if now else None
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=default)


def _tenant(*, nullable: bool = False) -> "Column[object]":
    return Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=nullable)


def _words(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False)


def _pico(name: str, *, nullable: bool = False) -> "Column[object]":
    return Column(name, Numeric(38, 0), nullable=nullable)


notices = Table(
    "notices",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(nullable=True),
    _words("kind"),
    _words("subject"),
    _words("body"),
    Column("facts", JSONB, nullable=False),
    Column("dedupe_key", Text),
    _instant("created_at", now=True),
    _instant("planned_at"),
    UniqueConstraint("dedupe_key"),
    Index("ix_notices_tenant_id_created_at", "tenant_id", "created_at"),
    Index("ix_notices_unplanned", "created_at", postgresql_where=text("planned_at IS NULL")),
)
"""What an organisation, or the platform (no tenant), is told."""

notice_endpoints = Table(
    "notice_endpoints",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(nullable=True),
    _words("channel"),
    _words("target"),
    Column("kinds", ARRAY(Text)),
    Column("secret_version", Integer, nullable=False, server_default=text("1")),
    _words("created_by"),
    _instant("created_at", now=True),
    _instant("removed_at"),
    Index("ix_notice_endpoints_tenant_id", "tenant_id", postgresql_where=text("removed_at IS NULL")),
)
"""Where notices go: webhook addresses and mailboxes."""

notice_deliveries = Table(
    "notice_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("notice_id", Uuid, ForeignKey("notices.id"), nullable=False),
    Column("endpoint_id", Uuid, ForeignKey("notice_endpoints.id")),
    Column("tenant_id", Uuid),
    _words("channel"),
    _words("target"),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_try_at", DateTime(timezone=True), server_default=func.clock_timestamp()),
    Column("last_error", Text),
    _instant("created_at", now=True),
    _instant("done_at"),
    UniqueConstraint("notice_id", "channel", "target"),
    Index("ix_notice_deliveries_due", "next_try_at", postgresql_where=text("state = 'pending'")),
    Index("ix_notice_deliveries_tenant_id", "tenant_id"),
)
"""One notice on its way to one endpoint."""

alert_rules = Table(
    "alert_rules",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _words("kind"),
    _words("scope"),
    Column("scope_id", Uuid, nullable=False),
    _pico("amount", nullable=True),
    Column("thresholds", ARRAY(SmallInteger), nullable=False),
    _instant("fired_at"),
    _words("created_by"),
    _instant("created_at", now=True),
    UniqueConstraint("tenant_id", "kind", "scope_id"),
)
"""Budgets of projects and keys, thresholds, and the low-balance mark."""

alert_events = Table(
    "alert_events",
    metadata,
    _tenant(),
    _words("scope"),
    Column("scope_id", Uuid, primary_key=True),
    Column("month", Date, primary_key=True),
    Column("threshold", SmallInteger, primary_key=True, autoincrement=False),
    _pico("budget"),
    _pico("spent"),
    _instant("at", now=True),
    Index("ix_alert_events_tenant_id", "tenant_id"),
)
"""Thresholds that were crossed: once per month and scope."""

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    _instant("created_at", now=True),
    _instant("retired_at"),
)
"""Public keys that statements and receipts verify with."""

statements = Table(
    "statements",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("month", Date, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("body_sha256", LargeBinary, nullable=False),
    _words("document"),
    Column("pdf", LargeBinary, nullable=False),
    Column("key_id", Text, ForeignKey("signing_keys.id"), nullable=False),
    _words("created_by"),
    _instant("created_at", now=True),
    UniqueConstraint("tenant_id", "month", "revision"),
)
"""Signed statements, one revision a row."""

sla_credits = Table(
    "sla_credits",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("contract_id", Uuid, nullable=False),
    Column("month", Date, nullable=False),
    _pico("amount"),
    Column("evidence", JSONB, nullable=False),
    _instant("created_at", now=True),
    UniqueConstraint("contract_id", "month"),
    Index("ix_sla_credits_tenant_id_month", "tenant_id", "month"),
)
"""Credits for missed service levels, once per contract and month."""
