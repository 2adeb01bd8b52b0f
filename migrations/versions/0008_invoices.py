"""Invoices, their lines, and corrections of past months."""

revision = "0008_invoices"
down_revision = "0007_credits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
