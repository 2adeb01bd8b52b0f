-- The ids of the values of labels, in the order of the arguments. New ones are stored, in sorted order and before any
-- hold or account is locked, so that two settlements with the same new values cannot deadlock. In a month an organisation
-- has at most 10,000 end users, 50 names of tags and 1,000 values of each; what comes after is the value '(other)' of
-- its name, or of the tag 'tag_(other)'. Settlements that run at once may each add their own new values beyond that.
-- A value that has a budget is always stored as itself: its budget counts what its rows say.
CREATE OR REPLACE FUNCTION penstock_label_ids(p_tenants uuid[], p_names text[], p_values text[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_month date := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_new record;
    v_names text[] := p_names;
    v_values text[] := p_values;
BEGIN
    FOR v_new IN
        SELECT t.tenant, t.name, t.value, array_agg(t.place) AS places
        FROM unnest(p_tenants, p_names, p_values) WITH ORDINALITY AS t (tenant, name, value, place)
        WHERE NOT EXISTS (SELECT 1 FROM label_values v WHERE v.tenant_id = t.tenant AND v.month = v_month
            AND v.name = t.name AND v.value = t.value)
        GROUP BY t.tenant, t.name, t.value ORDER BY t.tenant, t.name, t.value
    LOOP
        IF EXISTS (SELECT FROM scope_budgets b
                WHERE b.scope_id = penstock_label_scope(v_new.tenant, v_new.name || '=' || v_new.value)) THEN
            NULL;
        ELSIF v_new.name <> 'user' AND NOT EXISTS (SELECT 1 FROM label_values v WHERE v.tenant_id = v_new.tenant
                AND v.month = v_month AND v.name = v_new.name)
            AND (SELECT count(DISTINCT v.name) FROM label_values v WHERE v.tenant_id = v_new.tenant
                AND v.month = v_month AND v.name NOT IN ('user', 'tag_(other)')) >= 50 THEN
            v_new.name := 'tag_(other)';
            v_new.value := '(other)';
        ELSIF (SELECT count(*) FROM (SELECT 1 FROM label_values v WHERE v.tenant_id = v_new.tenant
                AND v.month = v_month AND v.name = v_new.name LIMIT 10000) n)
            >= (CASE v_new.name WHEN 'user' THEN 10000 ELSE 1000 END) THEN
            v_new.value := '(other)';
        END IF;
        INSERT INTO label_values (tenant_id, month, name, value)
            VALUES (v_new.tenant, v_month, v_new.name, v_new.value) ON CONFLICT DO NOTHING;
        FOR i IN 1..cardinality(v_new.places) LOOP
            v_names[v_new.places[i]] := v_new.name;
            v_values[v_new.places[i]] := v_new.value;
        END LOOP;
    END LOOP;
    RETURN ARRAY(
        SELECT v.id FROM unnest(p_tenants, v_names, v_values) WITH ORDINALITY AS t (tenant, name, value, place)
        JOIN label_values v ON v.tenant_id = t.tenant AND v.month = v_month AND v.name = t.name AND v.value = t.value
        ORDER BY t.place);
END $$;

-- Store the labels of settled requests. The arrays have an element for each label: its request, the organisation, its name,
-- which is 'user' for the end user, and the id of its value.
CREATE OR REPLACE FUNCTION penstock_store_labels(p_requests uuid[], p_tenants uuid[], p_names text[], p_ids bigint[])
RETURNS void LANGUAGE sql AS $$
    INSERT INTO usage_labels (request_id, tenant_id, ended_at, user_value, tag_values)
    SELECT l.request, l.tenant, u.ended_at, min(l.id) FILTER (WHERE l.name = 'user'),
        coalesce(array_agg(DISTINCT l.id ORDER BY l.id) FILTER (WHERE l.name <> 'user'), '{}')
    FROM unnest(p_requests, p_tenants, p_names, p_ids) AS l (request, tenant, name, id)
    JOIN usage_rows u ON u.request_id = l.request
    GROUP BY l.request, l.tenant, u.ended_at
    ORDER BY l.request
    ON CONFLICT DO NOTHING
$$;

-- Settle ended requests as penstock_settle_with_unbilled does, and store the labels of theirs. The arrays of labels have an
-- element for each label, in the order of the requests; the name of the end user is 'user'. Budgets of labels take the
-- costs last: the accounts are locked since penstock_charge.
CREATE OR REPLACE FUNCTION penstock_settle_labelled(p_batch settle_record[], p_notes jsonb, p_requests uuid[],
    p_tenants uuid[], p_names text[], p_values text[]) RETURNS TABLE (request_id uuid, result text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[] := penstock_label_ids(p_tenants, p_names, p_values);
    v_requests uuid[];
    v_results text[];
    v_settled uuid[];
BEGIN
    SELECT array_agg(s.request_id), array_agg(s.result),
        array_agg(s.request_id ORDER BY s.request_id) FILTER (WHERE s.result = 'settled')
        INTO v_requests, v_results, v_settled
        FROM penstock_settle_with_unbilled(p_batch, p_notes) s;
    PERFORM penstock_store_labels(p_requests, p_tenants, p_names, v_ids);
    IF v_settled IS NOT NULL AND EXISTS (SELECT FROM billing_accounts a
            WHERE a.tenant_id = ANY (p_tenants) AND a.has_label_budgets) THEN
        PERFORM penstock_charge_labels(v_settled);
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_requests, v_results);
END $$;
