"""Keys whose requests run in some regions, or on some classes of GPU, alone."""

from alembic import op

revision = "0059_key_regions"
down_revision = "0058_host_acceptances"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE api_keys ADD COLUMN regions text[], ADD COLUMN gpus text[]")
    op.execute("GRANT SELECT (regions, gpus), UPDATE (regions, gpus) ON api_keys TO penstock_app")
