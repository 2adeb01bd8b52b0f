"""What GPUs cost: provider invoices, engine counters, reconciliation."""

revision = "0010_economics"
down_revision = "0009_stripe"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
