-- Payments through Stripe: customers, top-ups, refunds, disputes, events, meter events and comparisons.
-- One Stripe customer per organisation. requested_at is set before the call to Stripe, so that a crash finds it again.
-- While dunning is suspended, the account's credit limit is 0 and limit_before keeps the earlier one.
CREATE TABLE stripe_customers (
    tenant_id uuid NOT NULL,
    customer_id text,
    name text NOT NULL,
    email text,
    tax_id_kind text,
    tax_id_value text,
    tax_id text,
    default_payment_method text,
    dunning text NOT NULL DEFAULT 'current',
    dunning_since timestamptz,
    limited boolean NOT NULL DEFAULT false,
    limit_before numeric(38,0),
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_customers PRIMARY KEY (tenant_id),
    CONSTRAINT fk_stripe_customers_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_stripe_customers_customer_id UNIQUE (customer_id),
    CONSTRAINT ck_stripe_customers_dunning CHECK (dunning IN ('current', 'past_due', 'suspended')),
    CONSTRAINT ck_stripe_customers_tax CHECK ((tax_id_kind IS NULL) = (tax_id_value IS NULL))
);
CREATE TABLE stripe_payment_methods (
    id text NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    brand text,
    last4 text,
    exp_month smallint,
    exp_year smallint,
    detached_at timestamptz,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_payment_methods PRIMARY KEY (id),
    CONSTRAINT fk_stripe_payment_methods_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_stripe_payment_methods_tenant_id ON stripe_payment_methods (tenant_id);
-- A purchase of credit: checkout (a person pays on Stripe's page) or auto (a saved card is charged).
CREATE TABLE stripe_topups (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    cents bigint NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    session_id text,
    url text,
    payment_intent text,
    payment_method text,
    attempts integer NOT NULL DEFAULT 0,
    error text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    CONSTRAINT pk_stripe_topups PRIMARY KEY (id),
    CONSTRAINT fk_stripe_topups_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_stripe_topups_kind CHECK (kind IN ('checkout', 'auto')),
    CONSTRAINT ck_stripe_topups_cents CHECK (cents > 0),
    CONSTRAINT ck_stripe_topups_status CHECK (status IN ('pending', 'succeeded', 'failed', 'expired')),
    CONSTRAINT ck_stripe_topups_ended CHECK ((status = 'pending') = (ended_at IS NULL))
);
CREATE INDEX ix_stripe_topups_tenant_id ON stripe_topups (tenant_id, created_at);
-- At most one automatic purchase of a customer at a time.
CREATE UNIQUE INDEX uq_stripe_topups_auto ON stripe_topups (tenant_id) WHERE kind = 'auto' AND status = 'pending';
CREATE TABLE stripe_auto_topups (
    tenant_id uuid NOT NULL,
    enabled boolean NOT NULL,
    threshold numeric(38,0) NOT NULL,
    cents bigint NOT NULL,
    monthly_cap_cents bigint NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    disabled_reason text,
    retry_at timestamptz,
    updated_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_auto_topups PRIMARY KEY (tenant_id),
    CONSTRAINT fk_stripe_auto_topups_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_stripe_auto_topups_amounts CHECK (threshold >= 0 AND cents > 0 AND monthly_cap_cents >= cents)
);
-- Payments received, for a top-up or an invoice. Charges of other origin have no row.
CREATE TABLE stripe_payments (
    payment_intent text NOT NULL,
    tenant_id uuid NOT NULL,
    purpose text NOT NULL,
    topup_id uuid,
    invoice_id uuid,
    cents bigint NOT NULL,
    charge_id text,
    paid_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_payments PRIMARY KEY (payment_intent),
    CONSTRAINT fk_stripe_payments_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_stripe_payments_purpose CHECK (
        CASE purpose WHEN 'topup' THEN topup_id IS NOT NULL WHEN 'invoice' THEN invoice_id IS NOT NULL ELSE false END)
);
CREATE INDEX ix_stripe_payments_tenant_id ON stripe_payments (tenant_id, paid_at);
-- Refunds: those requested here and then made in Stripe, and those made in Stripe's dashboard.
CREATE TABLE stripe_refunds (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    payment_intent text NOT NULL,
    lot_id uuid,
    credit_note_id uuid,
    cents bigint NOT NULL,
    status text NOT NULL,
    refund_id text,
    reason text NOT NULL,
    error text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    CONSTRAINT pk_stripe_refunds PRIMARY KEY (id),
    CONSTRAINT fk_stripe_refunds_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_stripe_refunds_refund_id UNIQUE (refund_id),
    CONSTRAINT ck_stripe_refunds_cents CHECK (cents > 0),
    CONSTRAINT ck_stripe_refunds_status CHECK (status IN ('requested', 'pending', 'succeeded', 'failed'))
);
CREATE INDEX ix_stripe_refunds_tenant_id ON stripe_refunds (tenant_id, created_at);
CREATE TABLE stripe_disputes (
    id text NOT NULL,
    tenant_id uuid NOT NULL,
    payment_intent text NOT NULL,
    cents bigint NOT NULL,
    withdrawn_cents bigint NOT NULL,
    returned_cents bigint NOT NULL,
    fee_cents bigint NOT NULL,
    clawed_back numeric(38,0) NOT NULL DEFAULT 0,
    reason text NOT NULL,
    status text NOT NULL,
    evidence_due_at timestamptz,
    opened_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_disputes PRIMARY KEY (id),
    CONSTRAINT fk_stripe_disputes_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX ix_stripe_disputes_tenant_id ON stripe_disputes (tenant_id, opened_at);
-- Each movement of the Stripe balance that is in the ledger. Append-only.
CREATE TABLE stripe_cash (
    txn_id text NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    object_id text NOT NULL,
    cents bigint NOT NULL,
    fee_cents bigint NOT NULL,
    at timestamptz NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_cash PRIMARY KEY (txn_id),
    CONSTRAINT fk_stripe_cash_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_stripe_cash_kind CHECK (kind IN ('payment', 'refund', 'refund_failure', 'dispute'))
);
CREATE INDEX ix_stripe_cash_at ON stripe_cash (at);
-- Every Stripe event once. The row is the record and the queue; applied_at is set in the transaction of the effect.
CREATE TABLE stripe_events (
    id text NOT NULL,
    type text NOT NULL,
    object_kind text NOT NULL,
    object_id text NOT NULL,
    created_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    found_by text NOT NULL,
    outcome text,
    applied_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    next_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    error text,
    CONSTRAINT pk_stripe_events PRIMARY KEY (id),
    CONSTRAINT ck_stripe_events_found_by CHECK (found_by IN ('webhook', 'list')),
    CONSTRAINT ck_stripe_events_outcome CHECK (outcome IN ('applied', 'ignored', 'foreign')),
    CONSTRAINT ck_stripe_events_applied CHECK ((outcome IS NULL) = (applied_at IS NULL))
);
CREATE INDEX ix_stripe_events_open ON stripe_events (next_at) WHERE applied_at IS NULL;
CREATE INDEX ix_stripe_events_received_at ON stripe_events (received_at);
-- Invoices and credit notes sent to Stripe. blocked: not sent, for the reason in error, until a person acts.
CREATE TABLE stripe_pushes (
    kind text NOT NULL,
    object_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    status text NOT NULL,
    error text,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_stripe_pushes PRIMARY KEY (kind, object_id),
    CONSTRAINT ck_stripe_pushes_kind CHECK (kind IN ('invoice', 'credit_note')),
    CONSTRAINT ck_stripe_pushes_status CHECK (status IN ('done', 'blocked'))
);
-- Tokens sent to Stripe's billing meter: one row per tenant, hour and change of the hour's sum.
CREATE TABLE stripe_meter_events (
    identifier text NOT NULL,
    tenant_id uuid NOT NULL,
    hour timestamptz NOT NULL,
    tokens numeric(38,0) NOT NULL,
    state text NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tried_at timestamptz,
    sent_at timestamptz,
    CONSTRAINT pk_stripe_meter_events PRIMARY KEY (identifier),
    CONSTRAINT fk_stripe_meter_events_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_stripe_meter_events_state CHECK (state IN ('pending', 'sent', 'too_old')),
    CONSTRAINT ck_stripe_meter_events_tokens CHECK (tokens <> 0 AND abs(tokens) < 1000000000000000)
);
CREATE INDEX ix_stripe_meter_events_tenant_id ON stripe_meter_events (tenant_id, hour);
CREATE INDEX ix_stripe_meter_events_open ON stripe_meter_events (created_at) WHERE state = 'pending';
-- used_since: when a job first had a Stripe key. From then on months are compared with Stripe before they close.
CREATE TABLE stripe_state (
    id smallint NOT NULL DEFAULT 1,
    used_since timestamptz,
    events_seen_at timestamptz,
    meter_id text,
    CONSTRAINT pk_stripe_state PRIMARY KEY (id),
    CONSTRAINT ck_stripe_state_single CHECK (id = 1)
);
INSERT INTO stripe_state (id) VALUES (1);
-- The result of a comparison of a month with Stripe. The close reads the newest.
CREATE TABLE stripe_reconciliations (
    id uuid NOT NULL,
    month date NOT NULL,
    began_at timestamptz NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ok boolean NOT NULL,
    facts jsonb NOT NULL,
    CONSTRAINT pk_stripe_reconciliations PRIMARY KEY (id)
);
CREATE INDEX ix_stripe_reconciliations_month_at ON stripe_reconciliations (month, at);
