"""How long requests for a model wait while a replica wakes, where an admin has set it."""

from alembic import op

revision = "0066_wake_deadlines"
down_revision = "0065_host_drains"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE models ADD COLUMN wake_deadline_s double precision, "
        "ADD CONSTRAINT ck_models_wake_deadline CHECK (wake_deadline_s BETWEEN 0 AND 600)"
    )
