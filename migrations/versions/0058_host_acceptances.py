"""What the checks of GPU hosts found before they served."""

from alembic import op

revision = "0058_host_acceptances"
down_revision = "0057_host_owners"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE host_acceptances (host_id text NOT NULL, checked_at timestamptz NOT NULL, "
        "verdict text NOT NULL, findings jsonb NOT NULL, figures jsonb NOT NULL, "
        "stored_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "CONSTRAINT pk_host_acceptances PRIMARY KEY (host_id, checked_at), "
        "CONSTRAINT ck_host_acceptances_verdict CHECK (verdict IN ('accepted', 'degraded', 'refused')))"
    )
    op.execute("CREATE INDEX ix_host_acceptances_checked_at ON host_acceptances (checked_at)")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON host_acceptances TO penstock_system")
