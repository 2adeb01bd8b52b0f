"""Credit lots with expiry and priority, contracts, adjustments and approvals."""

from pathlib import Path

from alembic import op

from migrations.support import enable_rls, grant, run

revision = "0007_credits"
down_revision = "0006_usage_store"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0007_credits_sql")


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table, system in (
        ("grant_draws", "SELECT, INSERT"),
        ("contracts", "SELECT, INSERT"),
        ("adjustments", "SELECT, INSERT"),
    ):
        enable_rls(op, table)
        grant(op, table, system=system)
    grant(op, "approvals", app="", system="SELECT, INSERT")
    grant(op, "unpriced_refusals", app="", system="SELECT, INSERT, UPDATE")
    # What was agreed, asked or given never changes; only these columns do.
    op.execute("GRANT UPDATE (remaining, ended_at) ON credit_grants TO penstock_system")
    op.execute("GRANT UPDATE (effective, ended_by, withdrawn_at) ON contracts TO penstock_system")
    op.execute("GRANT UPDATE (decided_by, decided_at, decision) ON approvals TO penstock_system")
    op.execute("GRANT UPDATE (withdrawn_at, ended_by) ON price_versions TO penstock_system")
    # Credit given before is a lot without an end; what was used of it is taken from the oldest first.
    op.execute("SET LOCAL ROLE penstock_system")
    op.execute("UPDATE credit_grants SET remaining = amount")
    op.execute("SELECT penstock_allocate(tenant_id) FROM billing_accounts WHERE mode = 'prepaid'")
    op.execute("RESET ROLE")
