"""`usage_touched` is called `dirty_hours`, with its sequence, primary key and index."""

from alembic import op

revision = "0019_dirty_hours"
down_revision = "0018_sql_files"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE usage_touched RENAME TO dirty_hours")
    op.execute("ALTER TABLE dirty_hours RENAME CONSTRAINT pk_usage_touched TO pk_dirty_hours")
    op.execute("ALTER INDEX ix_usage_touched_hour RENAME TO ix_dirty_hours_hour")
    op.execute("ALTER SEQUENCE usage_touched_id_seq RENAME TO dirty_hours_id_seq")
