-- What GPUs cost and whether engines and ledger agree: engine counters, reconciliations, provider invoices.
-- One row per engine incarnation: its cumulative counters, as last scraped. They never decrease.
CREATE TABLE engine_counters (
    boot_id text NOT NULL,
    replica_id text NOT NULL,
    model text NOT NULL,
    engine text NOT NULL,
    simulated boolean NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen timestamptz NOT NULL,
    scraped_at timestamptz NOT NULL,
    ended_at timestamptz,
    prompt_tokens bigint NOT NULL,
    generation_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    warmup_prompt_tokens bigint NOT NULL,
    warmup_generation_tokens bigint NOT NULL,
    CONSTRAINT pk_engine_counters PRIMARY KEY (boot_id),
    CONSTRAINT ck_engine_counters_not_negative CHECK (least(prompt_tokens, generation_tokens, cached_prompt_tokens,
        warmup_prompt_tokens, warmup_generation_tokens) >= 0)
);
CREATE INDEX ix_engine_counters_last_seen ON engine_counters (last_seen);
-- Instants at which an engine was idle with no request placed on it, and its counters at that instant.
CREATE TABLE engine_cuts (
    boot_id text NOT NULL,
    cut_at timestamptz NOT NULL,
    prompt_tokens bigint NOT NULL,
    generation_tokens bigint NOT NULL,
    CONSTRAINT pk_engine_cuts PRIMARY KEY (boot_id, cut_at),
    CONSTRAINT ck_engine_cuts_not_negative CHECK (least(prompt_tokens, generation_tokens) >= 0)
);
-- An engine's tokens between two cuts by cause, one row per counter. to_at is null for the part up to the engine's end.
CREATE TABLE reconciliations (
    boot_id text NOT NULL,
    counter text NOT NULL,
    from_at timestamptz NOT NULL,
    to_at timestamptz,
    replica_id text NOT NULL,
    model text NOT NULL,
    simulated boolean NOT NULL,
    first_checked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    checked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    requests bigint NOT NULL,
    engine bigint NOT NULL,
    billed bigint NOT NULL,
    engine_failed bigint NOT NULL,
    zero_output bigint NOT NULL,
    cancelled_tail bigint NOT NULL,
    retried bigint NOT NULL,
    choices bigint NOT NULL,
    warmup bigint NOT NULL,
    probe bigint NOT NULL,
    unobserved bigint NOT NULL,
    unexplained bigint NOT NULL,
    accepted_at timestamptz,
    accepted_by text,
    accepted_reason text,
    CONSTRAINT pk_reconciliations PRIMARY KEY (boot_id, counter, from_at),
    CONSTRAINT ck_reconciliations_counter CHECK (counter IN ('prompt', 'generation')),
    CONSTRAINT ck_reconciliations_adds_up CHECK (engine + unobserved = billed + engine_failed + zero_output
        + cancelled_tail + retried + choices + warmup + probe + unexplained),
    CONSTRAINT ck_reconciliations_unobserved CHECK (unobserved >= 0),
    CONSTRAINT ck_reconciliations_accepted CHECK ((accepted_at IS NULL) = (accepted_by IS NULL)
        AND (accepted_at IS NULL) = (accepted_reason IS NULL))
);
CREATE INDEX ix_reconciliations_checked_at ON reconciliations (checked_at);
CREATE INDEX ix_reconciliations_unexplained ON reconciliations (boot_id) WHERE unexplained <> 0;
-- Invoices of GPU providers, entered by a person or fetched. They never change; they may be voided.
CREATE TABLE provider_invoices (
    id uuid NOT NULL,
    provider text NOT NULL,
    number text NOT NULL,
    month date NOT NULL,
    currency text NOT NULL,
    total numeric(38,0) NOT NULL,
    source text NOT NULL,
    entered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    entered_by text NOT NULL,
    voided_at timestamptz,
    voided_by text,
    CONSTRAINT pk_provider_invoices PRIMARY KEY (id),
    CONSTRAINT ck_provider_invoices_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_provider_invoices_currency CHECK (currency = 'USD'),
    CONSTRAINT ck_provider_invoices_voided CHECK ((voided_at IS NULL) = (voided_by IS NULL))
);
CREATE UNIQUE INDEX uq_provider_invoices_number ON provider_invoices (provider, number) WHERE voided_at IS NULL;
CREATE INDEX ix_provider_invoices_month ON provider_invoices (month);
CREATE TABLE provider_invoice_lines (
    invoice_id uuid NOT NULL,
    line smallint NOT NULL,
    host_kind text NOT NULL,
    description text NOT NULL,
    hours numeric(38,6),
    amount numeric(38,0) NOT NULL,
    CONSTRAINT pk_provider_invoice_lines PRIMARY KEY (invoice_id, line),
    CONSTRAINT fk_provider_invoice_lines_invoice_id FOREIGN KEY (invoice_id) REFERENCES provider_invoices (id)
);
