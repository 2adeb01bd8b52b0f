"""Tables of price books and contracts, for SQLAlchemy Core. The migrations own the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE

from core.columns import clock_instant, count, instant, pico, string, tenant
from core.db import metadata

price_versions = Table(
    "price_versions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    string("model"),
    string("tier"),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    count("input"),
    count("cached_input"),
    count("output"),
    count("reasoning"),
    Column("effective", TSTZRANGE, nullable=False),
    instant("created_at", now=True),
    string("created_by"),
    Column(
        "book",
        Text,
        Computed("model || ' ' || tier || ' ' || coalesce(tenant_id::text, 'list')", persisted=True),
        nullable=False,
    ),
    Column("contract_id", Uuid, ForeignKey("contracts.id")),
    Column("list_version", BigInteger, ForeignKey("price_versions.id")),
    instant("withdrawn_at", nullable=True),
    Column("ended_by", Text),
    Index("ix_price_versions_model_tier", "model", "tier"),
    Index("ix_price_versions_contract_id", "contract_id", postgresql_where=text("contract_id IS NOT NULL")),
)
"""Price versions in picodollars per token: list prices (no tenant) and customers' prices; no overlap, no change."""

contracts = Table(
    "contracts",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    Column("effective", TSTZRANGE, nullable=False),
    Column("discount_bps", Integer, nullable=False, server_default=text("0")),
    pico("commit_monthly", nullable=True),
    Column("payment_days", Integer, nullable=False),
    Column("automatic_payment", Boolean, nullable=False, server_default=text("false")),
    Column("sla", JSONB),
    string("reason"),
    string("created_by"),
    clock_instant("created_at"),
    Column("ended_by", Text),
    instant("withdrawn_at", nullable=True),
    Index("ix_contracts_tenant_id", "tenant_id"),
)
"""Discount, committed spend, payment terms and service level of a customer, with the validity period."""
