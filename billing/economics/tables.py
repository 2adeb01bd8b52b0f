"""Tables of GPU economics and reconciliation, for SQLAlchemy Core. migrations/ owns the DDL.

Counters and cuts of engines are in workers/tables.py: the scheduler writes them.
"""

from sqlalchemy import (
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
    text,
)

from core.columns import clock_instant, count, instant, pico, string
from core.db import metadata

usage_unbilled = Table(
    "usage_unbilled",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("part", SmallInteger, primary_key=True, autoincrement=False),
    string("replica_id"),
    string("boot_id"),
    string("cause"),
    count("input_tokens"),
    count("output_tokens"),
    count("tail_input"),
    count("tail_output"),
    count("again_us"),
    CheckConstraint("cause IN ('retried', 'choices', 'cancelled_tail', 'engine_failed')", name="cause"),
    Index("ix_usage_unbilled_boot_id", "boot_id"),
)
"""Tokens of a request that an engine counted and that are not billed, by attempt and cause
(billing/metering/records.py)."""

reconciliations = Table(
    "reconciliations",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("counter", Text, primary_key=True),
    Column("from_at", DateTime(timezone=True), primary_key=True),
    instant("to_at", nullable=True),
    string("replica_id"),
    string("model"),
    Column("simulated", Boolean, nullable=False),
    clock_instant("first_checked_at"),
    clock_instant("checked_at"),
    *(
        count(name)
        for name in (
            "requests", "engine", "billed", "engine_failed", "zero_output", "cancelled_tail", "retried", "choices",
            "warmup", "probe", "unobserved", "unexplained",
        )
    ),
    instant("accepted_at", nullable=True),
    Column("accepted_by", Text),
    Column("accepted_reason", Text),
    CheckConstraint("counter IN ('prompt', 'generation')", name="counter"),
    Index("ix_reconciliations_checked_at", "checked_at"),
    Index("ix_reconciliations_unexplained", "boot_id", postgresql_where=text("unexplained <> 0")),
)  # fmt: skip
"""The token balance of an engine between two cuts, by counter; `to_at` NULL = up to the engine's end."""

provider_invoices = Table(
    "provider_invoices",
    metadata,
    Column("id", Uuid, primary_key=True),
    string("provider"),
    string("number"),
    Column("month", Date, nullable=False),
    string("currency"),
    pico("total"),
    string("source"),
    clock_instant("entered_at"),
    string("entered_by"),
    instant("voided_at", nullable=True),
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
"""Invoices of GPU providers by month, in picodollars."""

provider_invoice_lines = Table(
    "provider_invoice_lines",
    metadata,
    Column("invoice_id", Uuid, ForeignKey("provider_invoices.id"), primary_key=True),
    Column("line", SmallInteger, primary_key=True, autoincrement=False),
    string("host_kind"),
    string("description"),
    Column("hours", Numeric(38, 6)),
    pico("amount"),
)
"""Lines of provider_invoices; `host_kind` is empty for what is not a host (a discount, a volume)."""
