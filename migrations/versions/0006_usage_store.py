"""Narrow usage rows: dimensions in a table of their own."""

revision = "0006_usage_store"
down_revision = "0005_books"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
