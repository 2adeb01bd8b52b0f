"""Targets of models by tier that an admin has set in place of the catalog's."""

from alembic import op

revision = "0050_model_targets"
down_revision = "0043_background_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE model_targets (model text NOT NULL, tier text NOT NULL, "
        "ttft_s double precision NOT NULL, tpot_s double precision NOT NULL, "
        "CONSTRAINT pk_model_targets PRIMARY KEY (model, tier), "
        "CONSTRAINT fk_model_targets_model FOREIGN KEY (model) REFERENCES models (name), "
        "CONSTRAINT ck_model_targets_tier CHECK (tier IN ('priority', 'standard', 'batch')), "
        "CONSTRAINT ck_model_targets_seconds CHECK (ttft_s BETWEEN 0.001 AND 3600 AND tpot_s BETWEEN 0.0001 AND 3600))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON model_targets TO penstock_system")
    op.execute("GRANT SELECT ON model_targets TO penstock_app")
