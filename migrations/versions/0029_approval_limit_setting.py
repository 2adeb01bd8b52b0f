"""The approval limit is kept in the database: one row, which the first start fills."""

from alembic import op

revision = "0029_approval_limit_setting"
down_revision = "0028_prorated_commitments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE approval_limit (id smallint NOT NULL DEFAULT 1, amount numeric(38,0) NOT NULL, "
        "CONSTRAINT pk_approval_limit PRIMARY KEY (id), "
        "CONSTRAINT ck_approval_limit_one_row CHECK (id = 1), "
        "CONSTRAINT ck_approval_limit_amount CHECK (amount >= 0))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON approval_limit TO penstock_system")
