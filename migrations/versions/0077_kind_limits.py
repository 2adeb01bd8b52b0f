"""Limits of a model on hosts of single kinds: how many replicas are awake there, at least and at most."""

from alembic import op

revision = "0077_kind_limits"
down_revision = "0076_sign_in_rules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE model_scaling ADD COLUMN kinds jsonb NOT NULL DEFAULT '[]'")
