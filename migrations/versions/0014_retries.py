"""The outbox knows when a row is due; what nobody reads any more may go (jobs/retention.py)."""

from alembic import op

from core.db import SYSTEM_ROLE

revision = "0014_retries"
down_revision = "0013_gpu_shares"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE outbox ADD COLUMN attempts integer NOT NULL DEFAULT 0, "
        "ADD COLUMN next_at timestamptz NOT NULL DEFAULT clock_timestamp()"
    )
    op.execute(f"GRANT DELETE ON stripe_events, stripe_reconciliations TO {SYSTEM_ROLE}")
