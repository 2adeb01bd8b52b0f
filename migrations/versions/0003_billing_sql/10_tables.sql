CREATE TYPE hold_state AS ENUM ('open', 'settled', 'voided', 'expired');
CREATE TYPE usage_outcome AS ENUM ('completed', 'length', 'budget_stopped', 'client_cancelled', 'engine_failed',
    'zero_output', 'interrupted');
CREATE TABLE price_versions (
    id bigint GENERATED ALWAYS AS IDENTITY,
    model text NOT NULL,
    tier text NOT NULL,
    tenant_id uuid,
    input bigint NOT NULL,
    cached_input bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    effective tstzrange NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    CONSTRAINT pk_price_versions PRIMARY KEY (id),
    CONSTRAINT fk_price_versions_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_price_versions_not_negative CHECK (least(input, cached_input, output, reasoning) >= 0),
    CONSTRAINT ck_price_versions_effective CHECK (NOT isempty(effective) AND NOT lower_inf(effective)),
    book text NOT NULL GENERATED ALWAYS AS
        (model || ' ' || tier || ' ' || coalesce(tenant_id::text, 'list')) STORED,
    CONSTRAINT ex_price_versions_overlap EXCLUDE USING gist (
        textrange(book, book, '[]') WITH =, effective WITH &&)
);
CREATE INDEX ix_price_versions_model_tier ON price_versions (model, tier);
CREATE TABLE billing_accounts (
    tenant_id uuid NOT NULL,
    mode text NOT NULL,
    balance numeric(38,0) NOT NULL DEFAULT 0,
    owed numeric(38,0) NOT NULL DEFAULT 0,
    held numeric(38,0) NOT NULL DEFAULT 0,
    open_holds integer NOT NULL DEFAULT 0,
    budget numeric(38,0),
    spent_month numeric(38,0) NOT NULL DEFAULT 0,
    month date NOT NULL DEFAULT date_trunc('month', now() AT TIME ZONE 'UTC')::date,
    credit_limit numeric(38,0),
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_billing_accounts PRIMARY KEY (tenant_id),
    CONSTRAINT fk_billing_accounts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_billing_accounts_mode CHECK (mode IN ('prepaid', 'postpaid')),
    CONSTRAINT ck_billing_accounts_balance CHECK (balance >= 0),
    CONSTRAINT ck_billing_accounts_owed CHECK (owed >= 0),
    CONSTRAINT ck_billing_accounts_held CHECK (held >= 0 AND open_holds >= 0),
    CONSTRAINT ck_billing_accounts_covered CHECK (mode <> 'prepaid' OR held <= balance),
    CONSTRAINT ck_billing_accounts_limits CHECK (coalesce(budget, 0) >= 0 AND coalesce(credit_limit, 0) >= 0)
);
CREATE TABLE holds (
    request_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    project_id uuid NOT NULL,
    key_id uuid NOT NULL,
    model text NOT NULL,
    incarnation text NOT NULL,
    price_version bigint NOT NULL,
    output_tokens bigint NOT NULL,
    amount numeric(38,0) NOT NULL,
    state hold_state NOT NULL DEFAULT 'open',
    admitted_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    closed_at timestamptz,
    CONSTRAINT pk_holds PRIMARY KEY (request_id),
    CONSTRAINT ck_holds_amount CHECK (amount >= 0)
) PARTITION BY RANGE (request_id);
CREATE INDEX ix_holds_open ON holds (tenant_id) WHERE state = 'open';
CREATE TABLE usage (
    request_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    project_id uuid NOT NULL,
    key_id uuid NOT NULL,
    model text NOT NULL,
    tier text NOT NULL,
    region text NOT NULL,
    replica_id text NOT NULL,
    boot_id text NOT NULL,
    admitted_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    settled_at timestamptz NOT NULL,
    outcome usage_outcome NOT NULL,
    attempts smallint NOT NULL,
    stream boolean NOT NULL,
    simulated boolean NOT NULL,
    price_version bigint NOT NULL,
    list_price_version bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    unbilled_input_tokens bigint NOT NULL,
    unbilled_output_tokens bigint NOT NULL,
    cost numeric(38,0) NOT NULL,
    list_cost numeric(38,0) NOT NULL,
    queue_us bigint NOT NULL,
    ttft_us bigint NOT NULL,
    duration_us bigint NOT NULL,
    CONSTRAINT pk_usage PRIMARY KEY (request_id),
    CONSTRAINT ck_usage_cost CHECK (cost >= 0 AND list_cost >= 0)
) PARTITION BY RANGE (request_id);
CREATE INDEX ix_usage_ended_at ON usage (ended_at);
CREATE INDEX ix_usage_tenant_id_ended_at ON usage (tenant_id, ended_at);
CREATE TABLE settle_errors (
    request_id uuid NOT NULL,
    reason text NOT NULL,
    record bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_settle_errors PRIMARY KEY (request_id)
);
CREATE TABLE usage_touched (
    id bigint GENERATED ALWAYS AS IDENTITY,
    hour timestamptz NOT NULL,
    CONSTRAINT pk_usage_touched PRIMARY KEY (id)
);
CREATE INDEX ix_usage_touched_hour ON usage_touched (hour);
CREATE TABLE usage_hours (
    hour timestamptz NOT NULL,
    tenant_id uuid NOT NULL,
    project_id uuid NOT NULL,
    key_id uuid NOT NULL,
    model text NOT NULL,
    tier text NOT NULL,
    region text NOT NULL,
    price_version bigint NOT NULL,
    list_price_version bigint NOT NULL,
    simulated boolean NOT NULL,
    requests bigint NOT NULL,
    outcomes bigint[] NOT NULL,
    input_tokens numeric(38,0) NOT NULL,
    cached_input_tokens numeric(38,0) NOT NULL,
    output_tokens numeric(38,0) NOT NULL,
    reasoning_tokens numeric(38,0) NOT NULL,
    unbilled_input_tokens numeric(38,0) NOT NULL,
    unbilled_output_tokens numeric(38,0) NOT NULL,
    cost numeric(38,0) NOT NULL,
    list_cost numeric(38,0) NOT NULL,
    busy_us numeric(38,0) NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (hour, tenant_id, project_id, key_id, model, tier, region,
        price_version, list_price_version, simulated)
);
CREATE TABLE ledger_accounts (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id uuid NOT NULL,
    code text NOT NULL,
    CONSTRAINT pk_ledger_accounts PRIMARY KEY (id),
    CONSTRAINT fk_ledger_accounts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_ledger_accounts_tenant_id_code UNIQUE (tenant_id, code),
    CONSTRAINT ck_ledger_accounts_code CHECK (code IN ('credit', 'receivable', 'revenue', 'uncollectible', 'grants'))
);
CREATE TABLE ledger_transfers (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    debit_account bigint NOT NULL,
    credit_account bigint NOT NULL,
    amount numeric(38,0) NOT NULL,
    source_id uuid NOT NULL,
    CONSTRAINT pk_ledger_transfers PRIMARY KEY (id),
    CONSTRAINT uq_ledger_transfers_source_id_kind UNIQUE (source_id, kind),
    CONSTRAINT ck_ledger_transfers_amount CHECK (amount > 0),
    CONSTRAINT ck_ledger_transfers_two_sided CHECK (debit_account <> credit_account),
    CONSTRAINT ck_ledger_transfers_kind CHECK (kind IN ('usage', 'uncollectible', 'grant'))
);
CREATE INDEX ix_ledger_transfers_tenant_id_at ON ledger_transfers (tenant_id, at);
CREATE TABLE ledger_unsealed (
    transfer_id bigint NOT NULL,
    CONSTRAINT pk_ledger_unsealed PRIMARY KEY (transfer_id)
);
CREATE TABLE ledger_seals (
    seq bigint NOT NULL,
    transfer_id bigint NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT pk_ledger_seals PRIMARY KEY (seq),
    CONSTRAINT uq_ledger_seals_transfer_id UNIQUE (transfer_id)
);
CREATE TABLE credit_grants (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    amount numeric(38,0) NOT NULL,
    reason text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_credit_grants PRIMARY KEY (id),
    CONSTRAINT fk_credit_grants_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_credit_grants_amount CHECK (amount > 0)
);
CREATE INDEX ix_credit_grants_tenant_id ON credit_grants (tenant_id);
CREATE TABLE reaper_state (
    id smallint NOT NULL DEFAULT 1,
    seen_at timestamptz NOT NULL,
    postmaster_start timestamptz NOT NULL,
    paused_until timestamptz NOT NULL,
    CONSTRAINT pk_reaper_state PRIMARY KEY (id),
    CONSTRAINT ck_reaper_state_single CHECK (id = 1)
);
