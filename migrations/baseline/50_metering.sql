-- The hot path: holds, usage rows, records that could not be billed, and the state of the reaper.
CREATE TYPE hold_state AS ENUM ('open', 'settled', 'voided', 'expired');
CREATE TYPE usage_outcome AS ENUM ('completed', 'length', 'budget_stopped', 'client_cancelled', 'engine_failed',
    'zero_output', 'interrupted');
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
-- The dimensions that many usage rows share: who used which model at which prices. Rows are never changed or deleted.
CREATE TABLE usage_dims (
    id integer GENERATED ALWAYS AS IDENTITY,
    tenant_id uuid NOT NULL,
    project_id uuid NOT NULL,
    key_id uuid NOT NULL,
    model text NOT NULL,
    tier text NOT NULL,
    region text NOT NULL,
    price_version bigint NOT NULL,
    list_price_version bigint NOT NULL,
    simulated boolean NOT NULL,
    CONSTRAINT pk_usage_dims PRIMARY KEY (id),
    CONSTRAINT uq_usage_dims_facts UNIQUE (tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated)
);
-- Engine incarnations.
CREATE TABLE usage_engines (
    id integer GENERATED ALWAYS AS IDENTITY,
    replica_id text NOT NULL,
    boot_id text NOT NULL,
    CONSTRAINT pk_usage_engines PRIMARY KEY (id),
    CONSTRAINT uq_usage_engines_replica_id_boot_id UNIQUE (replica_id, boot_id)
);
-- One row per admitted request, about 130 bytes and 50 in the indexes. Columns stand in the order of their alignment.
-- lag_us: microseconds from the end that the record claims to its settlement (0 where usage_far has the instants).
-- A claim from the future (lag_us < 0) or from a window that has passed (late) is dated to the settlement. The view
-- `usage` computes the other instants from it, exactly.
CREATE TABLE usage_rows (
    request_id uuid NOT NULL,
    ended_at timestamptz NOT NULL,
    duration_us bigint NOT NULL,
    queue_us bigint NOT NULL,
    ttft_us bigint NOT NULL,
    dim_id integer NOT NULL,
    engine_id integer NOT NULL,
    lag_us integer NOT NULL,
    input_tokens integer NOT NULL,
    cached_input_tokens integer NOT NULL,
    output_tokens integer NOT NULL,
    reasoning_tokens integer NOT NULL,
    unbilled_input_tokens integer NOT NULL,
    unbilled_output_tokens integer NOT NULL,
    outcome usage_outcome NOT NULL,
    attempts smallint NOT NULL,
    stream boolean NOT NULL,
    late boolean NOT NULL,
    cost numeric(38,0) NOT NULL,
    discount numeric(38,0) NOT NULL,
    CONSTRAINT pk_usage_rows PRIMARY KEY (request_id),
    CONSTRAINT ck_usage_rows_cost CHECK (cost >= 0 AND cost + discount >= 0)
) PARTITION BY RANGE (request_id);
CREATE INDEX ix_usage_rows_ended_at ON usage_rows USING brin (ended_at)
    WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX ix_usage_rows_dim_id ON usage_rows (dim_id);
-- Usage dated to its settlement because its month was closed or its end more than 48 h ago; ended_at is the true end.
CREATE TABLE usage_late (
    request_id uuid NOT NULL,
    ended_at timestamptz NOT NULL,
    CONSTRAINT pk_usage_late PRIMARY KEY (request_id)
);
-- The instants of rows that were settled more than 35 minutes from their end: after an outage, or late.
CREATE TABLE usage_far (
    request_id uuid NOT NULL,
    claimed_at timestamptz NOT NULL,
    settled_at timestamptz NOT NULL,
    CONSTRAINT pk_usage_far PRIMARY KEY (request_id)
);
-- Tokens that engines counted and no customer pays for, where the usage row does not show them. Only requests that
-- have such tokens have rows here.
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
-- Records that could not be billed, with the reason.
CREATE TABLE settle_errors (
    request_id uuid NOT NULL,
    reason text NOT NULL,
    record bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_settle_errors PRIMARY KEY (request_id)
);
-- A record in settle_errors that a person has decided not to bill: it no longer keeps its month open.
CREATE TABLE parked_decisions (
    request_id uuid NOT NULL,
    reason text NOT NULL,
    decided_by text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_parked_decisions PRIMARY KEY (request_id)
);
-- Requests refused because there was no price: one row per model, tier and customer. Only models that are offered.
CREATE TABLE unpriced_refusals (
    model text NOT NULL,
    tier text NOT NULL,
    tenant_id uuid NOT NULL,
    requests bigint NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    CONSTRAINT pk_unpriced_refusals PRIMARY KEY (model, tier, tenant_id),
    CONSTRAINT fk_unpriced_refusals_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE TABLE reaper_state (
    id smallint NOT NULL DEFAULT 1,
    seen_at timestamptz NOT NULL,
    postmaster_start timestamptz NOT NULL,
    paused_until timestamptz NOT NULL,
    CONSTRAINT pk_reaper_state PRIMARY KEY (id),
    CONSTRAINT ck_reaper_state_single CHECK (id = 1)
);
-- Partitions of the present month and the two that follow. The DEFAULT partition takes requests whose clock is off.
-- Later months: penstock_make_partitions.
CREATE TABLE holds_default PARTITION OF holds DEFAULT;
CREATE TABLE usage_rows_default PARTITION OF usage_rows DEFAULT;
DO $$
DECLARE
    v_parent text;
    v_month timestamp;
    v_bounds uuid[];
BEGIN
    FOREACH v_parent IN ARRAY ARRAY['holds', 'usage_rows'] LOOP
        FOR i IN 0..2 LOOP
            v_month := date_trunc('month', now() AT TIME ZONE 'UTC') + i * interval '1 month';
            -- The smallest UUIDv7 of each instant: 48 bits of Unix milliseconds, then zeros.
            SELECT array_agg((lpad(to_hex((extract(epoch FROM m AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0')
                    || repeat('0', 20))::uuid ORDER BY m)
                INTO v_bounds FROM unnest(ARRAY[v_month, v_month + interval '1 month']) m;
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                format('%s_%s', v_parent, to_char(v_month, 'YYYY_MM')), v_parent, v_bounds[1], v_bounds[2]);
        END LOOP;
    END LOOP;
END $$;
