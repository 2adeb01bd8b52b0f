"""Tables of usage sums and archives, for SQLAlchemy Core. The migrations own the DDL."""

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

from core.columns import count, instant, pico, words
from core.db import metadata

dirty_hours = Table(
    "dirty_hours",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    instant("hour"),
    Index("ix_dirty_hours_hour", "hour"),
)
"""Hours whose rollup is missing or stale: a row per settled batch and hour, deleted by the next rollup of the hour."""

usage_hours = Table(
    "usage_hours",
    metadata,
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("tenant_id", Uuid, primary_key=True),
    Column("project_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("region", Text, primary_key=True),
    Column("price_version", BigInteger, primary_key=True, autoincrement=False),
    Column("list_price_version", BigInteger, primary_key=True, autoincrement=False),
    Column("simulated", Boolean, primary_key=True),
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
"""Usage summed per UTC hour."""

usage_days = Table(
    "usage_days",
    metadata,
    Column("day", DateTime(timezone=True), primary_key=True),
    Column("tenant_id", Uuid, primary_key=True),
    Column("project_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("region", Text, primary_key=True),
    Column("price_version", BigInteger, primary_key=True, autoincrement=False),
    Column("list_price_version", BigInteger, primary_key=True, autoincrement=False),
    Column("simulated", Boolean, primary_key=True),
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
    Index("ix_usage_day_state_due", "day", postgresql_where=text("NOT whole")),
)
"""Whether a day's sums equal its hours (`whole`), and the digest of its host costs; no row: no hour is rolled up."""

usage_archives = Table(
    "usage_archives",
    metadata,
    Column("month", Date, primary_key=True),
    words("file"),
    count("rows"),
    count("bytes"),
    pico("cost"),
    Column("sha256", LargeBinary, nullable=False),
    instant("archived_at", now=True),
    instant("dropped_at", nullable=True),
)
"""Months of usage that are archived in Parquet files (billing/usage/archive.py)."""
