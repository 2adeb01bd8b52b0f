"""Responses in the background: until when a running one is certainly alive, and whether it shall be cancelled."""

from alembic import op

revision = "0043_background_responses"
down_revision = "0046_label_budgets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE stored_responses ADD COLUMN runs_until timestamptz, "
        "ADD COLUMN in_progress boolean NOT NULL DEFAULT false, "
        "ADD COLUMN cancel boolean NOT NULL DEFAULT false"
    )
    op.execute(
        "CREATE INDEX ix_stored_responses_project_id_runs_until ON stored_responses (project_id, runs_until) "
        "WHERE runs_until IS NOT NULL"
    )
    op.execute(
        "GRANT UPDATE (response, runs_until, in_progress, cancel) ON stored_responses "
        "TO penstock_app, penstock_system"
    )
