-- Accounts, the double-entry ledger with its seals, credit lots, accounting months, adjustments and approvals.
-- Amounts are picodollars (1e-12 USD).
-- The counters of a customer's money; the ledger is the truth they must agree with. owed may be negative: a correction
-- after an invoice puts a postpaid customer in credit.
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
    CONSTRAINT ck_billing_accounts_held CHECK (held >= 0 AND open_holds >= 0),
    CONSTRAINT ck_billing_accounts_covered CHECK (mode <> 'prepaid' OR held <= balance),
    CONSTRAINT ck_billing_accounts_limits CHECK (coalesce(budget, 0) >= 0 AND coalesce(credit_limit, 0) >= 0)
);
CREATE TABLE ledger_accounts (
    id bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id uuid NOT NULL,
    code text NOT NULL,
    CONSTRAINT pk_ledger_accounts PRIMARY KEY (id),
    CONSTRAINT fk_ledger_accounts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_ledger_accounts_tenant_id_code UNIQUE (tenant_id, code),
    CONSTRAINT ck_ledger_accounts_code CHECK (code IN (
        'cash', 'receivable', 'invoiced', 'disputed', 'credit', 'revenue', 'breakage', 'promotions', 'sla_credits',
        'uncollectible', 'fees', 'dispute_losses', 'rounding'))
);
-- effective_at: the instant whose month the transfer belongs to: for usage the end of the request, else the booking.
CREATE TABLE ledger_transfers (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    debit_account bigint NOT NULL,
    credit_account bigint NOT NULL,
    amount numeric(38,0) NOT NULL,
    source_id uuid NOT NULL,
    effective_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_ledger_transfers PRIMARY KEY (id),
    CONSTRAINT uq_ledger_transfers_source_id_kind UNIQUE (source_id, kind),
    CONSTRAINT ck_ledger_transfers_amount CHECK (amount > 0),
    CONSTRAINT ck_ledger_transfers_two_sided CHECK (debit_account <> credit_account),
    CONSTRAINT ck_ledger_transfers_kind CHECK (kind IN (
        'usage', 'uncollectible', 'grant', 'purchase', 'sla_credit', 'expiry', 'refund', 'adjustment', 'commit',
        'invoice', 'rounding', 'payment', 'credit_note', 'credit_note_refund', 'credit_note_rounding', 'write_off',
        'fee', 'dispute', 'dispute_fee', 'dispute_won', 'dispute_lost', 'clawback', 'clawback_return'))
);
CREATE INDEX ix_ledger_transfers_tenant_id_at ON ledger_transfers (tenant_id, at);
CREATE INDEX ix_ledger_transfers_effective_at ON ledger_transfers USING brin (effective_at);
CREATE INDEX ix_ledger_transfers_rare ON ledger_transfers (effective_at)
    WHERE kind IN ('adjustment', 'commit', 'uncollectible');
-- Transfers that the sealer has not chained yet: one row per statement that booked.
CREATE TABLE ledger_unsealed (
    id bigint GENERATED ALWAYS AS IDENTITY,
    transfers int8multirange NOT NULL,
    CONSTRAINT pk_ledger_unsealed PRIMARY KEY (id)
);
-- The hash chain. A link covers a set of transfers; links made before there were sets cover one each (transfer_id).
CREATE TABLE ledger_seals (
    seq bigint NOT NULL,
    transfer_id bigint,
    hash bytea NOT NULL,
    transfers int8multirange,
    CONSTRAINT pk_ledger_seals PRIMARY KEY (seq),
    CONSTRAINT uq_ledger_seals_transfer_id UNIQUE (transfer_id),
    CONSTRAINT ck_ledger_seals_covers CHECK (num_nonnulls(transfer_id, transfers) = 1)
);
-- Every credit is a lot: what it is, when it ends, in which order it is used, what is left of it. ended_at: when the
-- lot was found to have expired; use booked after that is no longer taken from it first.
CREATE TABLE credit_grants (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    amount numeric(38,0) NOT NULL,
    reason text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    kind text NOT NULL,
    priority smallint NOT NULL,
    expires_at timestamptz,
    remaining numeric(38,0) NOT NULL,
    ended_at timestamptz,
    CONSTRAINT pk_credit_grants PRIMARY KEY (id),
    CONSTRAINT fk_credit_grants_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_credit_grants_amount CHECK (amount > 0),
    CONSTRAINT ck_credit_grants_kind CHECK (kind IN ('purchased', 'promotional', 'sla', 'adjustment')),
    CONSTRAINT ck_credit_grants_remaining CHECK (remaining BETWEEN 0 AND amount)
);
CREATE INDEX ix_credit_grants_tenant_id ON credit_grants (tenant_id);
CREATE INDEX ix_credit_grants_open ON credit_grants (tenant_id) WHERE remaining > 0;
CREATE INDEX ix_credit_grants_due ON credit_grants (expires_at) WHERE remaining > 0 AND expires_at IS NOT NULL;
-- What was taken from a lot and why. A clawback that was won comes back as a negative draw.
CREATE TABLE grant_draws (
    id bigint GENERATED ALWAYS AS IDENTITY,
    grant_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    amount numeric(38,0) NOT NULL,
    source_id uuid,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_grant_draws PRIMARY KEY (id),
    CONSTRAINT fk_grant_draws_grant_id FOREIGN KEY (grant_id) REFERENCES credit_grants (id),
    CONSTRAINT uq_grant_draws_source_id_kind UNIQUE (source_id, kind),
    CONSTRAINT ck_grant_draws_kind CHECK (kind IN ('use', 'expiry', 'refund', 'clawback', 'clawback_return')),
    CONSTRAINT ck_grant_draws_sign CHECK (CASE kind WHEN 'clawback_return' THEN amount <= 0
        WHEN 'use' THEN amount > 0 WHEN 'expiry' THEN amount > 0 ELSE amount >= 0 END),
    CONSTRAINT ck_grant_draws_source CHECK ((kind = 'use') = (source_id IS NULL))
);
CREATE INDEX ix_grant_draws_grant_id ON grant_draws (grant_id);
-- Accounting months (UTC). A row appears when the close first touches a month; a month without a row is open.
CREATE TABLE billing_periods (
    month date NOT NULL,
    starts_at timestamptz NOT NULL GENERATED ALWAYS AS (month::timestamp AT TIME ZONE 'UTC') STORED,
    ends_at timestamptz NOT NULL GENERATED ALWAYS AS ((month + interval '1 month') AT TIME ZONE 'UTC') STORED,
    status text NOT NULL DEFAULT 'open',
    closed_at timestamptz,
    closed_by text,
    checklist jsonb,
    CONSTRAINT pk_billing_periods PRIMARY KEY (month),
    CONSTRAINT ck_billing_periods_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_billing_periods_status CHECK (status IN ('open', 'closed')),
    CONSTRAINT ck_billing_periods_closed CHECK ((status = 'closed') = (closed_at IS NOT NULL AND closed_by IS NOT NULL))
);
-- What one person asks for and another must agree to.
CREATE TABLE approvals (
    id uuid NOT NULL,
    kind text NOT NULL,
    tenant_id uuid,
    facts jsonb NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text,
    decided_at timestamptz,
    decision text,
    CONSTRAINT pk_approvals PRIMARY KEY (id),
    CONSTRAINT fk_approvals_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_approvals_decision CHECK (decision IN ('approved', 'rejected')),
    CONSTRAINT ck_approvals_decided CHECK ((decision IS NULL) = (decided_by IS NULL)
        AND (decision IS NULL) = (decided_at IS NULL)),
    CONSTRAINT ck_approvals_two_people CHECK (decision IS DISTINCT FROM 'approved' OR decided_by <> requested_by)
);
CREATE INDEX ix_approvals_open ON approvals (requested_at) WHERE decision IS NULL;
-- Corrections of what a customer owes; a positive amount is in the customer's favour. Booked when made, never changed.
CREATE TABLE adjustments (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    amount numeric(38,0) NOT NULL,
    uncollectible numeric(38,0) NOT NULL DEFAULT 0,
    reason text NOT NULL,
    corrects date,
    facts jsonb,
    created_by text NOT NULL,
    approved_by text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_adjustments PRIMARY KEY (id),
    CONSTRAINT fk_adjustments_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_adjustments_amount CHECK (amount <> 0),
    CONSTRAINT ck_adjustments_uncollectible CHECK (uncollectible BETWEEN 0 AND abs(amount)),
    CONSTRAINT ck_adjustments_corrects CHECK (extract(day FROM corrects) = 1)
);
CREATE INDEX ix_adjustments_tenant_id_created_at ON adjustments (tenant_id, created_at);
CREATE INDEX ix_adjustments_created_at ON adjustments (created_at);
