-- Reserve money for many requests in one call. Accounts are locked in id order. One row per request:
--   verdict       granted, busy, unpriced, no_account, duplicate, insufficient_credit, budget_exceeded or
--                 too_many_end_users; busy: another transaction has locked the account, and nothing was decided
--   can_wait      the refusal is caused by open holds only
--   price_*       the pinned version and its rates (picodollars a token); list_*: the list version beside it
--   amount        the hold, null when refused; needed: the amount requested (picodollars)
--   funds         the account's funds, or the rest of the exceeded budget for budget_exceeded; null without a limit
--   held          open holds of the account before this one, or of the scope of the exceeded budget; open_holds: how many
--                 the account has
--   budget_scope  whose budget is exceeded: tenant, project, key, end_user or tag; else null
--   budget_label  which end user's or tag's, as NAME=VALUE
-- p_inputs and p_outputs are upper bounds in tokens. A request without a bound (p_outputs[i] <= 0) may use the rest
-- of its context, p_defaults[i]: it holds at most 4096 output tokens and at most a quarter of what is available.
-- p_whole[i] asks for a hold of all that the answer may cost, so that the engine may be asked for it in one piece;
-- granted (column whole) where that is at most a sixteenth of what is available. Absent or null: not asked for.
-- p_wait: wait for a locked account, up to the session's lock_timeout. Without it no request waits for the account of
-- another tenant. The default is what callers of before this parameter expect.
-- p_labels: end user and tags of each request (see penstock_label_scopes). Absent or null: it names none.
-- p_adapters: the LoRA adapter of its tenant that each request names. Its own price goes before the model's, and stands
-- for the list version, too: it is not discounted. Absent, null or empty: it names none.
-- Generic plans: PostgreSQL would take the array of a request's scopes for a long one, and plan its statements each time.
CREATE OR REPLACE FUNCTION penstock_hold(
    p_incarnation text, p_requests uuid[], p_tenants uuid[], p_projects uuid[], p_keys uuid[],
    p_models text[], p_tiers text[], p_inputs bigint[], p_outputs bigint[], p_defaults bigint[],
    p_whole boolean[] DEFAULT '{}', p_wait boolean DEFAULT true, p_labels text[] DEFAULT '{}',
    p_adapters text[] DEFAULT '{}')
RETURNS TABLE (
    request_id uuid, verdict text, can_wait boolean, admitted_at timestamptz,
    price_id bigint, price_input bigint, price_cached bigint, price_output bigint, price_reasoning bigint,
    list_id bigint, list_input bigint, list_cached bigint, list_output bigint, list_reasoning bigint,
    amount numeric, output_tokens bigint, whole boolean, needed numeric, funds numeric, held numeric, open_holds integer,
    budget_scope text, budget_label text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_order integer[];
    i integer := 1;
    v_tenant uuid;
    v_model text;
    v_tier text;
    v_adapter text;
    v_now timestamptz;
    a billing_accounts;
    v_absent text;
    p price_versions;
    l price_versions;
    v_changed boolean := false;
    v_funds numeric;
    v_budget numeric;
    v_left numeric;
    v_scopes uuid[];
    v_budgets integer;
    v_scope scope_budgets;
    v_scope_left numeric;
    v_scope_rest numeric;
    v_input numeric;
    v_rate numeric;
BEGIN
    IF p_tenants[1] <> ANY (p_tenants) THEN
        SELECT array_agg(t.position ORDER BY t.tenant, t.position) INTO v_order
            FROM unnest(p_tenants) WITH ORDINALITY AS t (tenant, position);
    END IF;
    FOR n IN 1..cardinality(p_requests) LOOP
        i := coalesce(v_order[n], n);
        IF v_tenant IS DISTINCT FROM p_tenants[i] THEN
            IF v_changed THEN
                UPDATE billing_accounts b SET held = a.held, open_holds = a.open_holds
                    WHERE b.tenant_id = a.tenant_id;
                v_changed := false;
            END IF;
            v_tenant := p_tenants[i];
            v_model := NULL;
            IF p_wait THEN
                SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = v_tenant FOR UPDATE;
            ELSE
                SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = v_tenant FOR UPDATE SKIP LOCKED;
            END IF;
            IF a.tenant_id IS NULL THEN
                v_absent := CASE WHEN EXISTS (SELECT FROM billing_accounts b WHERE b.tenant_id = v_tenant)
                    THEN 'busy' ELSE 'no_account' END;
            END IF;
            v_now := clock_timestamp();
            v_funds := penstock_funds(a);
            v_budget := CASE WHEN a.budget IS NOT NULL THEN a.budget - penstock_spent(a) END;
        END IF;
        request_id := p_requests[i]; can_wait := false; admitted_at := v_now;
        amount := NULL; output_tokens := NULL; whole := false; needed := NULL; price_id := NULL; list_id := NULL;
        funds := v_funds; held := a.held; open_holds := a.open_holds; budget_scope := NULL;
        budget_label := NULL;
        IF a.tenant_id IS NULL THEN
            verdict := v_absent;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF v_model IS DISTINCT FROM p_models[i] OR v_tier <> p_tiers[i]
            OR v_adapter <> coalesce(p_adapters[i], '') THEN
            v_model := p_models[i]; v_tier := p_tiers[i]; v_adapter := coalesce(p_adapters[i], '');
            p := NULL;
            IF v_adapter <> '' THEN
                p := penstock_price(v_adapter, v_tier, v_tenant, v_now);
            END IF;
            IF p.id IS NULL THEN
                p := penstock_price(v_model, v_tier, v_tenant, v_now);
            END IF;
            l := p;
            IF p.tenant_id IS NOT NULL AND p.model = v_model THEN
                l := penstock_price(v_model, v_tier, NULL, v_now);
                IF l.id IS NULL THEN
                    l := p;
                END IF;
            END IF;
            v_rate := greatest(p.output, p.reasoning);
        END IF;
        IF p.id IS NULL THEN
            verdict := 'unpriced';
            RETURN NEXT;
            CONTINUE;
        END IF;
        price_id := p.id; price_input := p.input; price_cached := p.cached_input;
        price_output := p.output; price_reasoning := p.reasoning;
        list_id := l.id; list_input := l.input; list_cached := l.cached_input;
        list_output := l.output; list_reasoning := l.reasoning;
        v_left := least(v_funds, v_budget) - a.held;
        v_budgets := 0;
        v_scope_rest := NULL;
        IF a.has_scope_budgets OR a.has_label_budgets THEN
            v_scopes := ARRAY[p_projects[i], p_keys[i]];
            IF a.has_label_budgets AND p_labels[i] IS NOT NULL THEN
                v_scopes := v_scopes || penstock_label_scopes(v_tenant, p_labels[i]);
                IF a.end_user_budget IS NOT NULL
                    AND NOT penstock_admit_end_user(v_tenant, v_scopes[3], p_labels[i]) THEN
                    verdict := 'too_many_end_users';
                    RETURN NEXT;
                    CONTINUE;
                END IF;
            END IF;
            -- The budget with the least left. What all leave for new work once no hold is open decides can_wait.
            SELECT count(*), min(coalesce(b.amount, a.end_user_budget) - penstock_scope_spent(b)) FILTER (WHERE b.stops)
                INTO v_budgets, v_scope_rest FROM scope_budgets b WHERE b.scope_id = ANY (v_scopes);
            IF v_scope_rest IS NOT NULL THEN
                SELECT * INTO v_scope FROM scope_budgets b WHERE b.stops AND b.scope_id = ANY (v_scopes)
                    ORDER BY coalesce(b.amount, a.end_user_budget) - penstock_scope_spent(b) - b.held, b.scope,
                        b.scope_id LIMIT 1;
                v_scope_left := coalesce(v_scope.amount, a.end_user_budget) - penstock_scope_spent(v_scope);
                v_left := least(v_left, v_scope_left - v_scope.held);
            END IF;
        END IF;
        v_input := greatest(p_inputs[i], 0) * greatest(p.input, p.cached_input)::numeric;
        output_tokens := p_outputs[i];
        IF p_whole[i] THEN
            output_tokens := CASE WHEN p_outputs[i] > 0 THEN p_outputs[i] ELSE p_defaults[i] END;
            whole := coalesce(v_input + output_tokens * v_rate <= v_left / 16, true);
        END IF;
        IF p_outputs[i] <= 0 AND NOT whole THEN
            output_tokens := least(p_defaults[i], 4096);
            IF v_rate > 0 AND v_left IS NOT NULL THEN
                output_tokens := greatest(1, least(output_tokens, floor(v_left / 4 / v_rate)));
            END IF;
        END IF;
        needed := v_input + output_tokens * v_rate;
        IF needed > v_left THEN
            IF needed > v_funds - a.held THEN
                verdict := 'insufficient_credit';
                can_wait := needed <= least(v_funds, v_budget, v_scope_rest);
            ELSE
                verdict := 'budget_exceeded';
                can_wait := needed <= least(v_budget, v_scope_rest);
                IF needed > v_budget - a.held THEN
                    budget_scope := 'tenant';
                    funds := v_budget;
                ELSE
                    budget_scope := v_scope.scope;
                    budget_label := v_scope.label;
                    funds := v_scope_left;
                    held := v_scope.held;
                END IF;
            END IF;
        ELSE
            INSERT INTO holds (request_id, tenant_id, project_id, key_id, model, incarnation, price_version,
                    output_tokens, amount, admitted_at, renewed_at, labels)
                VALUES (request_id, v_tenant, p_projects[i], p_keys[i], v_model, p_incarnation, price_id,
                    output_tokens, needed, v_now, v_now, p_labels[i])
                ON CONFLICT DO NOTHING;
            IF FOUND THEN
                verdict := 'granted';
                amount := needed;
                a.held := a.held + needed;
                a.open_holds := a.open_holds + 1;
                v_changed := true;
                IF v_budgets > 0 THEN
                    UPDATE scope_budgets b SET held = b.held + needed WHERE b.scope_id = ANY (v_scopes);
                END IF;
            ELSE
                verdict := 'duplicate';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF v_changed THEN
        UPDATE billing_accounts b SET held = a.held, open_holds = a.open_holds WHERE b.tenant_id = a.tenant_id;
    END IF;
END $$;
