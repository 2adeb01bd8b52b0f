"""When the rows of a day were last compared with its rollup, and how they differed."""

from alembic import op

revision = "0031_compared_days"
down_revision = "0030_people_by_token"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE usage_day_state ADD COLUMN compared_at timestamptz, ADD COLUMN differs_since timestamptz, "
        "ADD COLUMN difference text"
    )
