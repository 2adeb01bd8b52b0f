"""How much of a busy pool an organisation is entitled to beside others of its tier."""

from alembic import op

revision = "0017_fair_shares"
down_revision = "0016_request_shapes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE tenants ADD COLUMN share_percent integer NOT NULL DEFAULT 100 "
        "CONSTRAINT ck_tenants_share_percent CHECK (share_percent BETWEEN 1 AND 10000)"
    )
