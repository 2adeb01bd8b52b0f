"""Responses that customers may continue and read again until they expire."""

from alembic import op

revision = "0047_stored_responses"
down_revision = "0045_usage_labels"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE stored_responses (id uuid NOT NULL, tenant_id uuid NOT NULL, project_id uuid NOT NULL, "
        "previous_id uuid, created_at timestamptz NOT NULL DEFAULT now(), expires_at timestamptz NOT NULL, "
        "input bytea NOT NULL, response bytea NOT NULL, "
        "CONSTRAINT pk_stored_responses PRIMARY KEY (id), "
        "CONSTRAINT fk_stored_responses_tenant_id_project_id FOREIGN KEY (tenant_id, project_id) "
        "REFERENCES projects (tenant_id, id))"
    )
    op.execute(
        "CREATE INDEX ix_stored_responses_tenant_id_project_id ON stored_responses (tenant_id, project_id)"
    )
    op.execute("CREATE INDEX ix_stored_responses_expires_at ON stored_responses (expires_at)")
    op.execute(
        "CREATE POLICY tenant_rows ON stored_responses TO penstock_app "
        "USING (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid) "
        "WITH CHECK (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid)"
    )
    op.execute("CREATE POLICY all_rows ON stored_responses TO penstock_system USING (true) WITH CHECK (true)")
    op.execute("ALTER TABLE stored_responses ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, DELETE ON stored_responses TO penstock_app")
    op.execute("GRANT SELECT, DELETE ON stored_responses TO penstock_system")
