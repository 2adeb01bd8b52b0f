"""The dearest tier that a request of an organisation may ask for, where it is above its own."""

from alembic import op

revision = "0054_highest_tier"
down_revision = "0053_project_retention"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE tenants ADD COLUMN highest_tier text "
        "CONSTRAINT ck_tenants_highest_tier CHECK (highest_tier IN ('priority', 'standard', 'batch'))"
    )
