"""Narrow usage rows: dimensions in a table of their own, and seals that cover many transfers.

`usage` becomes a view with all its columns over `usage_rows`; the rows of before are moved and checked.
"""

from pathlib import Path

from alembic import op

from core.db import APP_ROLE, SYSTEM_ROLE
from migrations.support import enable_rls, grant, run

revision = "0006_usage_store"
down_revision = "0005_books"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0006_usage_store_sql")
_TENANT = "nullif(current_setting('penstock.tenant_id', true), '')::uuid"


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    enable_rls(op, "usage_dims")
    _protect_rows()
    enable_rls(op, "usage_days")
    grant(op, "usage_days", system="SELECT, INSERT, DELETE")
    grant(op, "usage_day_state", system="SELECT, INSERT, UPDATE, DELETE")
    grant(op, "usage_dims", system="SELECT, INSERT")
    grant(op, "usage_rows", system="SELECT, INSERT")
    grant(op, "usage_engines", system="SELECT, INSERT")
    grant(op, "usage_far", system="SELECT, INSERT")
    grant(op, "usage_late", app="", system="SELECT, INSERT")
    grant(op, "usage_archives", app="", system="SELECT, INSERT, UPDATE, DELETE")
    grant(op, "ledger_unsealed", app="", system="SELECT, INSERT, DELETE")
    op.execute(f"GRANT SELECT ON usage TO {APP_ROLE}, {SYSTEM_ROLE}")


def _protect_rows() -> None:
    """A tenant sees the rows of its own dimensions. As an array, so that the index on dim_id answers it."""
    op.execute("ALTER TABLE usage_rows ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE usage_rows FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant_rows ON usage_rows FOR SELECT TO {APP_ROLE} "
        f"USING (dim_id = ANY (ARRAY(SELECT d.id FROM usage_dims d WHERE d.tenant_id = {_TENANT})))"
    )
    op.execute(f"CREATE POLICY all_rows ON usage_rows TO {SYSTEM_ROLE} USING (true) WITH CHECK (true)")
    op.execute("ALTER TABLE usage_far ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE usage_far FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant_rows ON usage_far FOR SELECT TO {APP_ROLE} "
        "USING (EXISTS (SELECT 1 FROM usage_rows u WHERE u.request_id = usage_far.request_id))"
    )
    op.execute(f"CREATE POLICY all_rows ON usage_far TO {SYSTEM_ROLE} USING (true) WITH CHECK (true)")
