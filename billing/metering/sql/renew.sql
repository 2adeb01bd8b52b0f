-- Renew the holds of running requests; returns those whose hold is still open. Rows being settled are skipped. The state
-- is compared outside of the scans, so that the planner takes the primary key and not the index of all open holds.
CREATE OR REPLACE FUNCTION penstock_renew(p_requests uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    WITH locked AS (
        SELECT o.request_id, o.state FROM holds o WHERE o.request_id = ANY (p_requests)
        ORDER BY o.request_id FOR UPDATE SKIP LOCKED)
    UPDATE holds h SET renewed_at = clock_timestamp()
    FROM locked WHERE h.request_id = locked.request_id AND locked.state = 'open';
    RETURN QUERY WITH found AS MATERIALIZED (
        SELECT h.request_id, h.state FROM holds h WHERE h.request_id = ANY (p_requests))
    SELECT f.request_id FROM found f WHERE f.state = 'open';
END $$;
