-- Compare the usage rows of a day with its rollup, by organisation, and remember that they are equal; returns whether
-- they are. Rolling an hour of the day up again forgets it.
CREATE OR REPLACE FUNCTION penstock_verify_day(p_day timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    IF EXISTS (SELECT 1 FROM dirty_hours WHERE hour >= p_day AND hour < p_day + interval '1 day') OR EXISTS (
        SELECT 1 FROM (
            SELECT d.tenant_id, r.requests, r.cost FROM (
                SELECT dim_id, count(*) AS requests, sum(cost) AS cost FROM usage_rows
                WHERE ended_at >= p_day AND ended_at < p_day + interval '1 day' GROUP BY dim_id) r
            JOIN usage_dims d ON d.id = r.dim_id
            UNION ALL
            SELECT tenant_id, -requests, -cost FROM usage_hours WHERE hour >= p_day AND hour < p_day + interval '1 day') b
        GROUP BY tenant_id HAVING sum(requests) <> 0 OR sum(cost) <> 0) THEN
        RETURN false;
    END IF;
    UPDATE usage_day_state SET verified = true WHERE day = p_day AND whole;
    RETURN FOUND;
END $$;
