"""Rollouts of new versions of engines, the version that each model has, and that of each engine incarnation."""

from alembic import op

revision = "0064_rollouts"
down_revision = "0063_model_life"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE rollouts (rollout_id uuid NOT NULL DEFAULT gen_random_uuid(), "
        "model text NOT NULL CONSTRAINT fk_rollouts_model_models REFERENCES models (name), "
        "before jsonb NOT NULL, after jsonb NOT NULL, strategy jsonb NOT NULL, "
        "state text NOT NULL, reason text NOT NULL, progress jsonb NOT NULL, "
        "started_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "changed_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz, "
        "CONSTRAINT pk_rollouts PRIMARY KEY (rollout_id), "
        "CONSTRAINT ck_rollouts_state CHECK "
        "(state IN ('canary', 'progressing', 'rolling_back', 'promoted', 'rolled_back')), "
        "CONSTRAINT ck_rollouts_ended CHECK ((ended_at IS NULL) = (state NOT IN ('promoted', 'rolled_back'))))"
    )
    op.execute("CREATE UNIQUE INDEX uq_rollouts_active ON rollouts (model) WHERE ended_at IS NULL")
    op.execute("CREATE INDEX ix_rollouts_started_at ON rollouts (started_at)")
    op.execute(
        "CREATE TABLE model_deployments ("
        "model text NOT NULL CONSTRAINT fk_model_deployments_model_models REFERENCES models (name), "
        "spec jsonb NOT NULL, since timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "CONSTRAINT pk_model_deployments PRIMARY KEY (model))"
    )
    op.execute("ALTER TABLE engine_counters ADD COLUMN version text NOT NULL DEFAULT ''")
    for table in ("rollouts", "model_deployments"):
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO penstock_system")
