-- Close open holds without a charge and release their money; returns how many. p_state: voided or expired. The state is
-- compared outside of the scan, so that the planner takes the primary key and not the index of all open holds.
CREATE OR REPLACE FUNCTION penstock_release(p_requests uuid[], p_state hold_state) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_tenants uuid[];
    v_amounts numeric[];
BEGIN
    WITH locked AS (
        SELECT h.request_id, h.state FROM holds h WHERE h.request_id = ANY (p_requests)
        ORDER BY h.request_id FOR UPDATE),
    closed AS (
        UPDATE holds h SET state = p_state, closed_at = clock_timestamp()
        FROM locked WHERE h.request_id = locked.request_id AND locked.state = 'open'
        RETURNING h.tenant_id, h.amount)
    SELECT array_agg(tenant_id), array_agg(amount) INTO v_tenants, v_amounts FROM closed;
    IF v_tenants IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM billing_accounts b WHERE b.tenant_id = ANY (v_tenants) ORDER BY b.tenant_id FOR UPDATE;
    UPDATE billing_accounts b SET held = b.held - s.amount, open_holds = b.open_holds - s.holds
        FROM (SELECT tenant, sum(amount) AS amount, count(*)::integer AS holds
            FROM unnest(v_tenants, v_amounts) AS t (tenant, amount) GROUP BY tenant) s
        WHERE b.tenant_id = s.tenant;
    RETURN cardinality(v_tenants);
END $$;

-- Release the holds of requests that were given up before dispatch. Idempotent.
CREATE OR REPLACE FUNCTION penstock_void(p_requests uuid[]) RETURNS integer LANGUAGE sql AS $$
    SELECT penstock_release(p_requests, 'voided')
$$;
