"""Tables of billing, mirrored from the migrations for SQLAlchemy Core. The migrations own the DDL.

Amounts are NUMERIC(38,0) picodollars. `holds` and `usage_rows` are partitioned by month on the UUIDv7 request id.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Date,
    DateTime,
    Enum,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    column,
    func,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INT8MULTIRANGE, JSONB, TSTZRANGE

from billing.records import Outcome
from core.db import metadata

_HOLD_STATE = Enum("open", "settled", "voided", "expired", name="hold_state")
_OUTCOME = Enum(*(outcome.value for outcome in Outcome), name="usage_outcome")
_DIMENSIONS = (
    "tenant_id", "project_id", "key_id", "model", "tier", "region", "price_version", "list_price_version", "simulated",
)  # fmt: skip


def _pico(name: str, *, nullable: bool = False, zero: bool = False) -> "Column[object]":
    """An amount in picodollars (or a sum of tokens, which is as exact)."""
    default = text("0") if zero else None
    return Column(name, Numeric(38, 0), nullable=nullable, server_default=default)


def _count(name: str) -> "Column[int]":
    return Column(name, BigInteger, nullable=False)


def _id(name: str) -> "Column[object]":
    return Column(name, Uuid, nullable=False)


def _words(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False)


def _instant(name: str, *, nullable: bool = False, now: bool = False) -> "Column[object]":
    return Column(
        name, DateTime(timezone=True), nullable=nullable, server_default=func.now() if now else None
    )


price_versions = Table(
    "price_versions",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _words("model"),
    _words("tier"),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    _count("input"),
    _count("cached_input"),
    _count("output"),
    _count("reasoning"),
    Column("effective", TSTZRANGE, nullable=False),
    _instant("created_at", now=True),
    _words("created_by"),
    Column(
        "book",
        Text,
        Computed("model || ' ' || tier || ' ' || coalesce(tenant_id::text, 'list')", persisted=True),
        nullable=False,
    ),
    Column("contract_id", Uuid, ForeignKey("contracts.id")),
    Column("list_version", BigInteger, ForeignKey("price_versions.id")),
    _instant("withdrawn_at", nullable=True),
    Column("ended_by", Text),
    Index("ix_price_versions_model_tier", "model", "tier"),
    Index("ix_price_versions_contract_id", "contract_id", postgresql_where=text("contract_id IS NOT NULL")),
)
"""Price books in picodollars a token: list prices (no tenant) and contract prices, never overlapping, never changed."""

billing_accounts = Table(
    "billing_accounts",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    _words("mode"),
    _pico("balance", zero=True),
    _pico("owed", zero=True),
    _pico("held", zero=True),
    Column("open_holds", Integer, nullable=False, server_default=text("0")),
    _pico("budget", nullable=True),
    _pico("spent_month", zero=True),
    Column(
        "month",
        Date,
        nullable=False,
        server_default=text("(date_trunc('month', (now() AT TIME ZONE 'UTC')))::date"),
    ),
    _pico("credit_limit", nullable=True),
    _instant("created_at", now=True),
    CheckConstraint("balance >= 0", name="balance"),
)
"""One row per tenant, the point where concurrent requests meet: prepaid `balance`, postpaid `owed`, money held."""

holds = Table(
    "holds",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    _id("tenant_id"),
    _id("project_id"),
    _id("key_id"),
    _words("model"),
    _words("incarnation"),
    _count("price_version"),
    _count("output_tokens"),
    _pico("amount"),
    Column("state", _HOLD_STATE, nullable=False, server_default="open"),
    _instant("admitted_at"),
    _instant("renewed_at"),
    _instant("closed_at", nullable=True),
    Index("ix_holds_open", "tenant_id", postgresql_where=text("state = 'open'")),
    postgresql_partition_by="RANGE (request_id)",
)
"""Money reserved for a request; mutable, outside the ledger, resolved once."""

usage_dims = Table(
    "usage_dims",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    _id("tenant_id"),
    _id("project_id"),
    _id("key_id"),
    _words("model"),
    _words("tier"),
    _words("region"),
    _count("price_version"),
    _count("list_price_version"),
    Column("simulated", Boolean, nullable=False),
    UniqueConstraint(*_DIMENSIONS, name="uq_usage_dims_facts"),
)
"""What usage rows share, said once: who used what at which prices."""

usage_engines = Table(
    "usage_engines",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    _words("replica_id"),
    _words("boot_id"),
    UniqueConstraint("replica_id", "boot_id"),
)
"""Engine incarnations that answered requests."""

usage_rows = Table(
    "usage_rows",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    _instant("ended_at"),
    _count("duration_us"),
    _count("queue_us"),
    _count("ttft_us"),
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
    _pico("cost"),
    _pico("discount"),
    Index(
        "ix_usage_rows_ended_at",
        "ended_at",
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    ),
    Index("ix_usage_rows_dim_id", "dim_id"),
    postgresql_partition_by="RANGE (request_id)",
)
"""One row per admitted request, written once, under 200 bytes with its indexes. Read it through the view `usage`."""

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
"""The view over usage_rows with every column of a usage row."""

usage_late = Table(
    "usage_late",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    _instant("ended_at"),
)
"""The true end of usage that came after its month was closed, or after 48 h, and is dated to its arrival."""

usage_far = Table(
    "usage_far",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    _instant("claimed_at"),
    _instant("settled_at"),
)
"""Instants of rows that were settled more than 35 minutes from their end."""

usage_archives = Table(
    "usage_archives",
    metadata,
    Column("month", Date, primary_key=True),
    _words("file"),
    _count("rows"),
    _count("bytes"),
    _pico("cost"),
    Column("sha256", LargeBinary, nullable=False),
    _instant("archived_at", now=True),
    _instant("dropped_at", nullable=True),
)
"""Months of usage that lie in Parquet too (billing/archive.py)."""

settle_errors = Table(
    "settle_errors",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    _words("reason"),
    Column("record", LargeBinary, nullable=False),
    _instant("created_at", now=True),
)
"""Records that could not be billed, set aside with the reason."""

usage_touched = Table(
    "usage_touched",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _instant("hour"),
    Index("ix_usage_touched_hour", "hour"),
)
"""Hours whose rollup is missing or stale: one mark per settled batch, taken away by the rollup that covers it."""

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
    _count("requests"),
    Column("outcomes", ARRAY(BigInteger), nullable=False),
    _pico("input_tokens"),
    _pico("cached_input_tokens"),
    _pico("output_tokens"),
    _pico("reasoning_tokens"),
    _pico("unbilled_input_tokens"),
    _pico("unbilled_output_tokens"),
    _pico("cost"),
    _pico("list_cost"),
    _pico("busy_us"),
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
    _count("requests"),
    Column("outcomes", ARRAY(BigInteger), nullable=False),
    _pico("input_tokens"),
    _pico("cached_input_tokens"),
    _pico("output_tokens"),
    _pico("reasoning_tokens"),
    _pico("unbilled_input_tokens"),
    _pico("unbilled_output_tokens"),
    _pico("cost"),
    _pico("list_cost"),
    _pico("busy_us"),
    *(
        Column(name, Numeric(38, 0), nullable=False, server_default="0")
        for name in ("gpu_input_cost", "gpu_output_cost", "gpu_us", "machine_us")
    ),
)
"""Usage summed per UTC day, from the hours, with its part of what the hosts cost (billing/economics/gpu_shares.py)."""

usage_day_state = Table(
    "usage_day_state",
    metadata,
    Column("day", DateTime(timezone=True), primary_key=True),
    Column("whole", Boolean, nullable=False),
    Column("shared_by", LargeBinary),
    Index("ix_usage_day_state_due", "day", postgresql_where=text("NOT whole")),
)
"""Whether a day's sums equal its rolled hours; no row: none is rolled."""

ledger_accounts = Table(
    "ledger_accounts",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    _words("code"),
    UniqueConstraint("tenant_id", "code"),
)
"""The chart of accounts, per tenant (billing/README.md)."""

ledger_transfers = Table(
    "ledger_transfers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    _id("tenant_id"),
    _words("kind"),
    _count("debit_account"),
    _count("credit_account"),
    _pico("amount"),
    _id("source_id"),
    Column("effective_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    UniqueConstraint("source_id", "kind"),
    Index("ix_ledger_transfers_tenant_id_at", "tenant_id", "at"),
    Index("ix_ledger_transfers_effective_at", "effective_at", postgresql_using="brin"),
)
"""Double entry, append-only: one transfer debits one account and credits another by the same amount."""

billing_periods = Table(
    "billing_periods",
    metadata,
    Column("month", Date, primary_key=True),
    Column(
        "starts_at",
        DateTime(timezone=True),
        Computed("(month)::timestamp without time zone AT TIME ZONE 'UTC'", persisted=True),
        nullable=False,
    ),
    Column(
        "ends_at",
        DateTime(timezone=True),
        Computed("(month + '1 mon'::interval) AT TIME ZONE 'UTC'", persisted=True),
        nullable=False,
    ),
    Column("status", Text, nullable=False, server_default="open"),
    _instant("closed_at", nullable=True),
    Column("closed_by", Text),
    Column("checklist", JSONB),
)
"""Accounting months; a closed one never changes."""

ledger_unsealed = Table(
    "ledger_unsealed",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("transfers", INT8MULTIRANGE, nullable=False),
)
"""Transfers that wait for the sealer, a row per statement that booked; filled by a trigger."""

ledger_seals = Table(
    "ledger_seals",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("transfer_id", BigInteger),
    Column("hash", LargeBinary, nullable=False),
    Column("transfers", INT8MULTIRANGE),
    UniqueConstraint("transfer_id"),
)
"""The hash chain over the transfers: a link covers a set of them (the earliest links one each)."""

reaper_state = Table(
    "reaper_state",
    metadata,
    Column("id", SmallInteger, primary_key=True, server_default=text("1"), autoincrement=False),
    _instant("seen_at"),
    _instant("postmaster_start"),
    _instant("paused_until"),
)
"""When the reaper last looked, and until when it waits for live processes to renew their holds."""
