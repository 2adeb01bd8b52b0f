"""Tables of the ledger, credit lots and corrections, for SQLAlchemy Core. The migrations own the DDL."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Date,
    DateTime,
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
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, JSONB

from core.columns import clock_instant, count, instant, pico, string, tenant, uid
from core.db import metadata

billing_accounts = Table(
    "billing_accounts",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    string("mode"),
    pico("balance", zero=True),
    pico("owed", zero=True),
    pico("invoiced", zero=True),
    pico("held", zero=True),
    Column("open_holds", Integer, nullable=False, server_default=text("0")),
    pico("budget", nullable=True),
    pico("spent_month", zero=True),
    Column(
        "month",
        Date,
        nullable=False,
        server_default=text("(date_trunc('month', (now() AT TIME ZONE 'UTC')))::date"),
    ),
    pico("credit_limit", nullable=True),
    instant("created_at", now=True),
    Column("has_scope_budgets", Boolean, nullable=False, server_default=text("false")),
    Column("has_label_budgets", Boolean, nullable=False, server_default=text("false")),
    pico("end_user_budget", nullable=True),
    CheckConstraint("balance >= 0", name="balance"),
)
"""One row per tenant, locked by every booking: prepaid `balance`, postpaid `owed` and `invoiced`, money held."""

ledger_accounts = Table(
    "ledger_accounts",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    string("code"),
    UniqueConstraint("tenant_id", "code"),
)
"""The chart of accounts, per tenant (billing/README.md)."""

ledger_transfers = Table(
    "ledger_transfers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    uid("tenant_id"),
    string("kind"),
    count("debit_account"),
    count("credit_account"),
    pico("amount"),
    uid("source_id"),
    Column("effective_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    UniqueConstraint("source_id", "kind"),
    Index("ix_ledger_transfers_tenant_id_at", "tenant_id", "at"),
    Index("ix_ledger_transfers_effective_at", "effective_at", postgresql_using="brin"),
    Index("ix_ledger_transfers_rare", "kind", "effective_at", postgresql_where=text("kind <> 'usage'::text")),
)
"""Append-only double entry: a transfer debits one account and credits another by the same amount."""

ledger_unsealed = Table(
    "ledger_unsealed",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("transfers", INT8MULTIRANGE, nullable=False),
)
"""Transfers not sealed yet, one row per booking statement; filled by a trigger."""

ledger_seals = Table(
    "ledger_seals",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("transfer_id", BigInteger),
    Column("hash", LargeBinary, nullable=False),
    Column("transfers", INT8MULTIRANGE),
    Column("audit_seq", BigInteger),
    UniqueConstraint("transfer_id"),
)
"""The hash chain over the transfers; a link covers a set of them, the earliest links one each. A link with `audit_seq`
covers no transfer, but the audit log up to the row of this number."""

audit_chain = Table(
    "audit_chain",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    uid("entry_id"),
    Column("hash", LargeBinary, nullable=False),
    UniqueConstraint("entry_id"),
)
"""Number and hash of each sealed row of the audit log; append-only."""

audit_unsealed = Table(
    "audit_unsealed",
    metadata,
    Column("entry_id", Uuid, primary_key=True),
)
"""Rows of the audit log that are not sealed yet; filled by a trigger."""

ledger_checkpoints = Table(
    "ledger_checkpoints",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    count("transfers"),
    count("last_id"),
    clock_instant("verified_at"),
    Column("problem", Text),
)
"""Links up to which the chain is verified: the transfers and the largest id that they cover. The newest moves on; what
is behind one is verified again in turns, and `problem` says what was found."""

ledger_months = Table(
    "ledger_months",
    metadata,
    Column("month", Date, primary_key=True),
    Column("account", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    pico("debit"),
    pico("credit"),
)
"""Debits and credits by month, account and kind of the transfers that the newest checkpoint covers."""

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
    instant("closed_at", nullable=True),
    Column("closed_by", Text),
    Column("checklist", JSONB),
)
"""Accounting months; a closed month never changes."""

credit_grants = Table(
    "credit_grants",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    pico("amount"),
    string("reason"),
    string("created_by"),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    string("kind"),
    Column("priority", SmallInteger, nullable=False),
    instant("expires_at", nullable=True),
    pico("remaining"),
    instant("ended_at", nullable=True),
    Index("ix_credit_grants_tenant_id", "tenant_id"),
    Index("ix_credit_grants_open", "tenant_id", postgresql_where=text("remaining > 0")),
    Index(
        "ix_credit_grants_due",
        "expires_at",
        postgresql_where=text("remaining > 0 AND expires_at IS NOT NULL"),
    ),
)
"""Credit lots of prepaid customers: the amount given, and what remained of it at the last allocation."""

grant_draws = Table(
    "grant_draws",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("grant_id", Uuid, ForeignKey("credit_grants.id"), nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    string("kind"),
    pico("amount"),
    Column("source_id", Uuid),
    clock_instant("at"),
    UniqueConstraint("source_id", "kind"),
    Index("ix_grant_draws_grant_id", "grant_id"),
)
"""Amounts drawn from a lot, with the reason; append-only."""

approvals = Table(
    "approvals",
    metadata,
    Column("id", Uuid, primary_key=True),
    string("kind"),
    Column("tenant_id", Uuid, ForeignKey("tenants.id")),
    Column("facts", JSONB, nullable=False),
    string("requested_by"),
    clock_instant("requested_at"),
    Column("decided_by", Text),
    instant("decided_at", nullable=True),
    Column("decision", Text),
    string("requested_by_id"),
    Column("decided_by_id", Text),
    pico("amount", nullable=True),
    uid("source_id"),
    instant("expires_at", nullable=True),
    Index("ix_approvals_open", "expires_at", postgresql_where=text("decision IS NULL")),
    Index("ix_approvals_expired", "decided_at", postgresql_where=text("decision = 'expired'")),
    Index(
        "ix_approvals_within_limit",
        "requested_by_id",
        "tenant_id",
        "requested_at",
        postgresql_where=text("decision = 'within_limit'"),
    ),
    Index(
        "uq_approvals_source",
        "source_id",
        "kind",
        unique=True,
        postgresql_where=text("decision IS DISTINCT FROM 'rejected' AND decision IS DISTINCT FROM 'expired'"),
    ),
)
"""Acts of one person under the approval limit, and requests that another person must approve."""

money_rules = Table(
    "money_rules",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default="1"),
    pico("approval_limit"),
    Column("approval_days", Integer),
    pico("default_credit_limit", nullable=True),
    CheckConstraint("id = 1", name="one_row"),
    CheckConstraint("approval_limit >= 0", name="approval_limit"),
    CheckConstraint("approval_days BETWEEN 1 AND 366", name="approval_days"),
    CheckConstraint("default_credit_limit >= 0", name="default_credit_limit"),
)
"""Rules about money. One row; the first start stores it."""

starter_credit = Table(
    "starter_credit",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, server_default="1"),
    pico("amount"),
    Column("expires_days", Integer),
    CheckConstraint("id = 1", name="one_row"),
    CheckConstraint("amount >= 0", name="amount"),
    CheckConstraint("expires_days > 0", name="expires_days"),
)
"""What each new prepaid organisation gets once. At most one row."""

adjustments = Table(
    "adjustments",
    metadata,
    Column("id", Uuid, primary_key=True),
    tenant(),
    pico("amount"),
    pico("uncollectible", zero=True),
    string("reason"),
    Column("corrects", Date),
    Column("facts", JSONB),
    string("created_by"),
    Column("approved_by", Text),
    clock_instant("created_at"),
    Index("ix_adjustments_tenant_id_created_at", "tenant_id", "created_at"),
    Index("ix_adjustments_created_at", "created_at"),
)
"""Append-only, dated corrections of what a customer owes; a positive amount is in the customer's favour."""
