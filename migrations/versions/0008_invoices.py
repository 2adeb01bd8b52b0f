"""Invoices, their lines and credit notes; corrections of past months; the act that closes a month."""

from pathlib import Path

from alembic import op

from migrations.support import enable_rls, grant, run

revision = "0008_invoices"
down_revision = "0007_credits"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0008_invoices_sql")

# What an invoice says never changes; what becomes of it does.
_TENANT_TABLES = {
    "invoices": "SELECT, INSERT, UPDATE (status, stripe_invoice_id, paid_at, carry_exact, carry_cents, carried_to)",
    "invoice_lines": "SELECT, INSERT, UPDATE (stripe_item_id)",
    "credit_notes": "SELECT, INSERT, UPDATE (status, stripe_credit_note_id)",
    "credit_note_lines": "SELECT, INSERT",
}
_SYSTEM_TABLES = {
    "invoice_numbers": "SELECT, INSERT, UPDATE",
    "invoice_runs": "SELECT, INSERT",
    "parked_decisions": "SELECT, INSERT",
    "corrections": "SELECT, INSERT, UPDATE (status, decided_by, decided_at, applied_to)",
    "correction_lines": "SELECT, INSERT",
}


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table, privileges in _TENANT_TABLES.items():
        enable_rls(op, table)
        grant(op, table, system=privileges)
    for table, privileges in _SYSTEM_TABLES.items():
        grant(op, table, app="", system=privileges)
    op.execute("REVOKE INSERT, UPDATE ON billing_periods FROM penstock_system")
    op.execute("REVOKE ALL ON FUNCTION penstock_close_month(date, text, jsonb) FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION penstock_close_month(date, text, jsonb) TO penstock_system")
