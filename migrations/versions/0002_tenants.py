"""Tenancy: organisations, projects, keys, limits, people, audit, and the change feed that API processes follow."""

from alembic import op

from migrations.support import enable_rls, grant

revision = "0002_tenants"
down_revision = "0001_base"
branch_labels = None
depends_on = None

_TABLES = (
    """
    CREATE TABLE tenants (
      id uuid CONSTRAINT pk_tenants PRIMARY KEY,
      name text NOT NULL CONSTRAINT ck_tenants_name CHECK (length(name) BETWEEN 1 AND 100),
      slug text NOT NULL CONSTRAINT uq_tenants_slug UNIQUE,
      status text NOT NULL DEFAULT 'active' CONSTRAINT ck_tenants_status CHECK (status IN ('active', 'suspended')),
      tier text NOT NULL DEFAULT 'standard'
        CONSTRAINT ck_tenants_tier CHECK (tier IN ('priority', 'standard', 'batch')),
      created_at timestamptz NOT NULL DEFAULT now(),
      throttle_until timestamptz,
      throttle_requests_per_min integer CONSTRAINT ck_tenants_throttle_requests CHECK (throttle_requests_per_min > 0),
      throttle_concurrency integer CONSTRAINT ck_tenants_throttle_concurrency CHECK (throttle_concurrency > 0)
    )
    """,
    """
    CREATE TABLE projects (
      id uuid CONSTRAINT pk_projects PRIMARY KEY,
      tenant_id uuid NOT NULL CONSTRAINT fk_projects_tenant_id REFERENCES tenants (id),
      name text NOT NULL CONSTRAINT ck_projects_name CHECK (length(name) BETWEEN 1 AND 100),
      status text NOT NULL DEFAULT 'active' CONSTRAINT ck_projects_status CHECK (status IN ('active', 'archived')),
      created_at timestamptz NOT NULL DEFAULT now(),
      CONSTRAINT uq_projects_tenant_id_name UNIQUE (tenant_id, name),
      CONSTRAINT uq_projects_tenant_id_id UNIQUE (tenant_id, id)
    )
    """,
    # The composite foreign key keeps a key and its project in one organisation.
    """
    CREATE TABLE api_keys (
      id uuid CONSTRAINT pk_api_keys PRIMARY KEY,
      tenant_id uuid NOT NULL CONSTRAINT fk_api_keys_tenant_id REFERENCES tenants (id),
      project_id uuid NOT NULL,
      name text NOT NULL CONSTRAINT ck_api_keys_name CHECK (length(name) BETWEEN 1 AND 100),
      kind text NOT NULL CONSTRAINT ck_api_keys_kind CHECK (kind IN ('live', 'test')),
      hash bytea NOT NULL CONSTRAINT uq_api_keys_hash UNIQUE,
      last4 text NOT NULL CONSTRAINT ck_api_keys_last4 CHECK (length(last4) = 4),
      status text NOT NULL DEFAULT 'active' CONSTRAINT ck_api_keys_status CHECK (status IN ('active', 'revoked')),
      allowed_models text[],
      created_at timestamptz NOT NULL DEFAULT now(),
      expires_at timestamptz,
      revoked_at timestamptz,
      last_used_at timestamptz,
      CONSTRAINT ck_api_keys_hash CHECK (length(hash) = 32),
      CONSTRAINT fk_api_keys_tenant_id_project_id FOREIGN KEY (tenant_id, project_id)
        REFERENCES projects (tenant_id, id)
    )
    """,
    "CREATE INDEX ix_api_keys_tenant_id_project_id ON api_keys (tenant_id, project_id)",
    "CREATE INDEX ix_api_keys_expires_at ON api_keys (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE TABLE limits (
      scope_kind text NOT NULL CONSTRAINT ck_limits_scope_kind CHECK (scope_kind IN ('tenant', 'project', 'key')),
      scope_id uuid NOT NULL,
      tenant_id uuid NOT NULL CONSTRAINT fk_limits_tenant_id REFERENCES tenants (id),
      requests_per_min bigint CONSTRAINT ck_limits_requests_per_min CHECK (requests_per_min > 0),
      input_tokens_per_min bigint CONSTRAINT ck_limits_input_tokens_per_min CHECK (input_tokens_per_min > 0),
      output_tokens_per_min bigint CONSTRAINT ck_limits_output_tokens_per_min CHECK (output_tokens_per_min > 0),
      concurrency bigint CONSTRAINT ck_limits_concurrency CHECK (concurrency > 0),
      tokens_per_day bigint CONSTRAINT ck_limits_tokens_per_day CHECK (tokens_per_day > 0),
      CONSTRAINT pk_limits PRIMARY KEY (scope_kind, scope_id)
    )
    """,
    "CREATE INDEX ix_limits_tenant_id ON limits (tenant_id)",
    """
    CREATE TABLE users (
      id uuid CONSTRAINT pk_users PRIMARY KEY,
      email text NOT NULL CONSTRAINT uq_users_email UNIQUE,
      password_hash text NOT NULL,
      status text NOT NULL DEFAULT 'active' CONSTRAINT ck_users_status CHECK (status IN ('active', 'disabled')),
      created_at timestamptz NOT NULL DEFAULT now(),
      CONSTRAINT ck_users_email CHECK (email = lower(email) AND length(email) <= 254)
    )
    """,
    """
    CREATE TABLE memberships (
      user_id uuid CONSTRAINT pk_memberships PRIMARY KEY CONSTRAINT fk_memberships_user_id REFERENCES users (id),
      tenant_id uuid CONSTRAINT fk_memberships_tenant_id REFERENCES tenants (id),
      role text NOT NULL,
      CONSTRAINT ck_memberships_role CHECK (
        CASE WHEN tenant_id IS NULL THEN role IN ('platform_admin', 'finance')
             ELSE role IN ('tenant_owner', 'tenant_developer', 'tenant_viewer') END)
    )
    """,
    "CREATE INDEX ix_memberships_tenant_id ON memberships (tenant_id)",
    """
    CREATE TABLE admin_tokens (
      id uuid CONSTRAINT pk_admin_tokens PRIMARY KEY,
      user_id uuid NOT NULL CONSTRAINT fk_admin_tokens_user_id REFERENCES users (id),
      name text NOT NULL CONSTRAINT ck_admin_tokens_name CHECK (length(name) BETWEEN 1 AND 100),
      hash bytea NOT NULL CONSTRAINT uq_admin_tokens_hash UNIQUE,
      last4 text NOT NULL,
      created_at timestamptz NOT NULL DEFAULT now(),
      expires_at timestamptz,
      revoked_at timestamptz,
      last_used_at timestamptz
    )
    """,
    "CREATE INDEX ix_admin_tokens_user_id ON admin_tokens (user_id)",
    # No foreign key to tenants: the log outlives what it tells about.
    """
    CREATE TABLE audit_log (
      id uuid CONSTRAINT pk_audit_log PRIMARY KEY,
      at timestamptz NOT NULL DEFAULT now(),
      actor_kind text NOT NULL,
      actor_id text NOT NULL,
      actor_label text NOT NULL,
      action text NOT NULL,
      tenant_id uuid,
      object_kind text NOT NULL,
      object_id text NOT NULL,
      reason text,
      before jsonb,
      after jsonb
    )
    """,
    "CREATE INDEX ix_audit_log_tenant_id_id ON audit_log (tenant_id, id)",
    """
    CREATE TABLE tenancy_changes (
      id bigint GENERATED BY DEFAULT AS IDENTITY CONSTRAINT pk_tenancy_changes PRIMARY KEY,
      kind text NOT NULL,
      tenant_id uuid NOT NULL,
      object_id uuid NOT NULL,
      at timestamptz NOT NULL DEFAULT now(),
      xact bigint NOT NULL
    )
    """,
    "CREATE INDEX ix_tenancy_changes_xact ON tenancy_changes (xact)",
    """
    CREATE TABLE login_failures (
      subject bytea CONSTRAINT pk_login_failures PRIMARY KEY,
      failures integer NOT NULL,
      window_start timestamptz NOT NULL DEFAULT now()
    )
    """,
)

# The feed is written by triggers, with the owner's rights, so that no code path can forget it.
# Arguments of the trigger: kind, column of the tenant, column of the object.
_CHANGE_FEED = (
    """
    CREATE FUNCTION penstock_note_tenancy_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
    DECLARE
      changed jsonb;
    BEGIN
      IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
      INSERT INTO tenancy_changes (kind, tenant_id, object_id, xact)
      VALUES (TG_ARGV[0], (changed ->> TG_ARGV[1])::uuid, (changed ->> TG_ARGV[2])::uuid,
              pg_current_xact_id()::text::bigint);
      RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON tenants
    FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('tenant', 'id', 'id')
    """,
    """
    CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('project', 'tenant_id', 'id')
    """,
    # Not on last_used_at: batches of it must not wake every API process.
    """
    CREATE TRIGGER note_change AFTER INSERT OR DELETE
      OR UPDATE OF tenant_id, project_id, kind, hash, status, allowed_models, expires_at ON api_keys
    FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('key', 'tenant_id', 'id')
    """,
    """
    CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON limits
    FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('limits', 'tenant_id', 'scope_id')
    """,
)

_APPEND_ONLY = (
    """
    CREATE FUNCTION penstock_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'audit_log is append-only' USING ERRCODE = 'insufficient_privilege';
    END $$
    """,
    """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION penstock_audit_is_append_only()
    """,
)

# A tenant's own session: no hash can be read, none of another tenant's rows be seen, nothing be moved between tenants.
_APP_GRANTS = (
    "GRANT SELECT, UPDATE (name) ON tenants TO penstock_app",
    "GRANT SELECT, INSERT, UPDATE (name, status) ON projects TO penstock_app",
    """
    GRANT SELECT (id, tenant_id, project_id, name, kind, last4, status, allowed_models, created_at, expires_at,
                  revoked_at, last_used_at),
          INSERT, UPDATE (name, status, revoked_at) ON api_keys TO penstock_app
    """,
    "GRANT SELECT, INSERT, UPDATE, DELETE ON limits TO penstock_app",
    "GRANT SELECT ON memberships TO penstock_app",
    "GRANT SELECT, INSERT ON audit_log TO penstock_app",
)


def upgrade() -> None:
    for statement in (*_TABLES, *_CHANGE_FEED, *_APPEND_ONLY):
        op.execute(statement)
    enable_rls(op, "tenants", tenant_column="id")
    for table in ("projects", "api_keys", "limits", "memberships", "audit_log"):
        enable_rls(op, table)
    for table in ("tenants", "projects", "api_keys", "limits", "users", "memberships", "admin_tokens"):
        grant(op, table, app="")
    grant(op, "login_failures", app="")
    grant(op, "audit_log", app="", system="SELECT, INSERT")
    grant(op, "tenancy_changes", app="", system="SELECT, DELETE")
    for statement in _APP_GRANTS:
        op.execute(statement)


def downgrade() -> None:
    for table in (
        "login_failures",
        "tenancy_changes",
        "audit_log",
        "admin_tokens",
        "memberships",
        "users",
        "limits",
        "api_keys",
        "projects",
        "tenants",
    ):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION penstock_note_tenancy_change")
    op.execute("DROP FUNCTION penstock_audit_is_append_only")
