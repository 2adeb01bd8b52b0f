"""The profile with which hosts that are created serve a model, where an admin has set it."""

from alembic import op

revision = "0072_scaling_profile"
down_revision = "0071_adapters"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE model_scaling ADD COLUMN profile text NOT NULL DEFAULT ''")
