-- Make open holds cover p_tokens[i] more output tokens; false when the hold is closed or the money is not available, null
-- when another transaction has locked the account: send it again.
-- Closed holds are locked too: a condition on the state would let the planner scan the index of all open holds.
-- Lock order, here and in every other function: holds in id order, then accounts in id order.
CREATE OR REPLACE FUNCTION penstock_extend(p_requests uuid[], p_tokens bigint[])
RETURNS TABLE (request_id uuid, extended boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    a billing_accounts;
    v_free uuid[];
    v_more numeric;
    v_scopes uuid[];
BEGIN
    PERFORM 1 FROM holds h WHERE h.request_id = ANY (p_requests) ORDER BY h.request_id FOR UPDATE;
    v_free := penstock_lock_accounts(p_requests);
    FOR r IN WITH found AS MATERIALIZED (
            SELECT h.request_id, h.tenant_id, h.project_id, h.key_id, h.labels, h.price_version, h.state
                FROM holds h
                WHERE h.request_id = ANY (p_requests))
        SELECT t.request, t.tokens, h.tenant_id, h.project_id, h.key_id, h.labels,
            greatest(p.output, p.reasoning) AS price
        FROM unnest(p_requests, p_tokens) AS t (request, tokens)
        LEFT JOIN found h ON h.request_id = t.request AND h.state = 'open'
        LEFT JOIN price_versions p ON p.id = h.price_version
    LOOP
        request_id := r.request;
        extended := false;
        IF r.tenant_id <> ALL (v_free) THEN
            extended := NULL;
        ELSIF r.tenant_id IS NOT NULL THEN
            SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = r.tenant_id;
            v_more := r.tokens::numeric * r.price;
            extended := coalesce(v_more <= least(penstock_funds(a), a.budget - penstock_spent(a)) - a.held, true);
            IF extended AND (a.has_scope_budgets OR a.has_label_budgets) THEN
                v_scopes := ARRAY[r.project_id, r.key_id];
                IF a.has_label_budgets THEN
                    v_scopes := v_scopes || penstock_label_scopes(r.tenant_id, r.labels);
                END IF;
                extended := NOT EXISTS (SELECT FROM scope_budgets b WHERE b.scope_id = ANY (v_scopes) AND b.stops
                    AND v_more > coalesce(b.amount, a.end_user_budget) - penstock_scope_spent(b) - b.held);
            END IF;
            IF extended THEN
                UPDATE holds h SET amount = h.amount + v_more, output_tokens = h.output_tokens + r.tokens,
                    renewed_at = clock_timestamp() WHERE h.request_id = r.request;
                UPDATE billing_accounts b SET held = b.held + v_more WHERE b.tenant_id = r.tenant_id;
                IF a.has_scope_budgets OR a.has_label_budgets THEN
                    UPDATE scope_budgets b SET held = b.held + v_more WHERE b.scope_id = ANY (v_scopes);
                END IF;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
