-- One row per engine incarnation: its own cumulative counters, as last scraped. They never go down.
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
-- Instants at which an engine stood still with nothing placed on it, and what its counters said then.
CREATE TABLE engine_cuts (
    boot_id text NOT NULL,
    cut_at timestamptz NOT NULL,
    prompt_tokens bigint NOT NULL,
    generation_tokens bigint NOT NULL,
    CONSTRAINT pk_engine_cuts PRIMARY KEY (boot_id, cut_at),
    CONSTRAINT ck_engine_cuts_not_negative CHECK (least(prompt_tokens, generation_tokens) >= 0)
);
-- Tokens that engines counted and nobody pays for, where the usage row does not tell: only requests that have such.
CREATE TABLE usage_unbilled (
    request_id uuid NOT NULL,
    part smallint NOT NULL,
    replica_id text NOT NULL,
    boot_id text NOT NULL,
    cause text NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    tail_input bigint NOT NULL,
    tail_output bigint NOT NULL,
    again_us bigint NOT NULL,
    CONSTRAINT pk_usage_unbilled PRIMARY KEY (request_id, part),
    CONSTRAINT ck_usage_unbilled_cause CHECK (cause IN ('retried', 'choices', 'cancelled_tail', 'engine_failed')),
    CONSTRAINT ck_usage_unbilled_not_negative CHECK (
        least(input_tokens, output_tokens, tail_input, tail_output, again_us) >= 0)
);
CREATE INDEX ix_usage_unbilled_boot_id ON usage_unbilled (boot_id);
-- Note unbilled tokens (billing/metering/settlement.py), before the usage row; the same note again changes nothing.
CREATE FUNCTION penstock_note_unbilled(p_notes jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO usage_unbilled (request_id, part, replica_id, boot_id, cause, input_tokens, output_tokens, tail_input,
        tail_output, again_us)
    SELECT n.request_id, n.part, n.replica_id, n.boot_id, n.cause, greatest(n.input_tokens, 0),
        greatest(n.output_tokens, 0), greatest(n.tail_input, 0), greatest(n.tail_output, 0), greatest(n.again_us, 0)
    FROM jsonb_to_recordset(p_notes) AS n (request_id uuid, part smallint, replica_id text, boot_id text, cause text,
        input_tokens bigint, output_tokens bigint, tail_input bigint, tail_output bigint, again_us bigint)
    ORDER BY n.request_id, n.part
    ON CONFLICT DO NOTHING
$$;
-- What became of an engine's tokens between two cuts (to_at empty: up to its end), one row per counter.
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
