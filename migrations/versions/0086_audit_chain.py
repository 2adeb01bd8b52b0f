"""The seal of the audit log: its own hash chain, whose head the links of the ledger's chain cover.

Rows of before wait in `audit_unsealed` like new ones; the first run of the job seals them. Processes of the release
before seal transfers alone, and their `penstock ledger verify` reports a link over the audit log as a gap.
"""

from alembic import op

revision = "0086_audit_chain"
down_revision = "0079_host_contracts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE audit_chain (seq bigint NOT NULL, entry_id uuid NOT NULL, hash bytea NOT NULL, "
        "CONSTRAINT pk_audit_chain PRIMARY KEY (seq), CONSTRAINT uq_audit_chain_entry_id UNIQUE (entry_id))"
    )
    op.execute("GRANT SELECT, INSERT ON audit_chain TO penstock_system")
    op.execute(
        "CREATE TABLE audit_unsealed (entry_id uuid NOT NULL, CONSTRAINT pk_audit_unsealed PRIMARY KEY (entry_id))"
    )
    op.execute("GRANT SELECT, INSERT, DELETE ON audit_unsealed TO penstock_system")
    op.execute("GRANT INSERT ON audit_unsealed TO penstock_app")
    op.execute("ALTER TABLE ledger_seals ADD COLUMN audit_seq bigint")
    # No row comes between this list and the trigger, which the same transaction makes.
    op.execute("LOCK TABLE audit_log IN SHARE ROW EXCLUSIVE MODE")
    # As the role whose policy shows all rows: row-level security hides them from an owner that inherits no role.
    op.execute("SET LOCAL ROLE penstock_system")
    op.execute("INSERT INTO audit_unsealed SELECT id FROM audit_log")
    op.execute("RESET ROLE")
