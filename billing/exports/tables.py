"""Tables of exports, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.columns import clock_instant, count, instant, string, tenant
from core.db import metadata

export_definitions = Table(
    "export_definitions",
    metadata,
    Column("id", Uuid, primary_key=True),
    string("name"),
    string("dataset"),
    string("format"),
    Column("group_by", Text, nullable=False, server_default=text("''")),
    string("cadence"),
    string("destination"),
    tenant(nullable=True),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    instant("starts_at"),
    instant("created_at", now=True),
    string("created_by"),
    UniqueConstraint("name"),
)
"""Definitions of scheduled exports; destinations contain no credentials."""

export_runs = Table(
    "export_runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("definition_id", Uuid, ForeignKey("export_definitions.id"), nullable=False),
    instant("period_start"),
    instant("period_end"),
    Column("revision", Integer, nullable=False),
    string("location"),
    count("row_count"),
    Column("sums", JSONB, nullable=False),
    string("sha256"),
    clock_instant("created_at"),
    clock_instant("checked_at"),
    Column("final", Boolean, nullable=False, server_default=text("false")),
    UniqueConstraint("definition_id", "period_start", "revision"),
)
"""Stored revisions, with the figures of their manifests."""

export_failures = Table(
    "export_failures",
    metadata,
    Column("definition_id", Uuid, ForeignKey("export_definitions.id"), primary_key=True),
    Column("period_start", DateTime(timezone=True), primary_key=True),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    string("error"),
    clock_instant("failed_at"),
    instant("next_at"),
)
"""Periods that could not be written, and the instant of their next attempt."""
