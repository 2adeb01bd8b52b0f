"""One CHECK for all that is never negative in a billing account.

PostgreSQL reads the text of every CHECK of a table in each command that writes to it. Holds and settlements write one
row of `billing_accounts` in each.
"""

from alembic import op

revision = "0022_account_checks"
down_revision = "0021_model_specs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE billing_accounts DROP CONSTRAINT ck_billing_accounts_balance, "
        "DROP CONSTRAINT ck_billing_accounts_held, DROP CONSTRAINT ck_billing_accounts_limits, "
        "ADD CONSTRAINT ck_billing_accounts_not_negative "
        "CHECK (least(balance, held, open_holds, budget, credit_limit) >= '0'::numeric)"
    )
