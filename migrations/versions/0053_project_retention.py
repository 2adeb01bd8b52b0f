"""How long a project keeps responses, where it is less than the platform."""

from alembic import op

revision = "0053_project_retention"
down_revision = "0052_model_scaling"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE projects ADD COLUMN responses_kept_days integer "
        "CONSTRAINT ck_projects_responses_kept_days CHECK (responses_kept_days BETWEEN 0 AND 3650)"
    )
    op.execute("GRANT UPDATE (responses_kept_days) ON projects TO penstock_app")
