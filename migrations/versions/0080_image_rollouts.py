"""The image of a group of hosts that a rollout changes; NULL = it changes the version of engines."""

from alembic import op

revision = "0080_image_rollouts"
down_revision = "0087_denied_acts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE rollouts ADD COLUMN image jsonb")
