"""Models that admins add beside the packaged catalog."""

from alembic import op

revision = "0056_added_models"
down_revision = "0055_host_intents"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE added_models (name text NOT NULL, definition text NOT NULL, "
        "added_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "CONSTRAINT pk_added_models PRIMARY KEY (name), "
        "CONSTRAINT fk_added_models_name FOREIGN KEY (name) REFERENCES models (name))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON added_models TO penstock_system")
    op.execute("GRANT SELECT ON added_models TO penstock_app")
