"""The schema as of the revisions 0001 to 0017: types, tables, indexes, row-level security, table grants, first rows.

It keeps the id of the last of them, so a database that went through them starts here. Its SQL never changes; functions,
triggers and views are in the `sql` directories of their packages (migrations/repeatable.py).
"""

from pathlib import Path

from alembic import op

from migrations.support import run

revision = "0017_fair_shares"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).resolve().parent.parent / "baseline"


def upgrade() -> None:
    for path in sorted(_SQL.glob("*.sql")):
        run(op.get_bind(), path.read_text())
