-- What rows of one hour share, said once: who used what at which prices. Never changed, never deleted.
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
-- lag_us: from the end that the record claims to its settlement (0 where usage_far has it). A claim from the future
-- (lag_us < 0) or from a window that has passed (late) is dated to the settlement; the view `usage` computes the other
-- instants from it, exactly.
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
-- Usage dated to its settlement because its own month was closed or its end more than 48 h ago; here the true end.
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
-- Months of usage that lie in Parquet too, and what was written.
CREATE TABLE usage_archives (
    month date NOT NULL,
    file text NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    cost numeric(38,0) NOT NULL,
    sha256 bytea NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    dropped_at timestamptz,
    CONSTRAINT pk_usage_archives PRIMARY KEY (month)
);
CREATE OR REPLACE FUNCTION penstock_make_partitions(p_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_made integer := 0;
    v_parent text;
    v_month timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_partitions'));
    FOREACH v_parent IN ARRAY ARRAY['holds', 'usage_rows'] LOOP
        FOR i IN 0..p_ahead LOOP
            v_month := (date_trunc('month', now() AT TIME ZONE 'UTC') + i * interval '1 month') AT TIME ZONE 'UTC';
            IF penstock_make_partition(v_parent, v_month) THEN
                v_made := v_made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_made;
END $$;
CREATE TABLE usage_rows_default PARTITION OF usage_rows DEFAULT;
