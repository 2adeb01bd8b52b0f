"""The month to which late usage belongs, on the lines of invoices and corrections; null for lines of before.

Late usage of one invoice may belong to several months. With it a correction finds the commitment that it concerns.
"""

from alembic import op

revision = "0032_late_usage_by_month"
down_revision = "0031_compared_days"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("invoice_lines", "correction_lines"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN used_in date")
