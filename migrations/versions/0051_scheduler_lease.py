"""The lease of the scheduler that serves: one row."""

from alembic import op

revision = "0051_scheduler_lease"
down_revision = "0054_highest_tier"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE scheduler_lease (one boolean NOT NULL DEFAULT true, term bigint NOT NULL, owner text NOT NULL, "
        "renewed_at timestamptz NOT NULL, CONSTRAINT pk_scheduler_lease PRIMARY KEY (one), "
        "CONSTRAINT ck_scheduler_lease_one CHECK (one), CONSTRAINT ck_scheduler_lease_term CHECK (term >= 0))"
    )
    op.execute("INSERT INTO scheduler_lease (term, owner, renewed_at) VALUES (0, '', now())")
    op.execute("GRANT SELECT, UPDATE ON scheduler_lease TO penstock_system")
