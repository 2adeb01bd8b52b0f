"""Scheduled exports, their runs, and the index that finds the rare bookings of a report."""

from pathlib import Path

from alembic import op

from migrations.support import grant, run

revision = "0011_exports"
down_revision = "0010_economics"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0011_exports_sql")


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    grant(op, "export_definitions", app="", system="SELECT, INSERT, UPDATE")
    grant(op, "export_runs", app="", system="SELECT, INSERT, UPDATE")
