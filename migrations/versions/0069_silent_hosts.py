"""Since when a scheduler has served without a gap: how long a host has been silent to one that listened."""

from alembic import op

revision = "0069_silent_hosts"
down_revision = "0068_usage_gpu"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE scheduler_lease ADD COLUMN serving_since timestamptz NOT NULL DEFAULT now()")
