"""Refused administrative acts of the present minute, the cursor of syslog, and the data set of the audit log.

Processes of the release before record no refusals.
"""

from alembic import op

revision = "0087_denied_acts"
down_revision = "0086_audit_chain"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE denied_acts (actor_kind text NOT NULL, actor_id text NOT NULL, act text NOT NULL, "
        "code text NOT NULL, minute timestamptz NOT NULL, actor_label text NOT NULL, tenant_id uuid, "
        "address text NOT NULL, count bigint NOT NULL DEFAULT 1, "
        "first_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "last_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "CONSTRAINT pk_denied_acts PRIMARY KEY (actor_kind, actor_id, act, code, minute))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON denied_acts TO penstock_system")
    op.execute(
        "CREATE TABLE audit_cursors (receiver text NOT NULL, seq bigint NOT NULL, "
        "CONSTRAINT pk_audit_cursors PRIMARY KEY (receiver))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON audit_cursors TO penstock_system")
    op.execute(
        "ALTER TABLE export_definitions DROP CONSTRAINT ck_export_definitions_dataset, "
        "ADD CONSTRAINT ck_export_definitions_dataset CHECK (dataset IN "
        "('report', 'focus_charges', 'focus_gpu', 'journal', 'invoices', 'audit'))"
    )
