"""Keys whose secret carries a tag, so that a made-up key is refused without a look-up; those of before have none."""

from alembic import op

revision = "0025_key_tags"
down_revision = "0024_payment_terms"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN tagged boolean NOT NULL DEFAULT false")
