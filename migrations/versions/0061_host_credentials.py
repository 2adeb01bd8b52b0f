"""Join tokens and secrets of hosts, by hash, and where an agent says that it is and runs."""

from alembic import op

revision = "0061_host_credentials"
down_revision = "0060_acting"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE host_credentials (host_id text NOT NULL, invited_at timestamptz NOT NULL, "
        "join_hash bytea, join_expires_at timestamptz, join_used_by bytea, secret_hash bytea, "
        "joined_at timestamptz, revoked_at timestamptz, "
        "CONSTRAINT pk_host_credentials PRIMARY KEY (host_id), "
        "CONSTRAINT ck_host_credentials_join CHECK ((join_hash IS NULL) = (join_expires_at IS NULL)))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON host_credentials TO penstock_system")
    op.execute("ALTER TABLE hosts ADD COLUMN address text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE hosts ADD COLUMN agent_version text NOT NULL DEFAULT ''")
