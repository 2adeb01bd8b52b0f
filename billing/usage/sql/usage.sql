-- Every column of a usage row. A query that does not name a joined table's columns does not join it.
CREATE OR REPLACE VIEW usage WITH (security_invoker = true) AS
    SELECT u.request_id, d.tenant_id, d.project_id, d.key_id, d.model, d.tier, d.region, e.replica_id, e.boot_id,
        coalesce(f.claimed_at,
            u.ended_at - CASE WHEN u.late OR u.lag_us < 0 THEN u.lag_us ELSE 0 END * interval '1 microsecond')
            - least(u.duration_us, 604800000000) * interval '1 microsecond' AS admitted_at,
        u.ended_at,
        coalesce(f.settled_at,
            u.ended_at + CASE WHEN u.late OR u.lag_us < 0 THEN 0 ELSE u.lag_us END * interval '1 microsecond')
            AS settled_at,
        u.outcome, u.attempts, u.stream, d.simulated, d.price_version, d.list_price_version,
        u.input_tokens::bigint AS input_tokens, u.cached_input_tokens::bigint AS cached_input_tokens,
        u.output_tokens::bigint AS output_tokens, u.reasoning_tokens::bigint AS reasoning_tokens,
        u.unbilled_input_tokens::bigint AS unbilled_input_tokens,
        u.unbilled_output_tokens::bigint AS unbilled_output_tokens,
        u.cost, (u.cost + u.discount)::numeric(38,0) AS list_cost, u.queue_us, u.ttft_us, u.duration_us, d.gpu
    FROM usage_rows u
    LEFT JOIN usage_dims d ON d.id = u.dim_id
    LEFT JOIN usage_engines e ON e.id = u.engine_id
    LEFT JOIN usage_far f ON f.request_id = u.request_id;
GRANT SELECT ON usage TO penstock_app, penstock_system;
