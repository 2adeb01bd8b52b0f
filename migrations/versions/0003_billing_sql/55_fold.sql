-- Usage rows that ended in [p_from, p_to), summed per tenant, project, key, model, tier, region, prices and realness.
-- Tokens of rows that cost nothing by their outcome (engine_failed, zero_output) count as unbilled, so billed tokens
-- times price is always the cost. The only place where usage is added up: rollups and the live hour both read it.
CREATE FUNCTION penstock_fold_usage(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (tenant_id uuid, project_id uuid, key_id uuid, model text, tier text, region text,
    price_version bigint, list_price_version bigint, simulated boolean, requests bigint, outcomes bigint[],
    input_tokens numeric, cached_input_tokens numeric, output_tokens numeric, reasoning_tokens numeric,
    unbilled_input_tokens numeric, unbilled_output_tokens numeric, cost numeric, list_cost numeric, busy_us numeric)
LANGUAGE sql STABLE AS $$
    -- outcomes: counts in the order of the type usage_outcome
    SELECT u.tenant_id, u.project_id, u.key_id, u.model, u.tier, u.region, u.price_version, u.list_price_version,
        u.simulated, count(*),
        ARRAY[count(*) FILTER (WHERE u.outcome = 'completed'), count(*) FILTER (WHERE u.outcome = 'length'),
            count(*) FILTER (WHERE u.outcome = 'budget_stopped'), count(*) FILTER (WHERE u.outcome = 'client_cancelled'),
            count(*) FILTER (WHERE u.outcome = 'engine_failed'), count(*) FILTER (WHERE u.outcome = 'zero_output'),
            count(*) FILTER (WHERE u.outcome = 'interrupted')],
        coalesce(sum(u.input_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0),
        coalesce(sum(u.cached_input_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0),
        coalesce(sum(u.output_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0),
        coalesce(sum(u.reasoning_tokens) FILTER (WHERE u.outcome NOT IN ('engine_failed', 'zero_output')), 0),
        sum(u.unbilled_input_tokens) + coalesce(sum(u.input_tokens) FILTER (WHERE u.outcome IN ('engine_failed', 'zero_output')), 0),
        sum(u.unbilled_output_tokens) + coalesce(sum(u.output_tokens) FILTER (WHERE u.outcome IN ('engine_failed', 'zero_output')), 0),
        sum(u.cost), sum(u.list_cost), sum(greatest(u.duration_us - u.queue_us, 0)::numeric)
    FROM usage u WHERE u.ended_at >= p_from AND u.ended_at < p_to
    GROUP BY u.tenant_id, u.project_id, u.key_id, u.model, u.tier, u.region, u.price_version,
        u.list_price_version, u.simulated
$$;
