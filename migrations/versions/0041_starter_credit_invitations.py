"""The credit that new prepaid organisations get, absent until it is set; and invitations of members."""

from alembic import op

revision = "0041_starter_credit_invitations"
down_revision = "0040_scope_budgets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE starter_credit (id smallint NOT NULL DEFAULT 1, amount numeric(38,0) NOT NULL, "
        "expires_days integer, "
        "CONSTRAINT pk_starter_credit PRIMARY KEY (id), "
        "CONSTRAINT ck_starter_credit_one_row CHECK (id = 1), "
        "CONSTRAINT ck_starter_credit_amount CHECK (amount >= 0), "
        "CONSTRAINT ck_starter_credit_expires_days CHECK (expires_days > 0))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON starter_credit TO penstock_system")
    op.execute(
        "CREATE TABLE invitations (id uuid NOT NULL, tenant_id uuid NOT NULL, email text NOT NULL, role text NOT NULL, "
        "hash bytea NOT NULL, invited_by text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), "
        "expires_at timestamptz NOT NULL, accepted_at timestamptz, revoked_at timestamptz, "
        "CONSTRAINT pk_invitations PRIMARY KEY (id), CONSTRAINT uq_invitations_hash UNIQUE (hash), "
        "CONSTRAINT fk_invitations_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id), "
        "CONSTRAINT ck_invitations_role CHECK (role IN ('tenant_owner', 'tenant_developer', 'tenant_viewer')))"
    )
    op.execute("CREATE INDEX ix_invitations_tenant_id ON invitations (tenant_id)")
    op.execute(
        "CREATE POLICY tenant_rows ON invitations TO penstock_app "
        "USING (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid) "
        "WITH CHECK (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid)"
    )
    op.execute("CREATE POLICY all_rows ON invitations TO penstock_system USING (true) WITH CHECK (true)")
    op.execute("ALTER TABLE invitations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE ON invitations TO penstock_system")
