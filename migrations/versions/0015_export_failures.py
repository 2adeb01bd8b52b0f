"""Periods of scheduled exports that could not be written: why, how often, and when they are tried again."""

from alembic import op

from migrations.support import grant

revision = "0015_export_failures"
down_revision = "0014_retries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE export_failures ("
        "definition_id uuid NOT NULL, period_start timestamptz NOT NULL, attempts integer NOT NULL DEFAULT 1, "
        "error text NOT NULL, failed_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "next_at timestamptz NOT NULL, "
        "CONSTRAINT pk_export_failures PRIMARY KEY (definition_id, period_start), "
        "CONSTRAINT fk_export_failures_definition_id FOREIGN KEY (definition_id) REFERENCES export_definitions (id))"
    )
    grant(op, "export_failures", app="")
