"""Members of an organisation read what their keys' clients need, as they read the rest of a key."""

from alembic import op

revision = "0042_members_read_key_settings"
down_revision = "0036_recovery_codes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("GRANT SELECT (quota_status, cors_origins) ON api_keys TO penstock_app")
