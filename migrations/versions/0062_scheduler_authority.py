"""The authority that signs schedulers' certificates; its key is encrypted with the internal token."""

from alembic import op

revision = "0062_scheduler_authority"
down_revision = "0061_host_credentials"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE scheduler_authority (one boolean NOT NULL DEFAULT true, certificate bytea NOT NULL, "
        "encrypted_key bytea NOT NULL, CONSTRAINT pk_scheduler_authority PRIMARY KEY (one), "
        "CONSTRAINT ck_scheduler_authority_one CHECK (one))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON scheduler_authority TO penstock_system")
