-- Usage rows that ended in [p_from, p_to), summed per tenant, project, key, model, tier, region, prices, class of
-- GPU and whether they are simulated. Tokens of rows that cost nothing by their outcome (engine_failed, zero_output) count as
-- unbilled, so that billed tokens times price equal the cost. Rollups and the live hour both use this function; usage
-- is summed nowhere else. The inner query groups by the dimension's number: a key of four bytes while rows are read.
CREATE OR REPLACE FUNCTION penstock_fold_usage(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (tenant_id uuid, project_id uuid, key_id uuid, model text, tier text, region text,
    price_version bigint, list_price_version bigint, simulated boolean, gpu text, requests bigint, outcomes bigint[],
    input_tokens numeric, cached_input_tokens numeric, output_tokens numeric, reasoning_tokens numeric,
    unbilled_input_tokens numeric, unbilled_output_tokens numeric, cost numeric, list_cost numeric, busy_us numeric)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    -- outcomes: counts in the order of the type usage_outcome
    SELECT d.tenant_id, d.project_id, d.key_id, d.model, d.tier, d.region, d.price_version, d.list_price_version,
        d.simulated, d.gpu, f.requests, f.outcomes, f.input, f.cached_input, f.output, f.reasoning,
        f.unbilled_input + f.all_input - f.input, f.unbilled_output + f.all_output - f.output,
        f.cost, f.cost + f.discount, f.busy_us
    FROM (
        SELECT u.dim_id, count(*) AS requests,
            ARRAY[count(*) FILTER (WHERE u.outcome = 'completed'), count(*) FILTER (WHERE u.outcome = 'length'),
                count(*) FILTER (WHERE u.outcome = 'budget_stopped'),
                count(*) FILTER (WHERE u.outcome = 'client_cancelled'),
                count(*) FILTER (WHERE u.outcome = 'engine_failed'),
                count(*) FILTER (WHERE u.outcome = 'zero_output'),
                count(*) FILTER (WHERE u.outcome = 'interrupted')] AS outcomes,
            coalesce(sum(u.input_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0) AS input,
            coalesce(sum(u.cached_input_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0)
                AS cached_input,
            coalesce(sum(u.output_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0)
                AS output,
            coalesce(sum(u.reasoning_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0)
                AS reasoning,
            sum(u.input_tokens) AS all_input, sum(u.output_tokens) AS all_output,
            sum(u.unbilled_input_tokens) AS unbilled_input, sum(u.unbilled_output_tokens) AS unbilled_output,
            sum(u.cost) AS cost, sum(u.discount) AS discount,
            sum(greatest(u.duration_us - u.queue_us, 0)) AS busy_us
        FROM usage_rows u WHERE u.ended_at >= p_from AND u.ended_at < p_to GROUP BY u.dim_id) f
    JOIN usage_dims d ON d.id = f.dim_id
$$;

-- Recompute the hour p_hour from its usage rows. Its marks in dirty_hours are deleted before the rows are read, so
-- a batch that commits in between leaves its mark and the hour is read from the rows until the next run.
CREATE OR REPLACE FUNCTION penstock_roll_hour(p_hour timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM dirty_hours WHERE hour = p_hour;
    DELETE FROM usage_hours WHERE hour = p_hour;
    INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, gpu, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_hour, f.* FROM penstock_fold_usage(p_hour, p_hour + interval '1 hour') f;
    INSERT INTO usage_day_state (day, whole) VALUES (date_trunc('day', p_hour, 'UTC'), false)
        ON CONFLICT (day) DO UPDATE SET whole = false, verified = false
        WHERE usage_day_state.whole OR usage_day_state.verified;
END $$;

-- Recompute a day from its hours. Reports read hours that became dirty since then from the rows. Clearing shared_by
-- causes the day's share of the host costs to be computed again, and clearing compared_at the comparison with the rows.
CREATE OR REPLACE FUNCTION penstock_roll_day(p_day timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM usage_days WHERE day = p_day;
    INSERT INTO usage_days (day, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, gpu, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_day, h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version,
        h.list_price_version, h.simulated, h.gpu, sum(h.requests), ARRAY[sum(h.outcomes[1]), sum(h.outcomes[2]),
            sum(h.outcomes[3]), sum(h.outcomes[4]), sum(h.outcomes[5]), sum(h.outcomes[6]), sum(h.outcomes[7])]::bigint[],
        sum(h.input_tokens), sum(h.cached_input_tokens), sum(h.output_tokens), sum(h.reasoning_tokens),
        sum(h.unbilled_input_tokens), sum(h.unbilled_output_tokens), sum(h.cost), sum(h.list_cost), sum(h.busy_us)
    FROM usage_hours h WHERE h.hour >= p_day AND h.hour < p_day + interval '1 day'
    GROUP BY h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version, h.list_price_version,
        h.simulated, h.gpu;
    INSERT INTO usage_day_state (day, whole) VALUES (p_day, true)
        ON CONFLICT (day) DO UPDATE SET whole = true, verified = false, shared_by = NULL, compared_at = NULL;
END $$;
