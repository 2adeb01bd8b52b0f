"""Scheduled exports and archived months."""

revision = "0011_exports"
down_revision = "0010_economics"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
