"""Statements, signing keys, alerts, notices and SLA credits."""

revision = "0012_statements"
down_revision = "0011_exports"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
