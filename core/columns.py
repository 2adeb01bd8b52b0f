"""Constructors of columns that the tables of several packages share, for SQLAlchemy Core."""

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Numeric, Text, Uuid, func, text


def pico(name: str, *, nullable: bool = False, zero: bool = False) -> "Column[object]":
    """An amount in picodollars or a sum of tokens, NUMERIC(38,0). `zero` makes 0 the default."""
    return Column(name, Numeric(38, 0), nullable=nullable, server_default=text("0") if zero else None)


def count(name: str) -> "Column[int]":
    """A whole number up to 2^63, NOT NULL."""
    return Column(name, BigInteger, nullable=False)


def uid(name: str) -> "Column[object]":
    """A UUID without a foreign key, NOT NULL."""
    return Column(name, Uuid, nullable=False)


def string(name: str) -> "Column[str]":
    """Text, NOT NULL."""
    return Column(name, Text, nullable=False)


def instant(name: str, *, nullable: bool = False, now: bool = False) -> "Column[object]":
    """A timestamptz. `now` makes the start of the transaction the default."""
    default = func.now() if now else None
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def clock_instant(name: str) -> "Column[object]":
    """A timestamptz, NOT NULL, by default the moment of the insert (not the start of the transaction)."""
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


def tenant(*, nullable: bool = False) -> "Column[object]":
    """`tenant_id` with a foreign key to tenants."""
    return Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=nullable)
