"""People of the platform whose credentials one person gave, until another person confirms them."""

from alembic import op

revision = "0033_confirmed_people"
down_revision = "0032_late_usage_by_month"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE users ADD COLUMN unconfirmed_change uuid, "
        "ADD COLUMN ever_confirmed boolean NOT NULL DEFAULT true"
    )
