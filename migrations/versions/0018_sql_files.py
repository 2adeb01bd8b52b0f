"""Functions, views and triggers no longer belong to revisions: this records which of their files were applied.

`penstock_seal_text` had no caller left.
"""

from alembic import op

revision = "0018_sql_files"
down_revision = "0017_fair_shares"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE schema_sql_files ("
        "path text CONSTRAINT pk_schema_sql_files PRIMARY KEY, sha256 text NOT NULL, objects text[] NOT NULL, "
        "applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    op.execute("DROP FUNCTION IF EXISTS penstock_seal_text(bigint, ledger_transfers)")
