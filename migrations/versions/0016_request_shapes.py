"""Shapes of recent requests, without text, for simulations of the same traffic on another pool."""

from alembic import op

from migrations.support import grant

revision = "0016_request_shapes"
down_revision = "0015_export_failures"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE request_shapes ("
        "id uuid CONSTRAINT pk_request_shapes PRIMARY KEY, model text NOT NULL, "
        "first_at timestamptz NOT NULL, last_at timestamptz NOT NULL, requests integer NOT NULL, "
        "data bytea NOT NULL)"
    )
    # Batches are compressed before they come here.
    op.execute("ALTER TABLE request_shapes ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute("CREATE INDEX ix_request_shapes_last_at ON request_shapes (last_at)")
    # A batch holds requests of all tenants.
    grant(op, "request_shapes", app="")
