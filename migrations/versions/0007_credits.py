"""Credit lots with expiry and priority, contracts, adjustments and approvals."""

revision = "0007_credits"
down_revision = "0006_usage_store"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
