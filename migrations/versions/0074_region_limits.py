"""Limits of a model in single regions: how many replicas are awake there, at least and at most."""

from alembic import op

revision = "0074_region_limits"
down_revision = "0073_host_images"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE model_scaling ADD COLUMN regions jsonb NOT NULL DEFAULT '[]'")
