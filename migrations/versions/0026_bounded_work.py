"""Tables and indexes of work that does not grow with history: checkpoints of the ledger, comparisons with Stripe.

The index of the transfers that are no usage replaces one of three kinds; its build reads the ledger once.
"""

from alembic import op

revision = "0026_bounded_work"
down_revision = "0025_key_tags"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE ledger_checkpoints ("
        "seq bigint NOT NULL, hash bytea NOT NULL, transfers bigint NOT NULL, last_id bigint NOT NULL, "
        "verified_at timestamptz NOT NULL DEFAULT clock_timestamp(), problem text, "
        "CONSTRAINT pk_ledger_checkpoints PRIMARY KEY (seq))"
    )
    op.execute(
        "CREATE TABLE ledger_months ("
        "month date NOT NULL, account bigint NOT NULL, kind text NOT NULL, debit numeric(38,0) NOT NULL, "
        "credit numeric(38,0) NOT NULL, CONSTRAINT pk_ledger_months PRIMARY KEY (month, account, kind))"
    )
    op.execute(
        "CREATE TABLE stripe_compared ("
        "month date NOT NULL, kind text NOT NULL, object_id text NOT NULL, digest bytea NOT NULL, "
        "figures bigint[] NOT NULL, compared_at timestamptz NOT NULL, "
        "CONSTRAINT pk_stripe_compared PRIMARY KEY (month, kind, object_id), "
        "CONSTRAINT ck_stripe_compared_kind CHECK (kind IN ('invoice', 'cash', 'meter')))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON ledger_checkpoints, ledger_months TO penstock_system")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stripe_compared TO penstock_system")
    op.execute("ALTER TABLE usage_day_state ADD COLUMN verified boolean NOT NULL DEFAULT false")
    op.execute("DROP INDEX ix_ledger_transfers_rare")
    op.execute(
        "CREATE INDEX ix_ledger_transfers_rare ON ledger_transfers (kind, effective_at) WHERE kind <> 'usage'"
    )
    op.execute("CREATE INDEX ix_stripe_meter_events_hour ON stripe_meter_events USING brin (hour)")
    op.execute("CREATE INDEX ix_stripe_events_object_id ON stripe_events (object_id)")
