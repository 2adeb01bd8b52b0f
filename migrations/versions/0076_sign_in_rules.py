"""How people of an organisation, or of the platform (without one), must sign in; without a row a password is enough."""

from alembic import op

revision = "0076_sign_in_rules"
down_revision = "0075_second_factors"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE sign_in_rules (tenant_id uuid, rule text NOT NULL, "
        "CONSTRAINT uq_sign_in_rules_tenant_id UNIQUE NULLS NOT DISTINCT (tenant_id), "
        "CONSTRAINT fk_sign_in_rules_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id), "
        "CONSTRAINT ck_sign_in_rules_rule CHECK (rule IN ('password', 'second_factor', 'oidc')))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON sign_in_rules TO penstock_system")
