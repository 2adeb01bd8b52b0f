"""Rotation of hosts' secrets with overlap, and join tokens of earlier attempts at a create."""

from alembic import op

revision = "0067_secret_rotation"
down_revision = "0066_wake_deadlines"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE host_credentials ADD COLUMN earlier_join_hashes bytea[] NOT NULL DEFAULT '{}', "
        "ADD COLUMN previous_hash bytea, ADD COLUMN previous_until timestamptz, "
        "ADD COLUMN rotation_overlap interval, ADD COLUMN rotated_at timestamptz, "
        "ADD CONSTRAINT ck_host_credentials_previous CHECK ((previous_hash IS NULL) = (previous_until IS NULL))"
    )
