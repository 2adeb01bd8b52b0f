-- What the scope of a budget has spent in the current UTC month. The counter of an earlier month counts as 0.
CREATE OR REPLACE FUNCTION penstock_scope_spent(b scope_budgets) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN b.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date
        THEN b.spent_month ELSE 0 END
$$;

-- Take the costs of settled requests into the budgets of their projects and keys, and release what was held there. The
-- accounts are locked already, as they are wherever a budget of theirs is read or changed. Months: see penstock_charge.
CREATE OR REPLACE FUNCTION penstock_charge_scopes(p_requests uuid[], p_costs numeric[], p_ends timestamptz[],
    p_held numeric[], p_month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_scopes uuid[];
    v_costs numeric[];
    v_ends timestamptz[];
    v_held numeric[];
BEGIN
    SELECT array_agg(s.scope), array_agg(t.cost), array_agg(t.ended_at), array_agg(t.held)
    INTO v_scopes, v_costs, v_ends, v_held
    FROM unnest(p_requests, p_costs, p_ends, p_held) AS t (request, cost, ended_at, held)
    JOIN usage_rows u ON u.request_id = t.request
    JOIN usage_dims d ON d.id = u.dim_id, LATERAL (SELECT d.project_id UNION SELECT d.key_id) AS s (scope);
    PERFORM penstock_book_budgets(v_scopes, v_costs, v_ends, v_held, p_month);
END $$;

-- Take costs into the budgets of scopes, each in the month of its end, and release what was held there. The lists have an
-- element for each scope of a request; an end is null where there is no cost.
CREATE OR REPLACE FUNCTION penstock_book_budgets(p_scopes uuid[], p_costs numeric[], p_ends timestamptz[],
    p_held numeric[], p_month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_month timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
BEGIN
    UPDATE scope_budgets b SET held = b.held - n.released, month = greatest(b.month, n.month),
        spent_month = CASE WHEN b.month >= n.month THEN b.spent_month ELSE 0 END
            + CASE WHEN greatest(b.month, n.month) >= p_month THEN n.spent_now ELSE n.spent - n.spent_now END
    FROM (
        SELECT t.scope, sum(t.cost) AS spent, coalesce(sum(t.held), 0) AS released,
            coalesce(sum(t.cost) FILTER (WHERE t.ended_at >= v_month), 0) AS spent_now,
            CASE WHEN max(t.ended_at) >= v_month THEN p_month ELSE (p_month - interval '1 month')::date END AS month
        FROM unnest(p_scopes, p_costs, p_ends, p_held) AS t (scope, cost, ended_at, held)
        GROUP BY t.scope) n
    WHERE b.scope_id = n.scope;
END $$;

-- Set the monthly budget of a project or key, or remove it (null); false without an account. A new one begins with what
-- its scope has spent in this month and what its open holds reserve. A settlement that has closed its hold but not
-- charged it yet waits for this lock: its hold is still seen as open here, and its charge releases it.
CREATE OR REPLACE FUNCTION penstock_set_scope_budget(p_tenant uuid, p_scope text, p_id uuid, p_amount numeric)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_month timestamptz;
BEGIN
    PERFORM 1 FROM billing_accounts b WHERE b.tenant_id = p_tenant FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_month := date_trunc('month', clock_timestamp(), 'UTC');
    IF p_amount IS NULL THEN
        DELETE FROM scope_budgets b WHERE b.tenant_id = p_tenant AND b.scope_id = p_id;
    ELSE
        UPDATE scope_budgets b SET amount = p_amount WHERE b.tenant_id = p_tenant AND b.scope_id = p_id;
        IF NOT FOUND THEN
            WITH dirty AS MATERIALIZED (SELECT DISTINCT h.hour FROM dirty_hours h WHERE h.hour >= v_month),
            dims AS MATERIALIZED (
                SELECT d.id FROM usage_dims d WHERE d.tenant_id = p_tenant AND p_id IN (d.project_id, d.key_id))
            INSERT INTO scope_budgets (scope_id, tenant_id, scope, amount, month, held, spent_month)
            SELECT p_id, p_tenant, p_scope, p_amount, (v_month AT TIME ZONE 'UTC')::date,
                (SELECT coalesce(sum(h.amount), 0) FROM holds h WHERE h.tenant_id = p_tenant AND h.state = 'open'
                    AND p_id IN (h.project_id, h.key_id)),
                (SELECT coalesce(sum(u.cost), 0) FROM usage_hours u WHERE u.tenant_id = p_tenant AND u.hour >= v_month
                    AND p_id IN (u.project_id, u.key_id) AND u.hour NOT IN (SELECT y.hour FROM dirty y))
                + (SELECT coalesce(sum(r.cost), 0) FROM usage_rows r WHERE r.dim_id IN (SELECT i.id FROM dims i)
                    AND r.ended_at >= v_month AND date_trunc('hour', r.ended_at, 'UTC') IN (SELECT y.hour FROM dirty y));
        END IF;
    END IF;
    UPDATE billing_accounts b SET has_scope_budgets = EXISTS (
        SELECT FROM scope_budgets s WHERE s.tenant_id = p_tenant AND s.label IS NULL) WHERE b.tenant_id = p_tenant;
    RETURN true;
END $$;
