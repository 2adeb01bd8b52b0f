"""What GPUs cost and whether engines and books agree: provider invoices, engine counters, reconciliation.

The SQL lies in 0010_economics_sql/. None of it is a customer's business: no table is visible to tenants.
"""

from pathlib import Path

from alembic import op

from migrations.support import grant, run

revision = "0010_economics"
down_revision = "0009_stripe"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0010_economics_sql")

_TABLES = {
    "engine_counters": "SELECT, INSERT, UPDATE",
    "engine_cuts": "SELECT, INSERT, DELETE",
    "usage_unbilled": "SELECT, INSERT, DELETE",
    "reconciliations": "SELECT, INSERT, UPDATE",
    "provider_invoices": "SELECT, INSERT, UPDATE (voided_at, voided_by)",
    "provider_invoice_lines": "SELECT, INSERT",
}


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table, privileges in _TABLES.items():
        grant(op, table, app="", system=privileges)
