"""What a key's clients need: the status of answers that money refuses, and the origins of browsers that may use it."""

from alembic import op

revision = "0039_key_client_settings"
down_revision = "0041_starter_credit_invitations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE api_keys ADD COLUMN quota_status smallint NOT NULL DEFAULT 402 "
        "CONSTRAINT ck_api_keys_quota_status CHECK (quota_status IN (402, 429)), "
        "ADD COLUMN cors_origins text[] "
        "CONSTRAINT ck_api_keys_cors_origins CHECK (cardinality(cors_origins) BETWEEN 1 AND 20)"
    )
    op.execute("CREATE INDEX ix_api_keys_cors_origins ON api_keys (id) WHERE cors_origins IS NOT NULL")
    op.execute(
        "GRANT SELECT (quota_status, cors_origins), UPDATE (quota_status, cors_origins) ON api_keys TO penstock_app"
    )
