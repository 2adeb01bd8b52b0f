-- Organisations, projects, keys, limits, people, the audit log, and the feed of changes that API processes follow.
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
    throttle_concurrency integer CONSTRAINT ck_tenants_throttle_concurrency CHECK (throttle_concurrency > 0),
    -- The organisation's share of a busy pool, in percent of one ordinary organisation of its tier.
    share_percent integer NOT NULL DEFAULT 100
        CONSTRAINT ck_tenants_share_percent CHECK (share_percent BETWEEN 1 AND 10000)
);
CREATE TABLE projects (
    id uuid CONSTRAINT pk_projects PRIMARY KEY,
    tenant_id uuid NOT NULL CONSTRAINT fk_projects_tenant_id REFERENCES tenants (id),
    name text NOT NULL CONSTRAINT ck_projects_name CHECK (length(name) BETWEEN 1 AND 100),
    status text NOT NULL DEFAULT 'active' CONSTRAINT ck_projects_status CHECK (status IN ('active', 'archived')),
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_projects_tenant_id_name UNIQUE (tenant_id, name),
    CONSTRAINT uq_projects_tenant_id_id UNIQUE (tenant_id, id)
);
-- The composite foreign key keeps a key and its project in one organisation.
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
);
CREATE INDEX ix_api_keys_tenant_id_project_id ON api_keys (tenant_id, project_id);
CREATE INDEX ix_api_keys_expires_at ON api_keys (expires_at) WHERE expires_at IS NOT NULL;
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
);
CREATE INDEX ix_limits_tenant_id ON limits (tenant_id);
CREATE TABLE users (
    id uuid CONSTRAINT pk_users PRIMARY KEY,
    email text NOT NULL CONSTRAINT uq_users_email UNIQUE,
    password_hash text NOT NULL,
    status text NOT NULL DEFAULT 'active' CONSTRAINT ck_users_status CHECK (status IN ('active', 'disabled')),
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_users_email CHECK (email = lower(email) AND length(email) <= 254)
);
CREATE TABLE memberships (
    user_id uuid CONSTRAINT pk_memberships PRIMARY KEY CONSTRAINT fk_memberships_user_id REFERENCES users (id),
    tenant_id uuid CONSTRAINT fk_memberships_tenant_id REFERENCES tenants (id),
    role text NOT NULL,
    CONSTRAINT ck_memberships_role CHECK (
        CASE WHEN tenant_id IS NULL THEN role IN ('platform_admin', 'finance')
                  ELSE role IN ('tenant_owner', 'tenant_developer', 'tenant_viewer') END)
);
CREATE INDEX ix_memberships_tenant_id ON memberships (tenant_id);
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
);
CREATE INDEX ix_admin_tokens_user_id ON admin_tokens (user_id);
-- There is no foreign key to tenants: the log outlives the objects that it describes.
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
);
CREATE INDEX ix_audit_log_tenant_id_id ON audit_log (tenant_id, id);
-- Written by triggers (tenants/sql/change_feed.sql). API processes read it by transaction id.
CREATE TABLE tenancy_changes (
    id bigint GENERATED BY DEFAULT AS IDENTITY CONSTRAINT pk_tenancy_changes PRIMARY KEY,
    kind text NOT NULL,
    tenant_id uuid NOT NULL,
    object_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    xact bigint NOT NULL
);
CREATE INDEX ix_tenancy_changes_xact ON tenancy_changes (xact);
CREATE TABLE login_failures (
    subject bytea CONSTRAINT pk_login_failures PRIMARY KEY,
    failures integer NOT NULL,
    window_start timestamptz NOT NULL DEFAULT now()
);
