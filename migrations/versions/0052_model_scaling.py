"""Limits of the autoscaler by model, which an admin sets."""

from alembic import op

revision = "0052_model_scaling"
down_revision = "0050_model_targets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE model_scaling (model text NOT NULL, min_awake integer NOT NULL, max_awake integer NOT NULL, "
        "budget_usd_pico_per_hour numeric(38,0), host_kinds text[] NOT NULL, "
        "CONSTRAINT pk_model_scaling PRIMARY KEY (model), "
        "CONSTRAINT fk_model_scaling_model FOREIGN KEY (model) REFERENCES models (name), "
        "CONSTRAINT ck_model_scaling_replicas "
        "CHECK (0 <= min_awake AND min_awake <= max_awake AND max_awake <= 1024), "
        "CONSTRAINT ck_model_scaling_budget CHECK (budget_usd_pico_per_hour >= 0))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON model_scaling TO penstock_system")
    op.execute("GRANT SELECT ON model_scaling TO penstock_app")
