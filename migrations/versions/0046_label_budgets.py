"""Budgets of end users and tags, which stop requests as those of projects and keys do, or are watched only.

`scope_budgets.label` names the end user or tag, and `holds.labels` those of a request.
`billing_accounts.end_user_budget` is the budget of every end user without one of its own; a row without an amount
counts such an end user.
"""

from alembic import op

revision = "0046_label_budgets"
down_revision = "0047_stored_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE billing_accounts ADD COLUMN has_label_budgets boolean NOT NULL DEFAULT false, "
        "ADD COLUMN end_user_budget numeric(38,0), "
        "ADD CONSTRAINT ck_billing_accounts_end_user_budget CHECK (end_user_budget >= 0)"
    )
    op.execute("ALTER TABLE holds ADD COLUMN labels text")
    op.execute(
        "ALTER TABLE scope_budgets ADD COLUMN label text, ADD COLUMN stops boolean NOT NULL DEFAULT true, "
        "ALTER COLUMN amount DROP NOT NULL, DROP CONSTRAINT ck_scope_budgets_scope, "
        "ADD CONSTRAINT ck_scope_budgets_scope CHECK (scope IN ('project', 'key', 'end_user', 'tag')), "
        "ADD CONSTRAINT ck_scope_budgets_label CHECK ((label IS NULL) = (scope IN ('project', 'key'))), "
        "ADD CONSTRAINT ck_scope_budgets_counted CHECK (amount IS NOT NULL OR (scope = 'end_user' AND stops))"
    )
    op.execute(
        "CREATE INDEX ix_scope_budgets_counted ON scope_budgets (tenant_id, month) WHERE amount IS NULL"
    )
