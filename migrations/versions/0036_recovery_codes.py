"""Recovery codes of people, and the instant before which a person's sessions of the console have ended."""

from alembic import op

revision = "0036_recovery_codes"
down_revision = "0035_money_rules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE users ADD COLUMN recovery_hash text, ADD COLUMN sessions_from timestamptz")
