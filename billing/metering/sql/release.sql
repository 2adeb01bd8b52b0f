-- Close open holds without a charge and release their money; returns the requests that it left as they were because
-- another transaction has locked their account. p_state: voided or expired. The state is compared outside of the scan,
-- so that the planner takes the primary key and not the index of all open holds.
CREATE OR REPLACE FUNCTION penstock_release(p_requests uuid[], p_state hold_state) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    v_free uuid[];
    v_left uuid[];
    v_tenants uuid[];
    v_projects uuid[];
    v_keys uuid[];
    v_labels text[];
    v_amounts numeric[];
BEGIN
    PERFORM 1 FROM holds h WHERE h.request_id = ANY (p_requests) ORDER BY h.request_id FOR UPDATE;
    v_free := penstock_lock_accounts(p_requests);
    WITH found AS MATERIALIZED (
        SELECT h.request_id, h.state, h.tenant_id = ANY (v_free) AS free FROM holds h
        WHERE h.request_id = ANY (p_requests)),
    closed AS (
        UPDATE holds h SET state = p_state, closed_at = clock_timestamp()
        FROM found WHERE h.request_id = found.request_id AND found.state = 'open' AND found.free
        RETURNING h.tenant_id, h.project_id, h.key_id, h.labels, h.amount)
    SELECT array_agg(c.tenant_id), array_agg(c.project_id), array_agg(c.key_id), array_agg(c.labels),
        array_agg(c.amount),
        (SELECT array_agg(f.request_id) FROM found f WHERE f.state = 'open' AND NOT f.free)
        INTO v_tenants, v_projects, v_keys, v_labels, v_amounts, v_left FROM closed c;
    UPDATE billing_accounts b SET held = b.held - s.amount, open_holds = b.open_holds - s.holds
        FROM (SELECT tenant, sum(amount) AS amount, count(*)::integer AS holds
            FROM unnest(v_tenants, v_amounts) AS t (tenant, amount) GROUP BY tenant) s
        WHERE b.tenant_id = s.tenant;
    UPDATE scope_budgets b SET held = b.held - s.amount
        FROM (SELECT scope, sum(amount) AS amount FROM (
            SELECT * FROM unnest(v_projects || v_keys, v_amounts || v_amounts)
            UNION ALL
            SELECT l.scope, t.amount FROM unnest(v_tenants, v_labels, v_amounts) AS t (tenant, labels, amount)
            JOIN billing_accounts a ON a.tenant_id = t.tenant AND a.has_label_budgets
            CROSS JOIN LATERAL unnest(penstock_label_scopes(t.tenant, t.labels)) AS l (scope)) t (scope, amount)
            GROUP BY scope) s
        WHERE b.scope_id = s.scope;
    RETURN coalesce(v_left, '{}');
END $$;

-- Lock the accounts of these requests' holds in id order, except those that another transaction has locked; returns the
-- tenants of the locked ones.
CREATE OR REPLACE FUNCTION penstock_lock_accounts(p_requests uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT b.tenant_id FROM billing_accounts b
        WHERE b.tenant_id IN (SELECT h.tenant_id FROM holds h WHERE h.request_id = ANY (p_requests))
        ORDER BY b.tenant_id FOR UPDATE SKIP LOCKED);
END $$;

-- Release the holds of requests that were given up before dispatch; returns those to be sent again, because another
-- transaction has locked their account. Idempotent.
CREATE OR REPLACE FUNCTION penstock_void(p_requests uuid[]) RETURNS uuid[] LANGUAGE sql AS $$
    SELECT penstock_release(p_requests, 'voided')
$$;
