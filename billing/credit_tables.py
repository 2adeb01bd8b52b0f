"""Tables of credit, contracts and corrections, mirrored from migrations 0003 and 0007. The migrations own the DDL."""

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Identity,
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
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE

from core.db import metadata


def _pico(name: str, *, nullable: bool = False, zero: bool = False) -> "Column[object]":
    return Column(name, Numeric(38, 0), nullable=nullable, server_default=text("0") if zero else None)


def _words(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False)


def _now(name: str) -> "Column[object]":
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


def _instant(name: str) -> "Column[object]":
    return Column(name, DateTime(timezone=True))


def _tenant() -> "Column[object]":
    return Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False)


credit_grants = Table(
    "credit_grants",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _pico("amount"),
    _words("reason"),
    _words("created_by"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    _words("kind"),
    Column("priority", SmallInteger, nullable=False),
    _instant("expires_at"),
    _pico("remaining"),
    _instant("ended_at"),
    Index("ix_credit_grants_tenant_id", "tenant_id"),
    Index("ix_credit_grants_open", "tenant_id", postgresql_where=text("remaining > 0")),
    Index(
        "ix_credit_grants_due",
        "expires_at",
        postgresql_where=text("remaining > 0 AND expires_at IS NOT NULL"),
    ),
)
"""Credit lots of prepaid customers: what was given, and what is left of it after the last allocation."""

grant_draws = Table(
    "grant_draws",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("grant_id", Uuid, ForeignKey("credit_grants.id"), nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    _words("kind"),
    _pico("amount"),
    Column("source_id", Uuid),
    _now("at"),
    UniqueConstraint("source_id", "kind"),
    Index("ix_grant_draws_grant_id", "grant_id"),
)
"""What was taken from a lot and why; append-only."""

contracts = Table(
    "contracts",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("effective", TSTZRANGE, nullable=False),
    Column("discount_bps", Integer, nullable=False, server_default=text("0")),
    _pico("commit_monthly", nullable=True),
    Column("payment_days", Integer, nullable=False),
    Column("sla", JSONB),
    _words("reason"),
    _words("created_by"),
    _now("created_at"),
    Column("ended_by", Text),
    _instant("withdrawn_at"),
    Index("ix_contracts_tenant_id", "tenant_id"),
)
"""Discount, committed spend, payment terms and service level of a customer, by the time they hold."""

unpriced_refusals = Table(
    "unpriced_refusals",
    metadata,
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("first_at", DateTime(timezone=True), nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)
"""Requests refused because a model had no price."""

approvals = Table(
    "approvals",
    metadata,
    Column("id", Uuid, primary_key=True),
    _words("kind"),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    Column("facts", JSONB, nullable=False),
    _words("requested_by"),
    _now("requested_at"),
    Column("decided_by", Text),
    _instant("decided_at"),
    Column("decision", Text),
    Index("ix_approvals_open", "requested_at", postgresql_where=text("decision IS NULL")),
)
"""What one person asks for and another must agree to."""

adjustments = Table(
    "adjustments",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _pico("amount"),
    _pico("uncollectible", zero=True),
    _words("reason"),
    Column("corrects", Date),
    Column("facts", JSONB),
    _words("created_by"),
    Column("approved_by", Text),
    _now("created_at"),
    Index("ix_adjustments_tenant_id_created_at", "tenant_id", "created_at"),
    Index("ix_adjustments_created_at", "created_at"),
)
"""Dated corrections of what a customer owes; a positive amount is in the customer's favour; append-only."""
