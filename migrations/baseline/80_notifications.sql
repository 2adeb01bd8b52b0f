-- Notices and where they go; budgets, thresholds and low-balance marks.
-- Notices to customers and to the platform, written in the transaction of their cause and sent by a job.
CREATE TABLE notices (
    id uuid NOT NULL,
    tenant_id uuid,
    kind text NOT NULL,
    subject text NOT NULL,
    body text NOT NULL,
    facts jsonb NOT NULL,
    dedupe_key text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    planned_at timestamptz,
    CONSTRAINT pk_notices PRIMARY KEY (id),
    CONSTRAINT fk_notices_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_notices_dedupe_key UNIQUE (dedupe_key)
);
CREATE INDEX ix_notices_tenant_id_created_at ON notices (tenant_id, created_at);
CREATE INDEX ix_notices_unplanned ON notices (created_at) WHERE planned_at IS NULL;
-- Destinations: https addresses and mailboxes of an organisation, or of the platform (tenant_id is null).
CREATE TABLE notice_endpoints (
    id uuid NOT NULL,
    tenant_id uuid,
    channel text NOT NULL,
    target text NOT NULL,
    kinds text[],
    secret_version integer NOT NULL DEFAULT 1,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    removed_at timestamptz,
    CONSTRAINT pk_notice_endpoints PRIMARY KEY (id),
    CONSTRAINT fk_notice_endpoints_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_notice_endpoints_channel CHECK (channel IN ('webhook', 'email'))
);
CREATE INDEX ix_notice_endpoints_tenant_id ON notice_endpoints (tenant_id) WHERE removed_at IS NULL;
CREATE TABLE notice_deliveries (
    id uuid NOT NULL,
    notice_id uuid NOT NULL,
    endpoint_id uuid,
    tenant_id uuid,
    channel text NOT NULL,
    target text NOT NULL,
    state text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0,
    next_try_at timestamptz DEFAULT clock_timestamp(),
    last_error text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at timestamptz,
    CONSTRAINT pk_notice_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_notice_deliveries_notice_id FOREIGN KEY (notice_id) REFERENCES notices (id),
    CONSTRAINT fk_notice_deliveries_endpoint_id FOREIGN KEY (endpoint_id) REFERENCES notice_endpoints (id),
    CONSTRAINT uq_notice_deliveries_notice_id_channel_target UNIQUE (notice_id, channel, target),
    CONSTRAINT ck_notice_deliveries_state CHECK (state IN ('pending', 'delivered', 'outbox', 'failed')),
    CONSTRAINT ck_notice_deliveries_due CHECK ((state = 'pending') = (next_try_at IS NOT NULL))
);
CREATE INDEX ix_notice_deliveries_due ON notice_deliveries (next_try_at) WHERE state = 'pending';
CREATE INDEX ix_notice_deliveries_tenant_id ON notice_deliveries (tenant_id);
-- Budgets of projects and keys, thresholds, and the low-balance mark. The budget of a whole organisation is
-- billing_accounts.budget, which holds enforce; its rule here only carries thresholds.
CREATE TABLE alert_rules (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    scope text NOT NULL,
    scope_id uuid NOT NULL,
    amount numeric(38,0),
    thresholds smallint[] NOT NULL,
    fired_at timestamptz,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_alert_rules PRIMARY KEY (id),
    CONSTRAINT fk_alert_rules_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_alert_rules_tenant_id_kind_scope_id UNIQUE (tenant_id, kind, scope_id),
    CONSTRAINT ck_alert_rules_kind CHECK (kind IN ('budget', 'low_balance')),
    CONSTRAINT ck_alert_rules_scope CHECK (scope IN ('tenant', 'project', 'key')
        AND (kind = 'budget' OR scope = 'tenant')),
    CONSTRAINT ck_alert_rules_amount CHECK (CASE WHEN kind = 'budget' AND scope = 'tenant' THEN amount IS NULL
        ELSE amount > 0 END)
);
-- Thresholds that were reached, once per month and scope.
CREATE TABLE alert_events (
    tenant_id uuid NOT NULL,
    scope text NOT NULL,
    scope_id uuid NOT NULL,
    month date NOT NULL,
    threshold smallint NOT NULL,
    budget numeric(38,0) NOT NULL,
    spent numeric(38,0) NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_alert_events PRIMARY KEY (scope_id, month, threshold),
    CONSTRAINT fk_alert_events_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_alert_events_tenant_id ON alert_events (tenant_id);
