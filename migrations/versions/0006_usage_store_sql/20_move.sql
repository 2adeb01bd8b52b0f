-- Rows move from the wide table, which then goes. Its owner must see them all: row-level security is off for the move.
ALTER TABLE usage RENAME TO usage_wide;
ALTER TABLE usage_wide NO FORCE ROW LEVEL SECURITY;
ALTER TABLE usage_wide DISABLE ROW LEVEL SECURITY;
-- The same months as before, then those to come.
SELECT penstock_make_partition('usage_rows', to_timestamp(substring(c.relname FROM '\d{4}_\d{2}$') || '_01 UTC',
    'YYYY_MM_DD TZ'))
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'usage_wide'::regclass AND c.relname ~ '^usage_\d{4}_\d{2}$' ORDER BY c.relname;
SELECT penstock_make_partitions(2);
-- Microseconds from the claimed end to the settlement; NULL where they do not fit.
CREATE FUNCTION penstock_lag_us(p_claimed timestamptz, p_settled timestamptz) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_settled - p_claimed BETWEEN interval '-35 minutes' AND interval '35 minutes'
        THEN (extract(epoch FROM p_settled - p_claimed) * 1000000)::integer END
$$;
INSERT INTO usage_dims (tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated)
SELECT DISTINCT tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated
FROM usage_wide ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9;
INSERT INTO usage_engines (replica_id, boot_id) SELECT DISTINCT replica_id, boot_id FROM usage_wide ORDER BY 1, 2;
WITH told AS (
    SELECT w.*, d.id AS dim_id, e.id AS engine_id,
        w.admitted_at + least(w.duration_us, 604800000000) * interval '1 microsecond' AS claimed,
        penstock_lag_us(w.admitted_at + least(w.duration_us, 604800000000) * interval '1 microsecond', w.settled_at)
            AS lag_us
    FROM usage_wide w
    JOIN usage_dims d USING (tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version,
        simulated)
    JOIN usage_engines e USING (replica_id, boot_id)),
moved AS (
    INSERT INTO usage_rows (request_id, ended_at, duration_us, queue_us, ttft_us, dim_id, engine_id, lag_us,
        input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, unbilled_input_tokens,
        unbilled_output_tokens, outcome, attempts, stream, late, cost, discount)
    SELECT t.request_id, t.ended_at, t.duration_us, t.queue_us, t.ttft_us,
        t.dim_id, t.engine_id, coalesce(t.lag_us, 0),
        t.input_tokens, t.cached_input_tokens, t.output_tokens, t.reasoning_tokens, t.unbilled_input_tokens,
        t.unbilled_output_tokens, t.outcome, t.attempts, t.stream, t.ended_at > t.claimed, t.cost,
        t.list_cost - t.cost
    FROM told t ORDER BY t.ended_at, t.request_id),
far AS (
    INSERT INTO usage_far (request_id, claimed_at, settled_at)
    SELECT t.request_id, t.claimed, t.settled_at FROM told t WHERE t.lag_us IS NULL)
INSERT INTO usage_late (request_id, ended_at) SELECT t.request_id, t.claimed FROM told t WHERE t.ended_at > t.claimed;
DO $$
DECLARE
    v_before record;
    v_after record;
BEGIN
    SELECT count(*) AS rows, sum(cost) AS cost, sum(list_cost) AS list_cost INTO v_before FROM usage_wide;
    SELECT count(*) AS rows, sum(cost) AS cost, sum(cost + discount) AS list_cost INTO v_after FROM usage_rows;
    IF v_before IS DISTINCT FROM v_after THEN
        RAISE EXCEPTION 'moving usage rows changed them: % became %', v_before, v_after;
    END IF;
END $$;
DROP TABLE usage_wide;
-- Every column that a usage row has, for whoever reads. What is not asked for is not joined.
CREATE VIEW usage WITH (security_invoker = true) AS
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
        u.cost, (u.cost + u.discount)::numeric(38,0) AS list_cost, u.queue_us, u.ttft_us, u.duration_us
    FROM usage_rows u
    LEFT JOIN usage_dims d ON d.id = u.dim_id
    LEFT JOIN usage_engines e ON e.id = u.engine_id
    LEFT JOIN usage_far f ON f.request_id = u.request_id;
