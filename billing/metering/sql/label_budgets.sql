-- The scope of the budget of a label, which is NAME=VALUE: 'user=ada' of an end user, 'tag_team=blue' of a tag. Two
-- organisations never share one.
CREATE OR REPLACE FUNCTION penstock_label_scope(p_tenant uuid, p_label text) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN left(encode(sha256(convert_to(p_tenant::text || E'\n' || p_label, 'UTF8')), 'hex'), 32)::uuid;
END $$;

-- The scopes of the labels of a request, in their order. p_labels: one label a line, the end user first; null when the
-- request has none. A request has an end user and five tags at most (gateway/limits.py), so lines after the sixth do not
-- count.
CREATE OR REPLACE FUNCTION penstock_label_scopes(p_tenant uuid, p_labels text) RETURNS uuid[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_scopes uuid[] := '{}';
    v_label text;
BEGIN
    IF p_labels IS NOT NULL THEN
        FOREACH v_label IN ARRAY (string_to_array(p_labels, E'\n'))[1:6] LOOP
            v_scopes := v_scopes || penstock_label_scope(p_tenant, v_label);
        END LOOP;
    END IF;
    RETURN v_scopes;
END $$;

-- Begin to count an end user under the budget of every end user, if nothing counts this one yet: with what its open holds
-- reserve, and those of p_settled, which the caller will release. It has spent nothing in this month: whoever spends gets
-- a row, here or when the budget is set. The account is locked.
CREATE OR REPLACE FUNCTION penstock_count_end_user(p_tenant uuid, p_scope uuid, p_label text, p_settled uuid[])
RETURNS void LANGUAGE sql AS $$
    INSERT INTO scope_budgets (scope_id, tenant_id, scope, label, month, held)
    SELECT p_scope, p_tenant, 'end_user', p_label, date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date,
        (SELECT coalesce(sum(h.amount), 0) FROM holds h WHERE h.tenant_id = p_tenant AND h.state = 'open'
            AND p_label = ANY (string_to_array(h.labels, E'\n')))
        + (SELECT coalesce(sum(h.amount), 0) FROM holds h WHERE h.request_id = ANY (p_settled) AND h.state = 'settled'
            AND p_label = ANY (string_to_array(h.labels, E'\n')))
    ON CONFLICT DO NOTHING
$$;

-- Whether the end user of a request that is to be held is counted under the budget of every end user: false when the
-- organisation has 100,000 end users that are. True for a request that names no end user.
CREATE OR REPLACE FUNCTION penstock_admit_end_user(p_tenant uuid, p_scope uuid, p_labels text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_labels LIKE 'user=%' AND NOT EXISTS (SELECT FROM scope_budgets b WHERE b.scope_id = p_scope) THEN
        IF (SELECT count(*) FROM (SELECT FROM scope_budgets b WHERE b.tenant_id = p_tenant AND b.amount IS NULL
                LIMIT 100000) n) >= 100000 THEN
            RETURN false;
        END IF;
        PERFORM penstock_count_end_user(p_tenant, p_scope, split_part(p_labels, E'\n', 1), '{}');
    END IF;
    RETURN true;
END $$;

-- Take the costs of requests that were settled just now, in this transaction, into the budgets of the labels that their
-- rows have, and release what their holds reserved there. The accounts are locked already. p_requests is sorted.
CREATE OR REPLACE FUNCTION penstock_charge_labels(p_requests uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_scopes uuid[];
    v_costs numeric[];
    v_ends timestamptz[];
    v_held numeric[];
BEGIN
    -- An end user whose hold PostgreSQL lost in a crash may not be counted yet.
    PERFORM penstock_count_end_user(n.tenant_id, n.scope, n.label, p_requests) FROM (
        SELECT DISTINCT l.tenant_id, 'user=' || v.value AS label,
            penstock_label_scope(l.tenant_id, 'user=' || v.value) AS scope
        FROM usage_labels l JOIN label_values v ON v.id = l.user_value
        JOIN billing_accounts a ON a.tenant_id = l.tenant_id AND a.end_user_budget IS NOT NULL
        WHERE l.request_id = ANY (p_requests)) n
    WHERE NOT EXISTS (SELECT FROM scope_budgets b WHERE b.scope_id = n.scope);
    SELECT array_agg(t.scope), array_agg(t.cost), array_agg(t.ended_at), array_agg(t.held)
    INTO v_scopes, v_costs, v_ends, v_held FROM (
        SELECT penstock_label_scope(l.tenant_id, v.name || '=' || v.value) AS scope, u.cost, u.ended_at, NULL AS held
        FROM usage_labels l JOIN usage_rows u ON u.request_id = l.request_id
        CROSS JOIN LATERAL unnest(l.user_value || l.tag_values) AS i (id) JOIN label_values v ON v.id = i.id
        WHERE l.request_id = ANY (p_requests)
        UNION ALL
        SELECT s.scope, 0, NULL, h.amount
        FROM holds h CROSS JOIN LATERAL unnest(penstock_label_scopes(h.tenant_id, h.labels)) AS s (scope)
        WHERE h.request_id = ANY (p_requests) AND h.state = 'settled'
            AND h.request_id BETWEEN p_requests[1] AND p_requests[cardinality(p_requests)]) t;
    PERFORM penstock_book_budgets(v_scopes, v_costs, v_ends, v_held,
        date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date);
END $$;

-- What labels have spent in usage rows that ended since p_since, and what open holds reserve for them. p_label: 'user' for
-- all end users.
CREATE OR REPLACE FUNCTION penstock_label_sums(p_tenant uuid, p_label text, p_since timestamptz)
RETURNS TABLE (label text, spent numeric, held numeric) LANGUAGE sql STABLE AS $$
    SELECT t.label, sum(t.spent), sum(t.held) FROM (
        SELECT v.name || '=' || v.value AS label, u.cost AS spent, 0 AS held
        FROM usage_labels l JOIN usage_rows u ON u.request_id = l.request_id
        CROSS JOIN LATERAL unnest(l.user_value || l.tag_values) AS i (id) JOIN label_values v ON v.id = i.id
        WHERE l.tenant_id = p_tenant AND l.ended_at >= p_since
            AND (v.name = p_label OR v.name || '=' || v.value = p_label)
        UNION ALL
        SELECT s.label, 0, h.amount FROM holds h
        CROSS JOIN LATERAL unnest(string_to_array(h.labels, E'\n')) AS s (label)
        WHERE h.tenant_id = p_tenant AND h.state = 'open'
            AND (s.label = p_label OR split_part(s.label, '=', 1) = p_label)) t
    GROUP BY t.label
$$;

-- Set the monthly budget of an end user or tag, of every end user ('user'), or remove it (null); false without an account.
-- p_stops: whether it stops requests or is watched only. A new one begins with what was spent in this month and what open
-- holds reserve; those that close meanwhile: see penstock_set_scope_budget. Without a budget of its own, an end user is
-- under that of every end user, which a row without an amount counts.
CREATE OR REPLACE FUNCTION penstock_set_label_budget(p_tenant uuid, p_label text, p_amount numeric, p_stops boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_month timestamptz;
    v_every numeric;
    v_scope uuid := penstock_label_scope(p_tenant, p_label);
BEGIN
    SELECT b.end_user_budget INTO v_every FROM billing_accounts b WHERE b.tenant_id = p_tenant FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_month := date_trunc('month', clock_timestamp(), 'UTC');
    IF p_label = 'user' THEN
        UPDATE billing_accounts b SET end_user_budget = p_amount WHERE b.tenant_id = p_tenant;
        IF p_amount IS NULL THEN
            DELETE FROM scope_budgets b WHERE b.tenant_id = p_tenant AND b.amount IS NULL;
        ELSIF v_every IS NULL THEN
            INSERT INTO scope_budgets (scope_id, tenant_id, scope, label, month, held, spent_month)
            SELECT penstock_label_scope(p_tenant, s.label), p_tenant, 'end_user', s.label,
                (v_month AT TIME ZONE 'UTC')::date, s.held, s.spent
            FROM penstock_label_sums(p_tenant, 'user', v_month) s
            ON CONFLICT DO NOTHING;
        END IF;
    ELSIF p_amount IS NOT NULL THEN
        UPDATE scope_budgets b SET amount = p_amount, stops = p_stops WHERE b.scope_id = v_scope;
        IF NOT FOUND THEN
            INSERT INTO scope_budgets (scope_id, tenant_id, scope, label, amount, stops, month, held, spent_month)
            SELECT v_scope, p_tenant, CASE WHEN p_label LIKE 'user=%' THEN 'end_user' ELSE 'tag' END, p_label,
                p_amount, p_stops, (v_month AT TIME ZONE 'UTC')::date, coalesce(sum(s.held), 0), coalesce(sum(s.spent), 0)
            FROM penstock_label_sums(p_tenant, p_label, v_month) s;
        END IF;
    ELSIF p_label LIKE 'user=%' AND v_every IS NOT NULL THEN
        UPDATE scope_budgets b SET amount = NULL, stops = true WHERE b.scope_id = v_scope;
    ELSE
        DELETE FROM scope_budgets b WHERE b.scope_id = v_scope;
    END IF;
    UPDATE billing_accounts b SET has_label_budgets = b.end_user_budget IS NOT NULL OR EXISTS (
        SELECT FROM scope_budgets s WHERE s.tenant_id = p_tenant AND s.label IS NOT NULL) WHERE b.tenant_id = p_tenant;
    RETURN true;
END $$;

-- Forget up to p_limit end users of one organisation that are counted under the budget of every end user, but have spent
-- nothing in this month and hold nothing; returns how many. Call it until it returns 0.
CREATE OR REPLACE FUNCTION penstock_forget_end_users(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_month date := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_tenant uuid;
    v_forgotten integer;
BEGIN
    SELECT a.tenant_id INTO v_tenant FROM billing_accounts a
    WHERE a.end_user_budget IS NOT NULL AND EXISTS (SELECT FROM scope_budgets b
        WHERE b.tenant_id = a.tenant_id AND b.amount IS NULL AND b.month < v_month AND b.held = 0)
    LIMIT 1 FOR UPDATE SKIP LOCKED;
    DELETE FROM scope_budgets b WHERE b.scope_id IN (SELECT o.scope_id FROM scope_budgets o
        WHERE o.tenant_id = v_tenant AND o.amount IS NULL AND o.month < v_month AND o.held = 0 LIMIT p_limit);
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END $$;
