"""Unpaid invoices count against the credit limit; approvals name people by id, and their amounts add up.

`billing_accounts.invoiced` is the balance of the ledger account `invoiced`, as `owed` is that of `receivable`. It is
summed while `billing_accounts` is locked, which no booking passes. No usage is booked on that account, so the sum reads
the index of the transfers that are no usage (`ix_ledger_transfers_rare`) and not the ledger.
"""

from alembic import op

revision = "0027_approval_limit"
down_revision = "0026_bounded_work"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE billing_accounts ADD COLUMN invoiced numeric(38,0) NOT NULL DEFAULT 0")
    op.execute(
        "UPDATE billing_accounts b SET invoiced = n.amount FROM ("
        "SELECT a.tenant_id, sum(m.amount) AS amount FROM ("
        "SELECT s.account, sum(s.amount) AS amount FROM ledger_transfers t "
        "CROSS JOIN LATERAL (VALUES (t.debit_account, t.amount), (t.credit_account, -t.amount)) s (account, amount) "
        "WHERE t.kind <> 'usage' GROUP BY s.account) m "
        "JOIN ledger_accounts a ON a.id = m.account AND a.code = 'invoiced' GROUP BY a.tenant_id) n "
        "WHERE n.tenant_id = b.tenant_id"
    )
    op.execute(
        "ALTER TABLE approvals ADD COLUMN requested_by_id text, ADD COLUMN decided_by_id text, "
        "ADD COLUMN amount numeric(38,0), ADD COLUMN source_id uuid"
    )
    for column in (
        "requested_by",
        "decided_by",
    ):  # earlier requests name people by mail address or shell user
        op.execute(
            f"UPDATE approvals SET {column}_id = coalesce("
            f"(SELECT u.id::text FROM users u WHERE u.email = {column}), 'shell:' || {column})"
        )
    op.execute("UPDATE approvals SET source_id = id")
    op.execute(
        "ALTER TABLE approvals ALTER requested_by_id SET NOT NULL, ALTER source_id SET NOT NULL, "
        "DROP CONSTRAINT ck_approvals_decision, DROP CONSTRAINT ck_approvals_two_people, "
        "ADD CONSTRAINT ck_approvals_decision CHECK (decision IN ('approved', 'rejected', 'within_limit')), "
        "ADD CONSTRAINT ck_approvals_two_people CHECK (decision IS DISTINCT FROM 'approved' "
        "OR decided_by_id <> requested_by_id), "
        "ADD CONSTRAINT ck_approvals_decided_by CHECK ((decision IS NULL) = (decided_by_id IS NULL)), "
        "ADD CONSTRAINT ck_approvals_within_limit CHECK (decision IS DISTINCT FROM 'within_limit' "
        "OR (amount IS NOT NULL AND decided_by_id = requested_by_id))"
    )
    op.execute(
        "CREATE INDEX ix_approvals_within_limit ON approvals (requested_by_id, tenant_id, requested_at) "
        "WHERE decision = 'within_limit'"
    )
    op.execute(
        "CREATE UNIQUE INDEX uq_approvals_source ON approvals (source_id, kind) "
        "WHERE decision IS DISTINCT FROM 'rejected'"
    )
    op.execute("GRANT UPDATE (decided_by_id) ON approvals TO penstock_system")
    op.execute(
        "CREATE TABLE shell_users (name text NOT NULL, user_id uuid NOT NULL, "
        "mapped_at timestamptz NOT NULL DEFAULT now(), CONSTRAINT pk_shell_users PRIMARY KEY (name), "
        "CONSTRAINT fk_shell_users_user_id FOREIGN KEY (user_id) REFERENCES users (id))"
    )
    op.execute("CREATE INDEX ix_shell_users_user_id ON shell_users (user_id)")
    op.execute("GRANT SELECT, INSERT, DELETE ON shell_users TO penstock_system")
