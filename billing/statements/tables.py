"""Tables of statements, signing keys and SLA credits, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.columns import clock_instant, instant, pico, string, tenant, uid
from core.db import metadata

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    clock_instant("created_at"),
    instant("retired_at", nullable=True),
)
"""Public keys to verify statements and receipts with."""

statements = Table(
    "statements",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    Column("month", Date, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("body_sha256", LargeBinary, nullable=False),
    string("document"),
    Column("pdf", LargeBinary, nullable=False),
    Column("key_id", Text, ForeignKey("signing_keys.id"), nullable=False),
    string("created_by"),
    clock_instant("created_at"),
    UniqueConstraint("tenant_id", "month", "revision"),
)
"""Signed final statements, one row per revision."""

sla_credits = Table(
    "sla_credits",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    uid("contract_id"),
    Column("month", Date, nullable=False),
    pico("amount"),
    Column("evidence", JSONB, nullable=False),
    clock_instant("created_at"),
    UniqueConstraint("contract_id", "month"),
    Index("ix_sla_credits_tenant_id_month", "tenant_id", "month"),
)
"""Measurements of service levels and their credits, one row per contract and month."""
