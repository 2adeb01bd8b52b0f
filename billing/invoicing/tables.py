"""Tables of invoicing, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.columns import clock_instant, count, instant, pico, string, tenant, uid
from core.db import metadata

invoices = Table(
    "invoices",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    Column("month", Date, nullable=False),
    string("kind"),
    string("status"),
    Column("currency", Text, nullable=False, server_default="USD"),
    pico("exact"),
    count("total_cents"),
    Column("number", Text),
    Column("stripe_invoice_id", Text),
    instant("due_at", nullable=True),
    instant("finalized_at", nullable=True),
    instant("paid_at", nullable=True),
    instant("created_at", now=True),
    pico("carry_exact", zero=True),
    Column("carry_cents", BigInteger, nullable=False, server_default=text("0")),
    Column("carried_to", Uuid, ForeignKey("invoices.id")),
    Column("automatic_payment", Boolean, nullable=False, server_default=text("false")),
    Column("applied_cents", BigInteger, nullable=False, server_default=text("0")),
    pico("committed", nullable=True),
    UniqueConstraint("tenant_id", "month"),
    UniqueConstraint("number"),
    UniqueConstraint("stripe_invoice_id"),
    Index("ix_invoices_month", "month"),
    Index(
        "ix_invoices_carry",
        "tenant_id",
        postgresql_where=text("carried_to IS NULL AND (carry_exact <> 0 OR carry_cents <> 0)"),
    ),
)
"""One invoice per tenant and month: a postpaid bill, or a list of what prepaid credit paid for."""

invoice_lines = Table(
    "invoice_lines",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("invoice_id", Uuid, ForeignKey("invoices.id"), nullable=False),
    uid("tenant_id"),
    Column("position", Integer, nullable=False),
    string("kind"),
    string("model"),
    string("class"),
    string("tier"),
    Column("price_version", BigInteger),
    pico("tokens"),
    pico("unit_price", nullable=True),
    pico("exact"),
    count("cents"),
    string("description"),
    Column("adjustment_id", Uuid),
    Column("stripe_item_id", Text),
    Column("used_in", Date),
    UniqueConstraint("invoice_id", "position"),
    Index(
        "ix_invoice_lines_adjustment_id",
        "adjustment_id",
        postgresql_where=text("adjustment_id IS NOT NULL"),
    ),
)
"""Lines of invoices: exact picodollars, and the cents to which they are rounded once."""

commitment_usage = Table(
    "commitment_usage",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("month", Date, primary_key=True),
    Column("invoice_id", Uuid, ForeignKey("invoices.id"), primary_key=True),
    pico("cost"),
    Index("ix_commitment_usage_invoice_id", "invoice_id"),
)
"""Late usage on an invoice by the month whose commitment it counts for."""

credit_notes = Table(
    "credit_notes",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("invoice_id", Uuid, ForeignKey("invoices.id"), nullable=False),
    uid("tenant_id"),
    string("reason"),
    pico("exact"),
    count("cents"),
    Column("status", Text, nullable=False, server_default="issued"),
    string("pays"),
    Column("stripe_credit_note_id", Text),
    Column("correction_id", Uuid),
    uid("adjustment_id"),
    instant("created_at", now=True),
    Column("balance_cents", BigInteger, nullable=False, server_default=text("0")),
    Column("refund_cents", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("stripe_credit_note_id"),
    Index("ix_credit_notes_invoice_id", "invoice_id"),
    Index("ix_credit_notes_adjustment_id", "adjustment_id"),
)
"""Credit against a finalised invoice; `pays` = invoice (reduces an open one) | balance | refund (of a paid one).

The parts that went to the customer's balance or were paid back are known when Stripe has the note."""

credit_note_lines = Table(
    "credit_note_lines",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("credit_note_id", Uuid, ForeignKey("credit_notes.id"), nullable=False),
    uid("tenant_id"),
    Column("invoice_line_id", Uuid, ForeignKey("invoice_lines.id"), nullable=False),
    pico("exact"),
    count("cents"),
    string("description"),
    Index("ix_credit_note_lines_credit_note_id", "credit_note_id"),
)
"""The credit of each invoice line that a credit note covers."""

invoice_numbers = Table(
    "invoice_numbers",
    metadata,
    Column("month", Date, primary_key=True),
    Column("last", Integer, nullable=False),
)
"""The last invoice number of a month."""

invoice_runs = Table(
    "invoice_runs",
    metadata,
    Column("month", Date, primary_key=True),
    clock_instant("finished_at"),
)
"""Months whose invoice run is complete."""

parked_decisions = Table(
    "parked_decisions",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    string("reason"),
    string("decided_by"),
    instant("decided_at", now=True),
)
"""Records of settle_errors that a person decided not to bill."""

corrections = Table(
    "corrections",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("month", Date, nullable=False),
    instant("until"),
    Column("status", Text, nullable=False, server_default="requested"),
    Column("spec", JSONB, nullable=False),
    string("reason"),
    Column("reverses", Uuid, ForeignKey("corrections.id")),
    uid("approval_id"),
    pico("delta"),
    string("requested_by"),
    clock_instant("requested_at"),
    Column("decided_by", Text),
    instant("decided_at", nullable=True),
    Column("applied_to", Uuid),
    Index("ix_corrections_month", "month"),
    Index("ix_corrections_applying", "decided_at", postgresql_where=text("status = 'applying'")),
    Index(
        "uq_corrections_reverses",
        "reverses",
        unique=True,
        postgresql_where=text("status NOT IN ('rejected', 'expired')"),
    ),
)
"""Re-ratings of a month under other prices, and their reversals."""

correction_lines = Table(
    "correction_lines",
    metadata,
    Column("correction_id", Uuid, ForeignKey("corrections.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    uid("tenant_id"),
    string("kind"),
    string("model"),
    string("class"),
    string("tier"),
    count("price_version"),
    pico("tokens"),
    pico("old_price", nullable=True),
    pico("new_price", nullable=True),
    pico("old_exact"),
    pico("new_exact"),
    pico("delta"),
    Column("used_in", Date),
    Index("ix_correction_lines_tenant_id", "tenant_id"),
    Index("ix_correction_lines_customer", "correction_id", "tenant_id"),
)
"""The difference of a correction by tenant and line."""
