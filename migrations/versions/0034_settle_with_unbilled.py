"""Unbilled tokens are stored by penstock_settle_with_unbilled; processes of before wait with their settlement."""

from alembic import op

revision = "0034_settle_with_unbilled"
down_revision = "0033_confirmed_people"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DROP FUNCTION IF EXISTS penstock_note_unbilled(jsonb)")
