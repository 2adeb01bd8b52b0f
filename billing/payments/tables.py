"""Tables of payments, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from core.db import metadata

stripe_customers = Table(
    "stripe_customers",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("customer_id", Text),
    Column("name", Text, nullable=False),
    Column("email", Text),
    Column("tax_id_kind", Text),
    Column("tax_id_value", Text),
    Column("tax_id", Text),
    Column("default_payment_method", Text),
    Column("dunning", Text, nullable=False, server_default=text("'current'")),
    Column("dunning_since", DateTime(timezone=True)),
    Column("limited", Boolean, nullable=False, server_default=text("false")),
    Column("limit_before", Numeric(38, 0)),
    Column("requested_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    UniqueConstraint("customer_id"),
)
"""One Stripe customer per organisation."""

stripe_payment_methods = Table(
    "stripe_payment_methods",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("brand", Text),
    Column("last4", Text),
    Column("exp_month", SmallInteger),
    Column("exp_year", SmallInteger),
    Column("detached_at", DateTime(timezone=True)),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_stripe_payment_methods_tenant_id", "tenant_id"),
)
"""Saved payment methods as Stripe shows them; never a whole number."""

stripe_topups = Table(
    "stripe_topups",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("session_id", Text),
    Column("url", Text),
    Column("payment_intent", Text),
    Column("payment_method", Text),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("ended_at", DateTime(timezone=True)),
    Index("ix_stripe_topups_tenant_id", "tenant_id", "created_at"),
    Index(
        "uq_stripe_topups_auto",
        "tenant_id",
        unique=True,
        postgresql_where=text("kind = 'auto' AND status = 'pending'"),
    ),
)
"""A purchase of credit: by Checkout (a person pays on Stripe's page) or automatic (a saved card is charged)."""

stripe_auto_topups = Table(
    "stripe_auto_topups",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("threshold", Numeric(38, 0), nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("monthly_cap_cents", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("disabled_reason", Text),
    Column("retry_at", DateTime(timezone=True)),
    Column("updated_by", Text, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
"""When and how much credit is bought automatically."""

stripe_payments = Table(
    "stripe_payments",
    metadata,
    Column("payment_intent", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("topup_id", Uuid),
    Column("invoice_id", Uuid),
    Column("cents", BigInteger, nullable=False),
    Column("charge_id", Text),
    Column("paid_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_stripe_payments_tenant_id", "tenant_id", "paid_at"),
)
"""Payments that arrived."""

stripe_refunds = Table(
    "stripe_refunds",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("payment_intent", Text, nullable=False),
    Column("lot_id", Uuid),
    Column("credit_note_id", Uuid),
    Column("cents", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("refund_id", Text),
    Column("reason", Text, nullable=False),
    Column("error", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("ended_at", DateTime(timezone=True)),
    UniqueConstraint("refund_id"),
    Index("ix_stripe_refunds_tenant_id", "tenant_id", "created_at"),
)
"""Refunds, ours (asked for here, then made in Stripe) and those that somebody made in Stripe's dashboard."""

stripe_disputes = Table(
    "stripe_disputes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("payment_intent", Text, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("withdrawn_cents", BigInteger, nullable=False),
    Column("returned_cents", BigInteger, nullable=False),
    Column("fee_cents", BigInteger, nullable=False),
    Column("clawed_back", Numeric(38, 0), nullable=False, server_default=text("0")),
    Column("reason", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("evidence_due_at", DateTime(timezone=True)),
    Column("opened_at", DateTime(timezone=True), nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_stripe_disputes_tenant_id", "tenant_id", "opened_at"),
)
"""Chargebacks: what the bank withdrew and returned, and what of the credit was taken back."""

stripe_cash = Table(
    "stripe_cash",
    metadata,
    Column("txn_id", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("fee_cents", BigInteger, nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("booked_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_stripe_cash_at", "at"),
)
"""Each movement of our Stripe balance that is in our ledger; append-only."""

stripe_events = Table(
    "stripe_events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("object_kind", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("received_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("found_by", Text, nullable=False),
    Column("outcome", Text),
    Column("applied_at", DateTime(timezone=True)),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("next_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("error", Text),
    Index("ix_stripe_events_open", "next_at", postgresql_where=text("applied_at IS NULL")),
    Index("ix_stripe_events_received_at", "received_at"),
)
"""Every event once: the row is the record and the queue."""

stripe_pushes = Table(
    "stripe_pushes",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("object_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)
"""What was sent to Stripe of ours, and why something was not: blocked waits for a person."""

stripe_meter_events = Table(
    "stripe_meter_events",
    metadata,
    Column("identifier", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("tokens", Numeric(38, 0), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("tried_at", DateTime(timezone=True)),
    Column("sent_at", DateTime(timezone=True)),
    Index("ix_stripe_meter_events_tenant_id", "tenant_id", "hour"),
    Index("ix_stripe_meter_events_open", "created_at", postgresql_where=text("state = 'pending'")),
)
"""Tokens sent to the billing meter: one row per tenant, hour and change of the hour's sum."""

stripe_state = Table(
    "stripe_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default=text("1")),
    Column("used_since", DateTime(timezone=True)),
    Column("events_seen_at", DateTime(timezone=True)),
    Column("meter_id", Text),
)
"""One row: since when there is a key, how far events were listed, and the meter."""

stripe_reconciliations = Table(
    "stripe_reconciliations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("month", Date, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("ok", Boolean, nullable=False),
    Column("facts", JSONB, nullable=False),
    Index("ix_stripe_reconciliations_month_at", "month", "at"),
)
"""What a comparison of a month with Stripe found."""
