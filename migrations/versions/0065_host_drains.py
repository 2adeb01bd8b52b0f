"""Until when a host that is not wanted any more is drained."""

from alembic import op

revision = "0065_host_drains"
down_revision = "0064_rollouts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE host_intents ADD COLUMN drain_until timestamptz")
