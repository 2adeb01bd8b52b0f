"""Billing: prices, accounts, holds, usage, the double-entry ledger and its seals, rollups, and the functions on them.

The SQL lies in 0003_billing_sql/, one file per subject, applied in the order of the names.
"""

from pathlib import Path

from alembic import op

from migrations.support import enable_rls, grant, run

revision = "0003_billing"
down_revision = "0002_tenants"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0003_billing_sql")

_TENANT_TABLES = {
    "billing_accounts": "SELECT, INSERT, UPDATE",
    "holds": "SELECT, INSERT, UPDATE",
    "usage": "SELECT, INSERT",
    "usage_hours": "SELECT, INSERT, DELETE",
    "ledger_accounts": "SELECT, INSERT",
    "ledger_transfers": "SELECT, INSERT",
    "credit_grants": "SELECT, INSERT",
}
_SYSTEM_TABLES = {
    "settle_errors": "SELECT, INSERT",
    "usage_touched": "SELECT, INSERT, DELETE",
    "ledger_unsealed": "SELECT, INSERT, DELETE",
    "ledger_seals": "SELECT, INSERT",
    "reaper_state": "SELECT, INSERT, UPDATE",
}


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table, privileges in _TENANT_TABLES.items():
        enable_rls(op, table)
        grant(op, table, system=privileges)
    for table, privileges in _SYSTEM_TABLES.items():
        grant(op, table, app="", system=privileges)
    op.execute("GRANT SELECT ON ledger_balances TO penstock_app, penstock_system")
    # Which hours the rollups do not cover is no tenant's secret, and tenants' own reports need it.
    op.execute("GRANT SELECT ON usage_touched TO penstock_app")
    _protect_prices()


def _protect_prices() -> None:
    """A tenant sees list prices and its own; a version's amounts never change, only its end may be set."""
    op.execute("ALTER TABLE price_versions ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE price_versions FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY tenant_rows ON price_versions FOR SELECT TO penstock_app USING (tenant_id IS NULL "
        "OR tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid)"
    )
    op.execute("CREATE POLICY all_rows ON price_versions TO penstock_system USING (true) WITH CHECK (true)")
    op.execute("GRANT SELECT ON price_versions TO penstock_app")
    op.execute("GRANT SELECT, INSERT, UPDATE (effective) ON price_versions TO penstock_system")
