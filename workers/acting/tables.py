"""Tables of acting: the plan as the scheduler stored it last, the platform's switch, and every act."""

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Identity, Index, Table
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
