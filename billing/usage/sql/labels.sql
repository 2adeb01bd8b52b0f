-- Usage of requests with labels that ended in [p_from, p_to), of one organisation or of all (null), summed per hour, by
-- the columns of penstock_fold_usage and by end user and tags. What is billed and what is not is decided as there.
CREATE OR REPLACE FUNCTION penstock_fold_labels(p_tenant uuid, p_from timestamptz, p_to timestamptz)
RETURNS TABLE (hour timestamptz, tenant_id uuid, project_id uuid, key_id uuid, model text, tier text, region text,
    price_version bigint, list_price_version bigint, simulated boolean, gpu text, requests bigint, outcomes bigint[],
    input_tokens numeric, cached_input_tokens numeric, output_tokens numeric, reasoning_tokens numeric,
    unbilled_input_tokens numeric, unbilled_output_tokens numeric, cost numeric, list_cost numeric, busy_us numeric,
    end_user text, tags jsonb)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT f.hour, d.tenant_id, d.project_id, d.key_id, d.model, d.tier, d.region, d.price_version,
        d.list_price_version, d.simulated, d.gpu, f.requests, f.outcomes, f.input, f.cached_input, f.output, f.reasoning,
        f.unbilled_input + f.all_input - f.input, f.unbilled_output + f.all_output - f.output,
        f.cost, f.cost + f.discount, f.busy_us,
        (SELECT v.value FROM label_values v WHERE v.id = f.user_value),
        (SELECT jsonb_object_agg(v.name, v.value) FROM label_values v WHERE v.id = ANY (f.tag_values))
    FROM (
        SELECT date_trunc('hour', u.ended_at, 'UTC') AS hour, u.dim_id, l.user_value, l.tag_values,
            count(*) AS requests,
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
        FROM usage_labels l JOIN usage_rows u ON u.request_id = l.request_id
        WHERE (p_tenant IS NULL OR l.tenant_id = p_tenant) AND l.ended_at >= p_from AND l.ended_at < p_to
        GROUP BY 1, 2, 3, 4) f
    JOIN usage_dims d ON d.id = f.dim_id
$$;
