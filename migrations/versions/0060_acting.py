"""The autoscaler's plan is acted on: the stored plan, switches, budgets per month, overrides, and every act."""

from alembic import op

revision = "0060_acting"
down_revision = "0059_key_regions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE autoscaler_plan (one boolean NOT NULL DEFAULT true, term bigint NOT NULL, "
        "at timestamptz NOT NULL, plan jsonb NOT NULL, CONSTRAINT pk_autoscaler_plan PRIMARY KEY (one), "
        "CONSTRAINT ck_autoscaler_plan_one CHECK (one))"
    )
    op.execute(
        "CREATE TABLE acting_rules (one boolean NOT NULL DEFAULT true, mode text NOT NULL, "
        "budget_usd_pico_per_month numeric(38,0), CONSTRAINT pk_acting_rules PRIMARY KEY (one), "
        "CONSTRAINT ck_acting_rules_one CHECK (one), "
        "CONSTRAINT ck_acting_rules_mode CHECK (mode IN ('off', 'dry-run', 'on')), "
        "CONSTRAINT ck_acting_rules_budget CHECK (budget_usd_pico_per_month >= 0))"
    )
    op.execute(
        "CREATE TABLE pool_acts (act_id bigint GENERATED ALWAYS AS IDENTITY, "
        "at timestamptz NOT NULL DEFAULT clock_timestamp(), model text NOT NULL, target text NOT NULL, "
        "act text NOT NULL, reason text NOT NULL, mode text NOT NULL, result text NOT NULL, detail text NOT NULL, "
        "CONSTRAINT pk_pool_acts PRIMARY KEY (act_id), "
        "CONSTRAINT ck_pool_acts_result CHECK (result IN ('done', 'failed', 'refused', 'dry-run')))"
    )
    op.execute("CREATE INDEX ix_pool_acts_at ON pool_acts (at)")
    op.execute(
        "CREATE TABLE replica_holds (model text NOT NULL, awake integer NOT NULL, until timestamptz NOT NULL, "
        "reason text NOT NULL, CONSTRAINT pk_replica_holds PRIMARY KEY (model), "
        "CONSTRAINT replica_holds_model_fkey FOREIGN KEY (model) REFERENCES models (name), "
        "CONSTRAINT ck_replica_holds_awake CHECK (awake BETWEEN 0 AND 1024))"
    )
    op.execute(
        "ALTER TABLE model_scaling ADD COLUMN acting text, ADD COLUMN budget_usd_pico_per_month numeric(38,0), "
        "ADD CONSTRAINT ck_model_scaling_acting CHECK (acting IN ('off', 'dry-run', 'on')), "
        "ADD CONSTRAINT ck_model_scaling_month CHECK (budget_usd_pico_per_month >= 0)"
    )
    # The rows that exist were written by persons.
    op.execute(
        "ALTER TABLE desired_hosts ADD COLUMN owner text NOT NULL DEFAULT 'person', "
        "ADD COLUMN expires_at timestamptz, "
        "ADD CONSTRAINT ck_desired_hosts_owner CHECK (owner IN ('plan', 'person'))"
    )
    for table, rights in (
        ("autoscaler_plan", "SELECT, INSERT, UPDATE"),
        ("acting_rules", "SELECT, INSERT, UPDATE"),
        ("pool_acts", "SELECT, INSERT, DELETE"),
        ("replica_holds", "SELECT, INSERT, UPDATE, DELETE"),
    ):
        op.execute(f"GRANT {rights} ON {table} TO penstock_system")
