"""The image from which each host was made, and the one from which a group's hosts are to be made."""

from alembic import op

revision = "0073_host_images"
down_revision = "0072_scaling_profile"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE host_intents ADD COLUMN image text NOT NULL DEFAULT ''")
    op.execute(
        "ALTER TABLE desired_hosts ADD COLUMN image text NOT NULL DEFAULT '', "
        "ADD COLUMN image_before text NOT NULL DEFAULT '', ADD COLUMN image_at timestamptz, "
        "ADD COLUMN surge boolean NOT NULL DEFAULT true"
    )
