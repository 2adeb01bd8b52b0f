-- Budgets of projects and keys, thresholds, and the low-balance mark (billing/notifications/alerts.py). The budget of a whole
-- organisation lies in billing_accounts.budget, where holds enforce it; its rule here only carries thresholds.
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
-- A threshold fires once per month and scope.
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
