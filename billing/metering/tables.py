"""Tables of holds and usage rows, for SQLAlchemy Core; the migrations own the DDL.

`holds` and `usage_rows` are partitioned by month on the UUIDv7 request id.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    column,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from billing.metering.records import Outcome
from core.columns import count, instant, pico, string, tenant, uid
from core.db import metadata

_HOLD_STATE = Enum("open", "settled", "voided", "expired", name="hold_state")
_OUTCOME = Enum(*(outcome.value for outcome in Outcome), name="usage_outcome")
_DIMENSIONS = (
    "tenant_id", "project_id", "key_id", "model", "tier", "region", "price_version", "list_price_version", "simulated",
    "gpu",
)  # fmt: skip


holds = Table(
    "holds",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    uid("tenant_id"),
    uid("project_id"),
    uid("key_id"),
    string("model"),
    string("incarnation"),
    count("price_version"),
    count("output_tokens"),
    pico("amount"),
    Column("state", _HOLD_STATE, nullable=False, server_default="open"),
    instant("admitted_at"),
    instant("renewed_at"),
    instant("closed_at", nullable=True),
    Column("labels", Text),
    Index("ix_holds_open", "tenant_id", postgresql_where=text("state = 'open'")),
    postgresql_partition_by="RANGE (request_id)",
)
"""Money reserved for a request. Mutable and not part of the ledger; each hold is resolved once. `labels`: end user and
tags, one a line (see penstock_label_scopes)."""

scope_budgets = Table(
    "scope_budgets",
    metadata,
    Column("scope_id", Uuid, primary_key=True),
    tenant(),
    string("scope"),
    pico("amount", nullable=True),
    pico("held", zero=True),
    pico("spent_month", zero=True),
    Column("month", Date, nullable=False),
    Column("label", Text),
    Column("stops", Boolean, nullable=False, server_default=text("true")),
    Index(None, "tenant_id"),
    Index("ix_scope_budgets_counted", "tenant_id", "month", postgresql_where=text("amount IS NULL")),
)
"""Monthly budgets of projects, keys, end users and tags, with their open holds and what they have spent. Locked by the
account's row. Without an amount: an end user who is counted under the budget of every end user."""

usage_dims = Table(
    "usage_dims",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    uid("tenant_id"),
    uid("project_id"),
    uid("key_id"),
    string("model"),
    string("tier"),
    string("region"),
    count("price_version"),
    count("list_price_version"),
    Column("simulated", Boolean, nullable=False),
    Column("gpu", Text, nullable=False, server_default=""),
    UniqueConstraint(*_DIMENSIONS, name="uq_usage_dims_facts"),
)
"""Dimensions that usage rows share: customer, model, tier, region, price versions, class of GPU (empty = none, or not
known)."""

usage_engines = Table(
    "usage_engines",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    string("replica_id"),
    string("boot_id"),
    UniqueConstraint("replica_id", "boot_id"),
)
"""Engine incarnations that answered requests."""

usage_rows = Table(
    "usage_rows",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    instant("ended_at"),
    count("duration_us"),
    count("queue_us"),
    count("ttft_us"),
    Column("dim_id", Integer, nullable=False),
    Column("engine_id", Integer, nullable=False),
    Column("lag_us", Integer, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("unbilled_input_tokens", Integer, nullable=False),
    Column("unbilled_output_tokens", Integer, nullable=False),
    Column("outcome", _OUTCOME, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("late", Boolean, nullable=False),
    pico("cost"),
    pico("discount"),
    Index(
        "ix_usage_rows_ended_at",
        "ended_at",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
    Index("ix_usage_rows_dim_id", "dim_id"),
    postgresql_partition_by="RANGE (request_id)",
)
"""One row per admitted request, immutable, under 200 bytes with its indexes; read it through the view `usage`."""

usage = table(
    "usage",
    *(
        column(name)
        for name in (
            "request_id", *_DIMENSIONS, "replica_id", "boot_id", "admitted_at", "ended_at", "settled_at", "outcome",
            "attempts", "stream", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens",
            "unbilled_input_tokens", "unbilled_output_tokens", "cost", "list_cost", "queue_us", "ttft_us",
            "duration_us",
        )
    ),
)  # fmt: skip
"""The view that joins usage_rows with its dimensions and engines."""

usage_late = Table(
    "usage_late",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    instant("ended_at"),
)
"""The true end of usage that arrived after its month was closed, or after 48 h, and is dated to its arrival."""

usage_far = Table(
    "usage_far",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    instant("claimed_at"),
    instant("settled_at"),
)
"""Instants of rows whose settlement is more than 35 minutes from their end, which `lag_us` cannot express."""

settle_errors = Table(
    "settle_errors",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    string("reason"),
    Column("record", LargeBinary, nullable=False),
    instant("created_at", now=True),
)
"""Records that could not be settled, with the reason."""

reaper_state = Table(
    "reaper_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, server_default=text("1"), autoincrement=False),
    instant("seen_at"),
    instant("postmaster_start"),
    instant("paused_until"),
)
"""When the reaper last ran, and until when it waits for live processes to renew their holds."""

label_values = Table(
    "label_values",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    tenant(),
    Column("month", Date, nullable=False),
    string("name"),
    string("value"),
    UniqueConstraint("tenant_id", "month", "name", "value", name="uq_label_values_value"),
)
"""End users (the name `user`) and tags of an organisation's requests that were settled in a month, capped in number."""

usage_labels = Table(
    "usage_labels",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    tenant(),
    instant("ended_at"),
    Column("user_value", BigInteger),
    Column("tag_values", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    Index("ix_usage_labels_ended_at", "tenant_id", "ended_at"),
)
"""End user and tags of the usage rows whose request named any, as ids of label_values."""

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
"""Counts of requests refused because their model had no price."""
