"""Statements, signing keys, alerts, notices and SLA credits."""

from pathlib import Path

from alembic import op

from migrations.support import enable_rls, grant, run

revision = "0012_statements"
down_revision = "0011_exports"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0012_statements_sql")

_TENANT_TABLES = {
    "notices": "SELECT, INSERT, UPDATE (planned_at)",
    "notice_endpoints": "SELECT, INSERT, UPDATE",
    "notice_deliveries": "SELECT, INSERT, UPDATE",
    "alert_rules": "SELECT, INSERT, UPDATE, DELETE",
    "alert_events": "SELECT, INSERT",
    "statements": "SELECT, INSERT",
    "sla_credits": "SELECT, INSERT",
}


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    for table, privileges in _TENANT_TABLES.items():
        enable_rls(op, table)
        grant(op, table, system=privileges)
    grant(op, "signing_keys", system="SELECT, INSERT, UPDATE (retired_at)")
