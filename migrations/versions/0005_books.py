"""The whole chart of accounts, accounting months that can be closed, and one function that books a transfer."""

from pathlib import Path

from alembic import op

from migrations.support import grant, run

revision = "0005_books"
down_revision = "0004_hosts"
branch_labels = None
depends_on = None

_SQL = Path(__file__).with_name("0005_books_sql")


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op, path.read_text())
    grant(op, "billing_periods", system="SELECT, INSERT, UPDATE")
