-- Days summed from their hours: a month's report reads 31 of them instead of 744 hours.
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
    CONSTRAINT pk_usage_days PRIMARY KEY (day, tenant_id, project_id, key_id, model, tier, region,
        price_version, list_price_version, simulated)
);
-- Whether a day's sums equal its rolled hours. No row: the day has no rolled hour.
CREATE TABLE usage_day_state (
    day timestamptz NOT NULL,
    whole boolean NOT NULL,
    CONSTRAINT pk_usage_day_state PRIMARY KEY (day)
);
CREATE INDEX ix_usage_day_state_due ON usage_day_state (day) WHERE NOT whole;
INSERT INTO usage_day_state (day, whole) SELECT DISTINCT date_trunc('day', hour, 'UTC'), false FROM usage_hours;
CREATE OR REPLACE FUNCTION penstock_roll_hour(p_hour timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM usage_touched WHERE hour = p_hour;
    DELETE FROM usage_hours WHERE hour = p_hour;
    INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_hour, f.* FROM penstock_fold_usage(p_hour, p_hour + interval '1 hour') f;
    INSERT INTO usage_day_state (day, whole) VALUES (date_trunc('day', p_hour, 'UTC'), false)
        ON CONFLICT (day) DO UPDATE SET whole = false WHERE usage_day_state.whole;
END $$;
-- Sum a day up from its hours. Hours that were touched since are read from the rows by whoever reads (report_usage.py).
CREATE FUNCTION penstock_roll_day(p_day timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM usage_days WHERE day = p_day;
    INSERT INTO usage_days (day, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_day, h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version,
        h.list_price_version, h.simulated, sum(h.requests), ARRAY[sum(h.outcomes[1]), sum(h.outcomes[2]),
            sum(h.outcomes[3]), sum(h.outcomes[4]), sum(h.outcomes[5]), sum(h.outcomes[6]), sum(h.outcomes[7])]::bigint[],
        sum(h.input_tokens), sum(h.cached_input_tokens), sum(h.output_tokens), sum(h.reasoning_tokens),
        sum(h.unbilled_input_tokens), sum(h.unbilled_output_tokens), sum(h.cost), sum(h.list_cost), sum(h.busy_us)
    FROM usage_hours h WHERE h.hour >= p_day AND h.hour < p_day + interval '1 day'
    GROUP BY h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version, h.list_price_version,
        h.simulated;
    INSERT INTO usage_day_state (day, whole) VALUES (p_day, true) ON CONFLICT (day) DO UPDATE SET whole = true;
END $$;
