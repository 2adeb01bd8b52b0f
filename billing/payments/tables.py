"""Tables of payments, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    ForeignKey,
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

from core.columns import clock_instant, count, instant, pico, string, tenant, uid
from core.db import metadata

stripe_customers = Table(
    "stripe_customers",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("customer_id", Text),
    string("name"),
    Column("email", Text),
    Column("tax_id_kind", Text),
    Column("tax_id_value", Text),
    Column("tax_id", Text),
    Column("default_payment_method", Text),
    Column("dunning", Text, nullable=False, server_default=text("'current'")),
    instant("dunning_since", nullable=True),
    Column("limited", Boolean, nullable=False, server_default=text("false")),
    pico("limit_before", nullable=True),
    clock_instant("requested_at"),
    UniqueConstraint("customer_id"),
)
"""One Stripe customer per organisation."""

stripe_payment_methods = Table(
    "stripe_payment_methods",
    metadata,
    Column("id", Text, primary_key=True),
    tenant(),
    string("kind"),
    Column("brand", Text),
    Column("last4", Text),
    Column("exp_month", SmallInteger),
    Column("exp_year", SmallInteger),
    instant("detached_at", nullable=True),
    clock_instant("seen_at"),
    Index("ix_stripe_payment_methods_tenant_id", "tenant_id"),
)
"""Saved payment methods as Stripe shows them, without full card numbers."""

stripe_topups = Table(
    "stripe_topups",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    string("kind"),
    count("cents"),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("session_id", Text),
    Column("url", Text),
    Column("payment_intent", Text),
    Column("payment_method", Text),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    string("created_by"),
    clock_instant("created_at"),
    instant("ended_at", nullable=True),
    Index("ix_stripe_topups_tenant_id", "tenant_id", "created_at"),
    Index(
        "uq_stripe_topups_auto",
        "tenant_id",
        unique=True,
        postgresql_where=text("kind = 'auto' AND status = 'pending'"),
    ),
)
"""Purchases of credit: by Checkout (a person pays on Stripe's page) or automatic (a saved card is charged)."""

stripe_auto_topups = Table(
    "stripe_auto_topups",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("enabled", Boolean, nullable=False),
    pico("threshold"),
    count("cents"),
    count("monthly_cap_cents"),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("disabled_reason", Text),
    instant("retry_at", nullable=True),
    string("updated_by"),
    clock_instant("updated_at"),
)
"""Rules of automatic purchases, one per organisation."""

stripe_payments = Table(
    "stripe_payments",
    metadata,
    Column("payment_intent", Text, primary_key=True),
    tenant(),
    string("purpose"),
    Column("topup_id", Uuid),
    Column("invoice_id", Uuid),
    count("cents"),
    Column("charge_id", Text),
    clock_instant("paid_at"),
    Index("ix_stripe_payments_tenant_id", "tenant_id", "paid_at"),
)
"""Received payments of purchases and invoices."""

stripe_refunds = Table(
    "stripe_refunds",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    string("payment_intent"),
    Column("lot_id", Uuid),
    Column("credit_note_id", Uuid),
    count("cents"),
    string("status"),
    Column("refund_id", Text),
    string("reason"),
    Column("error", Text),
    string("created_by"),
    clock_instant("created_at"),
    instant("ended_at", nullable=True),
    UniqueConstraint("refund_id"),
    Index("ix_stripe_refunds_tenant_id", "tenant_id", "created_at"),
)
"""Refunds: requested here, or made in Stripe's dashboard."""

stripe_disputes = Table(
    "stripe_disputes",
    metadata,
    Column("id", Text, primary_key=True),
    tenant(),
    string("payment_intent"),
    count("cents"),
    count("withdrawn_cents"),
    count("returned_cents"),
    count("fee_cents"),
    pico("clawed_back", zero=True),
    string("reason"),
    string("status"),
    instant("evidence_due_at", nullable=True),
    instant("opened_at"),
    clock_instant("updated_at"),
    Index("ix_stripe_disputes_tenant_id", "tenant_id", "opened_at"),
)
"""Disputes: the amounts that the bank withdrew and returned, and the credit clawed back."""

stripe_cash = Table(
    "stripe_cash",
    metadata,
    Column("txn_id", Text, primary_key=True),
    tenant(),
    string("kind"),
    string("object_id"),
    count("cents"),
    count("fee_cents"),
    instant("at"),
    clock_instant("booked_at"),
    Index("ix_stripe_cash_at", "at"),
)
"""Stripe's balance transactions that are in our ledger; append-only."""

stripe_events = Table(
    "stripe_events",
    metadata,
    Column("id", Text, primary_key=True),
    string("type"),
    string("object_kind"),
    string("object_id"),
    instant("created_at"),
    clock_instant("received_at"),
    string("found_by"),
    Column("outcome", Text),
    instant("applied_at", nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    clock_instant("next_at"),
    Column("error", Text),
    Index("ix_stripe_events_open", "next_at", postgresql_where=text("applied_at IS NULL")),
    Index("ix_stripe_events_received_at", "received_at"),
    Index("ix_stripe_events_object_id", "object_id"),
)
"""Stripe's events, each once; rows that are not applied are the queue."""

stripe_pushes = Table(
    "stripe_pushes",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("object_id", Uuid, primary_key=True),
    uid("tenant_id"),
    string("status"),
    Column("error", Text),
    clock_instant("updated_at"),
)
"""The status of invoices and credit notes sent to Stripe; `blocked` needs a person."""

stripe_meter_events = Table(
    "stripe_meter_events",
    metadata,
    Column("identifier", Text, primary_key=True),
    tenant(),
    instant("hour"),
    pico("tokens"),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    clock_instant("created_at"),
    instant("tried_at", nullable=True),
    instant("sent_at", nullable=True),
    Index("ix_stripe_meter_events_tenant_id", "tenant_id", "hour"),
    Index("ix_stripe_meter_events_hour", "hour", postgresql_using="brin"),
    Index("ix_stripe_meter_events_open", "created_at", postgresql_where=text("state = 'pending'")),
)
"""Events of the billing meter: one row per tenant, hour and change of the hour's tokens."""

stripe_state = Table(
    "stripe_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default=text("1")),
    instant("used_since", nullable=True),
    instant("events_seen_at", nullable=True),
    Column("meter_id", Text),
)
"""One row: since when Stripe is used, up to when its events are recorded, and the meter's id."""

stripe_reconciliations = Table(
    "stripe_reconciliations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("month", Date, nullable=False),
    instant("began_at"),
    clock_instant("at"),
    Column("ok", Boolean, nullable=False),
    Column("facts", JSONB, nullable=False),
    Index("ix_stripe_reconciliations_month_at", "month", "at"),
)
"""Results of comparisons of a month with Stripe."""

stripe_compared = Table(
    "stripe_compared",
    metadata,
    Column("month", Date, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("object_id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("figures", ARRAY(BigInteger), nullable=False),
    instant("compared_at"),
)
"""What was found equal to Stripe: an invoice, the cash movements of the month, or a customer's tokens, with the SHA-256
of our facts and Stripe's figures. It is compared again when our facts or Stripe's object have changed since."""
