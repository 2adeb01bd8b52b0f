"""Tables of usage sums and archives, for SQLAlchemy Core. The migrations own the DDL."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Identity,
    Index,
    LargeBinary,
    Numeric,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from core.columns import count, instant, pico, string
from core.db import metadata

dirty_hours = Table(
    "dirty_hours",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    instant("hour"),
    Index("ix_dirty_hours_hour", "hour"),
)
"""Hours whose rollup is missing or stale: a row per settled batch and hour, deleted by the next rollup of the hour."""


def _sums(period: str) -> tuple[Column[Any], ...]:
    """The start of a period and the dimensions of its usage (the primary key), and the sums."""
    return (
        Column(period, DateTime(timezone=True), primary_key=True),
        *(Column(name, Uuid, primary_key=True) for name in ("tenant_id", "project_id", "key_id")),
        *(Column(name, Text, primary_key=True) for name in ("model", "tier", "region")),
        Column("price_version", BigInteger, primary_key=True, autoincrement=False),
        Column("list_price_version", BigInteger, primary_key=True, autoincrement=False),
        Column("simulated", Boolean, primary_key=True),
        Column("gpu", Text, primary_key=True, server_default=""),
        count("requests"),
        Column("outcomes", ARRAY(BigInteger), nullable=False),
        pico("input_tokens"),
        pico("cached_input_tokens"),
        pico("output_tokens"),
        pico("reasoning_tokens"),
        pico("unbilled_input_tokens"),
        pico("unbilled_output_tokens"),
        pico("cost"),
        pico("list_cost"),
        pico("busy_us"),
    )


usage_hours = Table("usage_hours", metadata, *_sums("hour"))
"""Usage summed per UTC hour."""

usage_days = Table(
    "usage_days",
    metadata,
    *_sums("day"),
    *(
        Column(name, Numeric(38, 0), nullable=False, server_default="0")
        for name in ("gpu_input_cost", "gpu_output_cost", "gpu_us", "machine_us")
    ),
)
"""Usage summed per UTC day, from the hours, with its share of the host cost (billing/usage/gpu_shares.py)."""

usage_day_state = Table(
    "usage_day_state",
    metadata,
    Column("day", DateTime(timezone=True), primary_key=True),
    Column("whole", Boolean, nullable=False),
    Column("shared_by", LargeBinary),
    Column("verified", Boolean, nullable=False, server_default=text("false")),
    Column("compared_at", DateTime(timezone=True)),
    Column("differs_since", DateTime(timezone=True)),
    Column("difference", Text),
    Index("ix_usage_day_state_due", "day", postgresql_where=text("NOT whole")),
)
"""Whether a day's sums equal its hours (`whole`), the digest of its host costs, and whether its hours were found equal
to its rows since they were summed (`verified`); no row: no hour is rolled up. `difference` says how rows and hours
differed at the last comparison, null = not."""

usage_archives = Table(
    "usage_archives",
    metadata,
    Column("month", Date, primary_key=True),
    string("file"),
    count("rows"),
    count("bytes"),
    pico("cost"),
    Column("sha256", LargeBinary, nullable=False),
    instant("archived_at", now=True),
    instant("dropped_at", nullable=True),
)
"""Months of usage that are archived in Parquet files (billing/usage/archive.py)."""
