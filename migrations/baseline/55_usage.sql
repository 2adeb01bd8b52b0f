-- Sums of usage by hour and day, and the months that lie in Parquet files.
-- Hours in which usage was settled since they were last summed.
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
-- Days summed from their hours: a month's report reads 31 days instead of 744 hours. gpu_*, machine_us: the row's part
-- of what the hosts cost, shared out hour by hour and then added up.
CREATE TABLE usage_days (
    day timestamptz NOT NULL,
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
    gpu_input_cost numeric(38,0) NOT NULL DEFAULT 0,
    gpu_output_cost numeric(38,0) NOT NULL DEFAULT 0,
    gpu_us numeric(38,0) NOT NULL DEFAULT 0,
    machine_us numeric(38,0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_usage_days PRIMARY KEY (day, tenant_id, project_id, key_id, model, tier, region,
        price_version, list_price_version, simulated)
);
-- Whether a day's sums equal its summed hours. A day without a row has no summed hour.
-- shared_by: SHA-256 of the host costs and weights by which the day's costs were shared out; null when they were not
-- shared out since the day was summed. Readers compare it with the present host costs.
CREATE TABLE usage_day_state (
    day timestamptz NOT NULL,
    whole boolean NOT NULL,
    shared_by bytea,
    CONSTRAINT pk_usage_day_state PRIMARY KEY (day)
);
CREATE INDEX ix_usage_day_state_due ON usage_day_state (day) WHERE NOT whole;
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
