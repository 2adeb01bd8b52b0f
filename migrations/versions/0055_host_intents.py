"""Hosts from providers: desired hosts, intents, and every call with its result."""

from alembic import op

revision = "0055_host_intents"
down_revision = "0051_scheduler_lease"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE desired_hosts (provider text NOT NULL, region text NOT NULL, kind text NOT NULL, "
        "model text NOT NULL, count integer NOT NULL, "
        "CONSTRAINT pk_desired_hosts PRIMARY KEY (provider, region, kind, model), "
        "CONSTRAINT ck_desired_hosts_count CHECK (count BETWEEN 0 AND 1024))"
    )
    op.execute(
        "CREATE TABLE host_intents (intent_id uuid NOT NULL, provider text NOT NULL, region text NOT NULL, "
        "kind text NOT NULL, model text NOT NULL, name text NOT NULL, requested_at timestamptz NOT NULL, "
        "wanted boolean NOT NULL, why text NOT NULL, state text NOT NULL, called_at timestamptz, "
        "calls integer NOT NULL, failures integer NOT NULL, failed_at timestamptz, next_at timestamptz, "
        "provider_id text, status text NOT NULL, status_since timestamptz, running_at timestamptz, "
        "created_at timestamptz, usd_pico_per_hour numeric(38,0), billed boolean NOT NULL, destroy_at timestamptz, "
        "missing_since timestamptz, ended_at timestamptz, end_recorded boolean NOT NULL, reclaim_at timestamptz, "
        "CONSTRAINT pk_host_intents PRIMARY KEY (intent_id), "
        "CONSTRAINT ck_host_intents_state CHECK (state IN ('written', 'called', 'exists', 'ended')), "
        "CONSTRAINT ck_host_intents_ended CHECK ((state = 'ended') = (ended_at IS NOT NULL)))"
    )
    op.execute("CREATE INDEX ix_host_intents_open ON host_intents (provider) WHERE state <> 'ended'")
    op.execute("CREATE INDEX ix_host_intents_name ON host_intents (name)")
    op.execute("CREATE UNIQUE INDEX uq_host_intents_provider_id ON host_intents (provider, provider_id)")
    op.execute(
        "CREATE TABLE host_events (event_id bigint GENERATED ALWAYS AS IDENTITY, "
        "at timestamptz NOT NULL DEFAULT clock_timestamp(), provider text NOT NULL, intent_id uuid, "
        "call text NOT NULL, outcome text NOT NULL, status integer NOT NULL, detail text NOT NULL, "
        "provider_id text, usd_pico_per_hour numeric(38,0), CONSTRAINT pk_host_events PRIMARY KEY (event_id))"
    )
    op.execute("CREATE INDEX ix_host_events_intent_id ON host_events (intent_id)")
    op.execute("CREATE INDEX ix_host_events_at ON host_events (at)")
    op.execute(
        "CREATE TABLE host_providers (provider text NOT NULL, not_before timestamptz, whole_at timestamptz, "
        "CONSTRAINT pk_host_providers PRIMARY KEY (provider))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON desired_hosts TO penstock_system")
    op.execute("GRANT SELECT, INSERT, UPDATE ON host_intents TO penstock_system")
    op.execute("GRANT SELECT, INSERT, DELETE ON host_events TO penstock_system")
    op.execute("GRANT SELECT, INSERT, UPDATE ON host_providers TO penstock_system")
