"""Tables of models, hosts and host-hours, for SQLAlchemy Core. migrations/ owns the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
)

from core.db import metadata

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("status", Text, nullable=False, server_default="active"),
    Column("alias_of", Text, ForeignKey("models.name")),
    Column("note", Text),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("status IN ('active', 'deprecated', 'retired')", name="status"),
    CheckConstraint("alias_of <> name", name="alias"),
)
"""Models that customers may ask for. An alias stands for another model and never for another alias."""

hosts = Table(
    "hosts",
    metadata,
    Column("host_id", Text, primary_key=True),
    Column("host_kind", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("first_seen", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("last_seen", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
"""Every host that has ever sent a heartbeat."""

host_seconds = Table(
    "host_seconds",
    metadata,
    Column("host_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("state", Text, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    PrimaryKeyConstraint("host_id", "boot_id", "hour", "state"),
    CheckConstraint("seconds >= 0", name="seconds"),
    Index("ix_host_seconds_hour", "hour"),
)
"""Seconds a host spent in each state, per UTC hour and run of its agent's accounting."""

model_seconds = Table(
    "model_seconds",
    metadata,
    Column("host_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("hour", DateTime(timezone=True), nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    PrimaryKeyConstraint("host_id", "boot_id", "hour", "model", "state"),
    CheckConstraint("seconds >= 0", name="seconds"),
    Index("ix_model_seconds_hour", "hour"),
)
"""The same by model: replica seconds weighted by the replica's share of its host."""

host_prices = Table(
    "host_prices",
    metadata,
    Column("host_kind", Text, nullable=False),
    Column("usd_pico_per_hour", Numeric(38, 0), nullable=False),
    Column("effective_from", DateTime(timezone=True), nullable=False),
    Column("source", Text, nullable=False),
    PrimaryKeyConstraint("host_kind", "effective_from"),
    CheckConstraint("usd_pico_per_hour >= 0", name="price"),
)
"""What a host costs per hour from an instant on, in picodollars."""

engine_counters = Table(
    "engine_counters",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("replica_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("first_seen", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Column("last_seen", DateTime(timezone=True), nullable=False),
    Column("scraped_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("generation_tokens", BigInteger, nullable=False),
    Column("cached_prompt_tokens", BigInteger, nullable=False),
    Column("warmup_prompt_tokens", BigInteger, nullable=False),
    Column("warmup_generation_tokens", BigInteger, nullable=False),
    Index("ix_engine_counters_last_seen", "last_seen"),
)
"""Cumulative token counters of each engine incarnation, as last scraped; they never go down."""

engine_cuts = Table(
    "engine_cuts",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("cut_at", DateTime(timezone=True), primary_key=True),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("generation_tokens", BigInteger, nullable=False),
)
"""Instants at which an engine stood still with nothing placed on it, with its counters."""
