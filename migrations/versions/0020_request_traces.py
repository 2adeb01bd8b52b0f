"""`request_shapes` is called `request_traces`, with its primary key and index."""

from alembic import op

revision = "0020_request_traces"
down_revision = "0019_dirty_hours"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE request_shapes RENAME TO request_traces")
    op.execute("ALTER TABLE request_traces RENAME CONSTRAINT pk_request_shapes TO pk_request_traces")
    op.execute("ALTER INDEX ix_request_shapes_last_at RENAME TO ix_request_traces_last_at")
