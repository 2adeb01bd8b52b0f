"""The models with which a model shares hosts that are created for it."""

from alembic import op

revision = "0081_shared_hosts"
down_revision = "0082_sign_in_bounds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE model_scaling ADD COLUMN shares text NOT NULL DEFAULT ''")
