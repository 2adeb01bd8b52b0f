"""Tables of GPU economics and reconciliation; the DDL is in migrations/versions/0010_economics_sql/.

Counters and cuts of engines are in workers/tables.py: the scheduler writes them.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from core.db import metadata


def _count(name: str) -> "Column[int]":
    return Column(name, BigInteger, nullable=False)


def _words(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False)


def _now(name: str) -> "Column[object]":
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


usage_unbilled = Table(
    "usage_unbilled",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("part", SmallInteger, primary_key=True, autoincrement=False),
    _words("replica_id"),
    _words("boot_id"),
    _words("cause"),
    _count("input_tokens"),
    _count("output_tokens"),
    _count("tail_input"),
    _count("tail_output"),
    _count("again_us"),
    CheckConstraint("cause IN ('retried', 'choices', 'cancelled_tail', 'engine_failed')", name="cause"),
    Index("ix_usage_unbilled_boot_id", "boot_id"),
)
"""Tokens of a request that an engine counted and nobody pays for, by attempt and cause (billing/records.py)."""

reconciliations = Table(
    "reconciliations",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("counter", Text, primary_key=True),
    Column("from_at", DateTime(timezone=True), primary_key=True),
    Column("to_at", DateTime(timezone=True)),
    _words("replica_id"),
    _words("model"),
    Column("simulated", Boolean, nullable=False),
    _now("first_checked_at"),
    _now("checked_at"),
    *(
        _count(name)
        for name in (
            "requests", "engine", "billed", "engine_failed", "zero_output", "cancelled_tail", "retried", "choices",
            "warmup", "probe", "unobserved", "unexplained",
        )
    ),
    Column("accepted_at", DateTime(timezone=True)),
    Column("accepted_by", Text),
    Column("accepted_reason", Text),
    CheckConstraint("counter IN ('prompt', 'generation')", name="counter"),
    Index("ix_reconciliations_checked_at", "checked_at"),
    Index("ix_reconciliations_unexplained", "boot_id", postgresql_where=text("unexplained <> 0")),
)  # fmt: skip
"""What became of an engine's tokens between two cuts; `to_at` empty = up to the engine's end."""

provider_invoices = Table(
    "provider_invoices",
    metadata,
    Column("id", Uuid, primary_key=True),
    _words("provider"),
    _words("number"),
    Column("month", Date, nullable=False),
    _words("currency"),
    Column("total", Numeric(38, 0), nullable=False),
    _words("source"),
    _now("entered_at"),
    _words("entered_by"),
    Column("voided_at", DateTime(timezone=True)),
    Column("voided_by", Text),
    Index("ix_provider_invoices_month", "month"),
    Index(
        "uq_provider_invoices_number",
        "provider",
        "number",
        unique=True,
        postgresql_where=text("voided_at IS NULL"),
    ),
)
"""What a provider of GPUs asked for a month, in picodollars."""

provider_invoice_lines = Table(
    "provider_invoice_lines",
    metadata,
    Column("invoice_id", Uuid, ForeignKey("provider_invoices.id"), primary_key=True),
    Column("line", SmallInteger, primary_key=True, autoincrement=False),
    _words("host_kind"),
    _words("description"),
    Column("hours", Numeric(38, 6)),
    Column("amount", Numeric(38, 0), nullable=False),
)
"""Its lines; `host_kind` is empty for what is no host (a discount, a volume)."""
