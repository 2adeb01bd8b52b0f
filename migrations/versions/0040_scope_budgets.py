"""Budgets of projects and keys that stop; keys restricted by address and scope, and rotated with an overlap.

`billing_accounts.has_scope_budgets` tells penstock_hold whether the organisation has such budgets at all. After a
rotation `api_keys.previous_hash` is the hash of the secret before it, which is accepted until `previous_until`.
"""

from alembic import op

revision = "0040_scope_budgets"
down_revision = "0034_settle_with_unbilled"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE billing_accounts ADD COLUMN has_scope_budgets boolean NOT NULL DEFAULT false")
    op.execute(
        "CREATE TABLE scope_budgets (scope_id uuid NOT NULL, tenant_id uuid NOT NULL, scope text NOT NULL, "
        "amount numeric(38,0) NOT NULL, held numeric(38,0) NOT NULL DEFAULT 0, "
        "spent_month numeric(38,0) NOT NULL DEFAULT 0, month date NOT NULL, "
        "CONSTRAINT pk_scope_budgets PRIMARY KEY (scope_id), "
        "CONSTRAINT fk_scope_budgets_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id), "
        "CONSTRAINT ck_scope_budgets_scope CHECK (scope IN ('project', 'key')), "
        "CONSTRAINT ck_scope_budgets_amounts CHECK (amount >= 0 AND held >= 0))"
    )
    op.execute("CREATE INDEX ix_scope_budgets_tenant_id ON scope_budgets (tenant_id)")
    op.execute(
        "CREATE POLICY tenant_rows ON scope_budgets TO penstock_app "
        "USING (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid) "
        "WITH CHECK (tenant_id = nullif(current_setting('penstock.tenant_id', true), '')::uuid)"
    )
    op.execute("CREATE POLICY all_rows ON scope_budgets TO penstock_system USING (true) WITH CHECK (true)")
    op.execute("ALTER TABLE scope_budgets ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT ON scope_budgets TO penstock_app")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON scope_budgets TO penstock_system")
    op.execute(
        "ALTER TABLE api_keys ADD COLUMN networks text[], ADD COLUMN scopes text[], "
        "ADD COLUMN previous_hash bytea, ADD COLUMN previous_until timestamptz, "
        "ADD CONSTRAINT ck_api_keys_previous CHECK ((previous_hash IS NULL) = (previous_until IS NULL))"
    )
    op.execute(
        "CREATE UNIQUE INDEX uq_api_keys_previous_hash ON api_keys (previous_hash) "
        "WHERE previous_hash IS NOT NULL"
    )
    op.execute(
        "GRANT SELECT (networks, scopes, previous_until), "
        "UPDATE (allowed_models, expires_at, networks, scopes) ON api_keys TO penstock_app"
    )
