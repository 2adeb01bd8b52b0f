-- Compare the usage rows of a day with its rollup, by organisation, and remember the result; returns 'equal', 'wait' when
-- the day is not rolled up or changes meanwhile, or how they differ. All reads are one statement, hence one snapshot, and
-- take no lock. The result is stored only if the day's row is still that of the snapshot: rolling up changes it.
CREATE OR REPLACE FUNCTION penstock_verify_day(p_day timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_version xid;
    v_dirty boolean;
    v_difference text;
BEGIN
    SELECT s.xmin, EXISTS (SELECT 1 FROM dirty_hours WHERE hour >= p_day AND hour < p_day + interval '1 day'), (
            SELECT format('%s organisations, the first %s: rows less rollup are %s requests and %s picodollars',
                count(*), min(tenant_id::text), (array_agg(requests ORDER BY tenant_id))[1],
                (array_agg(cost ORDER BY tenant_id))[1])
            FROM (
                SELECT tenant_id, sum(requests) AS requests, sum(cost) AS cost FROM (
                    SELECT d.tenant_id, r.requests, r.cost FROM (
                        SELECT dim_id, count(*) AS requests, sum(cost) AS cost FROM usage_rows
                        WHERE ended_at >= p_day AND ended_at < p_day + interval '1 day' GROUP BY dim_id) r
                    JOIN usage_dims d ON d.id = r.dim_id
                    UNION ALL
                    SELECT tenant_id, -requests, -cost FROM usage_hours
                    WHERE hour >= p_day AND hour < p_day + interval '1 day') b
                GROUP BY tenant_id HAVING sum(requests) <> 0 OR sum(cost) <> 0) differing
            HAVING count(*) > 0)
        INTO v_version, v_dirty, v_difference
        FROM usage_day_state s WHERE s.day = p_day AND s.whole;
    IF NOT FOUND OR v_dirty THEN
        RETURN 'wait';
    END IF;
    UPDATE usage_day_state SET verified = v_difference IS NULL, compared_at = clock_timestamp(),
            difference = v_difference,
            differs_since = CASE WHEN v_difference IS NOT NULL THEN coalesce(differs_since, clock_timestamp()) END
        WHERE day = p_day AND xmin = v_version;
    RETURN CASE WHEN FOUND THEN coalesce(v_difference, 'equal') ELSE 'wait' END;
END $$;
