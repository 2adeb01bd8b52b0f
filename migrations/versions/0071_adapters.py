"""LoRA adapters of organisations, with their files in parts."""

from alembic import op

revision = "0071_adapters"
down_revision = "0070_token_scopes"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid"


def upgrade() -> None:
    op.execute(
        "CREATE TABLE adapters (id uuid NOT NULL, tenant_id uuid NOT NULL, model text NOT NULL, name text NOT NULL, "
        "public_name text NOT NULL, source text NOT NULL, rank integer NOT NULL, bytes bigint NOT NULL, "
        "files jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), deleted_at timestamptz, "
        "CONSTRAINT pk_adapters PRIMARY KEY (id), "
        "CONSTRAINT uq_adapters_public_name UNIQUE (public_name), "
        "CONSTRAINT fk_adapters_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id), "
        "CONSTRAINT fk_adapters_model FOREIGN KEY (model) REFERENCES models (name))"
    )
    op.execute(
        "CREATE UNIQUE INDEX uq_adapters_tenant_id_model_name ON adapters (tenant_id, model, name) "
        "WHERE deleted_at IS NULL"
    )
    op.execute(
        f"CREATE POLICY tenant_rows ON adapters TO penstock_app USING ({_TENANT}) WITH CHECK ({_TENANT})"
    )
    op.execute("CREATE POLICY all_rows ON adapters TO penstock_system USING (true) WITH CHECK (true)")
    op.execute("ALTER TABLE adapters ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT ON adapters TO penstock_app")
    op.execute("GRANT SELECT, INSERT ON adapters TO penstock_system")
    op.execute("GRANT UPDATE (deleted_at) ON adapters TO penstock_system")
    op.execute(
        "CREATE TABLE adapter_parts (adapter_id uuid NOT NULL, path text NOT NULL, part integer NOT NULL, "
        "data bytea NOT NULL, CONSTRAINT pk_adapter_parts PRIMARY KEY (adapter_id, path, part))"
    )
    op.execute("ALTER TABLE adapter_parts ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute("GRANT SELECT, INSERT, DELETE ON adapter_parts TO penstock_system")
