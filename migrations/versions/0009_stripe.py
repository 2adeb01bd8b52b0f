"""Stripe: customers, payments, refunds, disputes, events, meter events and what the comparisons found."""

from pathlib import Path

from alembic import op

from migrations.support import enable_rls, grant, run

revision = "0009_stripe"
down_revision = "0008_invoices"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0009_stripe_sql")

_TENANT_TABLES = (
    "stripe_customers",
    "stripe_payment_methods",
    "stripe_topups",
    "stripe_auto_topups",
    "stripe_payments",
    "stripe_refunds",
    "stripe_disputes",
)
_SYSTEM_TABLES = {
    "stripe_cash": "SELECT, INSERT",
    "stripe_events": "SELECT, INSERT, UPDATE",
    "stripe_pushes": "SELECT, INSERT, UPDATE",
    "stripe_meter_events": "SELECT, INSERT, UPDATE",
    "stripe_state": "SELECT, INSERT, UPDATE",
    "stripe_reconciliations": "SELECT, INSERT",
}


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table in _TENANT_TABLES:
        enable_rls(op, table)
        grant(op, table, system="SELECT, INSERT, UPDATE")
    for table, privileges in _SYSTEM_TABLES.items():
        grant(op, table, app="", system=privileges)
