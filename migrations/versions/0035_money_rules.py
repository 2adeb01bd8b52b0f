"""The platform's rules about money in one row, and approvals that expire.

The default credit limit is null until the next start stores it. Requests that wait now have 14 more days.
"""

from alembic import op

revision = "0035_money_rules"
down_revision = "0039_key_client_settings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE approval_limit RENAME TO money_rules")
    op.execute("ALTER TABLE money_rules RENAME COLUMN amount TO approval_limit")
    for old, new in (
        ("pk_approval_limit", "pk_money_rules"),
        ("ck_approval_limit_one_row", "ck_money_rules_one_row"),
        ("ck_approval_limit_amount", "ck_money_rules_approval_limit"),
    ):
        op.execute(f"ALTER TABLE money_rules RENAME CONSTRAINT {old} TO {new}")
    op.execute(
        "ALTER TABLE money_rules ADD COLUMN approval_days integer, "
        "ADD COLUMN default_credit_limit numeric(38,0), "
        "ADD CONSTRAINT ck_money_rules_approval_days CHECK (approval_days BETWEEN 1 AND 366), "
        "ADD CONSTRAINT ck_money_rules_default_credit_limit CHECK (default_credit_limit >= 0)"
    )
    op.execute("ALTER TABLE approvals ADD COLUMN expires_at timestamptz")
    op.execute(
        "UPDATE approvals SET expires_at = clock_timestamp() + interval '14 days' WHERE decision IS NULL"
    )
    op.execute(
        "ALTER TABLE approvals DROP CONSTRAINT ck_approvals_decision, "
        "ADD CONSTRAINT ck_approvals_decision "
        "CHECK (decision IN ('approved', 'rejected', 'expired', 'within_limit')), "
        "ADD CONSTRAINT ck_approvals_expires CHECK (decision IS NOT NULL OR expires_at IS NOT NULL)"
    )
    op.execute("DROP INDEX uq_approvals_source")
    op.execute(
        "CREATE UNIQUE INDEX uq_approvals_source ON approvals (source_id, kind) "
        "WHERE decision IS DISTINCT FROM 'rejected' AND decision IS DISTINCT FROM 'expired'"
    )
    op.execute("DROP INDEX ix_approvals_open")
    op.execute("CREATE INDEX ix_approvals_open ON approvals (expires_at) WHERE decision IS NULL")
    op.execute("CREATE INDEX ix_approvals_expired ON approvals (decided_at) WHERE decision = 'expired'")
    op.execute(
        "ALTER TABLE corrections DROP CONSTRAINT ck_corrections_status, "
        "ADD CONSTRAINT ck_corrections_status "
        "CHECK (status IN ('requested', 'applying', 'approved', 'rejected', 'expired'))"
    )
    op.execute("DROP INDEX uq_corrections_reverses")
    op.execute(
        "CREATE UNIQUE INDEX uq_corrections_reverses ON corrections (reverses) "
        "WHERE status NOT IN ('rejected', 'expired')"
    )
    op.execute(
        "UPDATE approvals SET kind = 'money_rules.set', facts = jsonb_build_object("
        "'approval_limit_usd', facts->'limit_usd', 'reason', facts->'reason') "
        "WHERE kind = 'approval_limit.set' AND decision IS NULL"
    )
