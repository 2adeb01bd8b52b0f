"""Tables of exports, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from billing.ledger.tables import ledger_transfers
from core.db import metadata

export_definitions = Table(
    "export_definitions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("group_by", Text, nullable=False, server_default=text("''")),
    Column("cadence", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("starts_at", DateTime(timezone=True), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("created_by", Text, nullable=False),
    UniqueConstraint("name"),
)
"""What is exported where, and how often. Names no credentials."""

export_runs = Table(
    "export_runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("definition_id", Uuid, ForeignKey("export_definitions.id"), nullable=False),
    Column("period_start", DateTime(timezone=True), nullable=False),
    Column("period_end", DateTime(timezone=True), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("sums", JSONB, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("checked_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("final", Boolean, nullable=False, server_default=text("false")),
    UniqueConstraint("definition_id", "period_start", "revision"),
)
"""Revisions that were written, with what their manifests say."""

export_failures = Table(
    "export_failures",
    metadata,
    Column("definition_id", Uuid, ForeignKey("export_definitions.id"), primary_key=True),
    Column("period_start", DateTime(timezone=True), primary_key=True),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    Column("error", Text, nullable=False),
    Column("failed_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("next_at", DateTime(timezone=True), nullable=False),
)
"""Periods that could not be written, and when they are tried again."""

Index(
    "ix_ledger_transfers_rare",
    ledger_transfers.c.effective_at,
    postgresql_where=text("kind = ANY (ARRAY['adjustment'::text, 'commit'::text, 'uncollectible'::text])"),
)
