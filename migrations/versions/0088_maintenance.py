"""Whether the platform is in maintenance: requests that begin are refused with a notice. At most one row."""

from alembic import op

revision = "0088_maintenance"
down_revision = "0080_image_rollouts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE maintenance (id smallint NOT NULL DEFAULT 1, notice text NOT NULL, "
        "began_at timestamptz NOT NULL DEFAULT clock_timestamp(), expected_end timestamptz, "
        "CONSTRAINT pk_maintenance PRIMARY KEY (id), "
        "CONSTRAINT ck_maintenance_one_row CHECK (id = 1))"
    )
    op.execute("GRANT SELECT ON maintenance TO penstock_app")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON maintenance TO penstock_system")
