"""Identity providers (OpenID Connect) of organisations and of the platform, and whose people they have named."""

from alembic import op

revision = "0078_identity_providers"
down_revision = "0077_kind_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE identity_providers (id uuid NOT NULL, tenant_id uuid, issuer text NOT NULL, "
        "client_id text NOT NULL, sealed_client_secret bytea NOT NULL, mail_domains text[] NOT NULL, "
        "default_role text, "
        "CONSTRAINT pk_identity_providers PRIMARY KEY (id), "
        "CONSTRAINT uq_identity_providers_tenant_id UNIQUE NULLS NOT DISTINCT (tenant_id), "
        "CONSTRAINT fk_identity_providers_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id))"
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON identity_providers TO penstock_system")
    op.execute(
        "CREATE TABLE identity_links (issuer text NOT NULL, subject text NOT NULL, user_id uuid NOT NULL, "
        "created_at timestamptz NOT NULL DEFAULT now(), "
        "CONSTRAINT pk_identity_links PRIMARY KEY (issuer, subject), "
        "CONSTRAINT fk_identity_links_user_id FOREIGN KEY (user_id) REFERENCES users (id))"
    )
    op.execute("CREATE INDEX ix_identity_links_user_id ON identity_links (user_id)")
    op.execute("GRANT SELECT, INSERT, DELETE ON identity_links TO penstock_system")
