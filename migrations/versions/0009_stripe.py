"""Stripe: customers, payments, events, meter events."""

revision = "0009_stripe"
down_revision = "0008_invoices"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
