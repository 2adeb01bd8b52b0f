"""End users and tags of requests: `usage_labels`, a row for each request that names any, and the values they refer to.

A request without them has no row. `ix_usage_labels_ended_at` is what reports by end user and tag read.
"""

from alembic import op

revision = "0045_usage_labels"
down_revision = "0042_members_read_key_settings"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.execute(
        "CREATE TABLE label_values (id bigint GENERATED ALWAYS AS IDENTITY, tenant_id uuid NOT NULL, "
        "month date NOT NULL, name text NOT NULL, value text NOT NULL, "
        "CONSTRAINT pk_label_values PRIMARY KEY (id), "
        "CONSTRAINT fk_label_values_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id), "
        "CONSTRAINT uq_label_values_value UNIQUE (tenant_id, month, name, value))"
    )
    op.execute(
        "CREATE TABLE usage_labels (request_id uuid NOT NULL, tenant_id uuid NOT NULL, ended_at timestamptz NOT NULL, "
        "user_value bigint, tag_values bigint[] NOT NULL DEFAULT '{}', "
        "CONSTRAINT pk_usage_labels PRIMARY KEY (request_id), "
        "CONSTRAINT fk_usage_labels_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id))"
    )
    op.execute("CREATE INDEX ix_usage_labels_ended_at ON usage_labels (tenant_id, ended_at)")
    for table in ("label_values", "usage_labels"):
        op.execute(
            f"CREATE POLICY tenant_rows ON {table} TO penstock_app USING ({_TENANT}) WITH CHECK ({_TENANT})"
        )
        op.execute(f"CREATE POLICY all_rows ON {table} TO penstock_system USING (true) WITH CHECK (true)")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT ON {table} TO penstock_app")
        op.execute(f"GRANT SELECT, INSERT, DELETE ON {table} TO penstock_system")
