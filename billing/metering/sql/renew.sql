-- Renew the holds of running requests; returns those whose hold is still open. Rows being settled are skipped.
CREATE OR REPLACE FUNCTION penstock_renew(p_requests uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holds h SET renewed_at = clock_timestamp() WHERE h.request_id IN (
        SELECT o.request_id FROM holds o WHERE o.request_id = ANY (p_requests) AND o.state = 'open'
        ORDER BY o.request_id FOR UPDATE SKIP LOCKED);
    RETURN QUERY SELECT h.request_id FROM holds h WHERE h.request_id = ANY (p_requests) AND h.state = 'open';
END $$;
