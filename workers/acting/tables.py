"""Tables of acting: the plan as the scheduler stored it last, the platform's switch, every act, contracts for hosts."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Identity, Index, Integer, Table, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from core.columns import clock_instant, count, instant, pico, string
from core.db import metadata

autoscaler_plan = Table(
    "autoscaler_plan",
    metadata,
    Column("one", Boolean, primary_key=True, server_default="true"),
    count("term"),
    instant("at"),
    Column("plan", JSONB, nullable=False),
    CheckConstraint("one", name="one"),
)
"""One row: the plan of the scheduler that serves (workers.acting.plan), with the term of its lease."""

acting_rules = Table(
    "acting_rules",
    metadata,
    Column("one", Boolean, primary_key=True, server_default="true"),
    string("mode"),
    pico("budget_usd_pico_per_month", nullable=True),
    CheckConstraint("one", name="one"),
    CheckConstraint("mode IN ('off', 'dry-run', 'on')", name="mode"),
    CheckConstraint("budget_usd_pico_per_month >= 0", name="budget"),
)
"""One row, or none while the switch was never set (off): whether plans are acted on, and the most picodollars that
hosts of all models may cost in a UTC month (NULL = no limit)."""

pool_acts = Table(
    "pool_acts",
    metadata,
    Column("act_id", BigInteger, Identity(always=True), primary_key=True),
    clock_instant("at"),
    string("model"),
    string("target"),
    string("act"),
    string("reason"),
    string("mode"),
    string("result"),
    string("detail"),
    CheckConstraint("result IN ('done', 'failed', 'refused', 'dry-run')", name="result"),
    Index("ix_pool_acts_at", "at"),
)
"""What was done for the autoscaler's plan, would have been done, or was refused, with the reason."""

host_contracts = Table(
    "host_contracts",
    metadata,
    Column("contract_id", Uuid, primary_key=True),
    string("kind"),
    string("region"),
    Column("count", Integer, nullable=False),
    instant("starts_at"),
    instant("ends_at", nullable=True),
    pico("usd_pico_per_hour"),
    string("source"),
    clock_instant("created_at"),
    CheckConstraint("count BETWEEN 1 AND 1024", name="count"),
    CheckConstraint("usd_pico_per_hour >= 0", name="price"),
    CheckConstraint("region = lower(region)", name="region"),
    CheckConstraint("ends_at >= starts_at", name="term"),
    CheckConstraint(
        "starts_at = date_trunc('hour', starts_at, 'UTC') AND ends_at = date_trunc('hour', ends_at, 'UTC')",
        name="hours",
    ),
)
"""Hosts of a kind that are paid for during a term (workers/acting/contracts.py). Rows are costs: only ends change."""
