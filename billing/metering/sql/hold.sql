-- Reserve money for many requests in one call. Accounts are locked in id order. One row per request:
--   verdict       granted, unpriced, no_account, duplicate, insufficient_credit or budget_exceeded
--   can_wait      the refusal is caused by open holds only
--   price_*       the pinned version and its rates (picodollars a token); list_*: the list version beside it
--   amount        the hold, null when refused; needed: the amount requested (picodollars)
--   funds         the account's funds, or the rest of its budget for budget_exceeded; null without a limit
--   held          open holds of the account before this one; open_holds: how many
-- p_inputs and p_outputs are upper bounds in tokens. A request without a bound (p_outputs[i] <= 0) may use the rest
-- of its context, p_defaults[i]: it holds at most 4096 output tokens and at most a quarter of what is available.
-- p_whole[i] asks for a hold of all that the answer may cost, so that the engine may be asked for it in one piece;
-- granted (column whole) where that is at most a sixteenth of what is available. Absent or null: not asked for.
CREATE OR REPLACE FUNCTION penstock_hold(
    p_incarnation text, p_requests uuid[], p_tenants uuid[], p_projects uuid[], p_keys uuid[],
    p_models text[], p_tiers text[], p_inputs bigint[], p_outputs bigint[], p_defaults bigint[],
    p_whole boolean[] DEFAULT '{}')
RETURNS TABLE (
    request_id uuid, verdict text, can_wait boolean, admitted_at timestamptz,
    price_id bigint, price_input bigint, price_cached bigint, price_output bigint, price_reasoning bigint,
    list_id bigint, list_input bigint, list_cached bigint, list_output bigint, list_reasoning bigint,
    amount numeric, output_tokens bigint, whole boolean, needed numeric, funds numeric, held numeric, open_holds integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    a billing_accounts;
    p price_versions;
    l price_versions;
    v_changed boolean := false;
    v_funds numeric;
    v_left numeric;
    v_in_price numeric;
    v_out_price numeric;
BEGIN
    FOR r IN SELECT * FROM unnest(p_requests, p_tenants, p_projects, p_keys, p_models, p_tiers,
            p_inputs, p_outputs, p_defaults, p_whole) WITH ORDINALITY
            AS t (request, tenant, project, key, model, tier, input, output, fallback, in_one, position)
        ORDER BY tenant, position
    LOOP
        IF a.tenant_id IS DISTINCT FROM r.tenant THEN
            IF v_changed THEN
                UPDATE billing_accounts b SET held = a.held, open_holds = a.open_holds
                    WHERE b.tenant_id = a.tenant_id;
                v_changed := false;
            END IF;
            SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = r.tenant FOR UPDATE;
        END IF;
        request_id := r.request; verdict := NULL; can_wait := false; admitted_at := clock_timestamp();
        amount := NULL; output_tokens := NULL; whole := false; needed := NULL;
        price_id := NULL; list_id := NULL;
        IF a.tenant_id IS NULL THEN
            verdict := 'no_account'; funds := NULL; held := NULL; open_holds := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;
        v_funds := penstock_funds(a);
        funds := v_funds; held := a.held; open_holds := a.open_holds;
        p := penstock_price(r.model, r.tier, r.tenant, admitted_at);
        IF p.id IS NULL THEN
            verdict := 'unpriced';
            RETURN NEXT;
            CONTINUE;
        END IF;
        l := p;
        IF p.tenant_id IS NOT NULL THEN
            l := penstock_price(r.model, r.tier, NULL, admitted_at);
            IF l.id IS NULL THEN
                l := p;
            END IF;
        END IF;
        price_id := p.id; price_input := p.input; price_cached := p.cached_input;
        price_output := p.output; price_reasoning := p.reasoning;
        list_id := l.id; list_input := l.input; list_cached := l.cached_input;
        list_output := l.output; list_reasoning := l.reasoning;
        v_in_price := greatest(p.input, p.cached_input);
        v_out_price := greatest(p.output, p.reasoning);
        v_left := least(v_funds, a.budget - penstock_spent(a)) - a.held;
        output_tokens := r.output;
        IF r.in_one THEN
            output_tokens := CASE WHEN r.output > 0 THEN r.output ELSE r.fallback END;
            needed := greatest(r.input, 0) * v_in_price + output_tokens * v_out_price;
            whole := coalesce(needed <= v_left / 16, true);
        END IF;
        IF r.output <= 0 AND NOT whole THEN
            output_tokens := least(r.fallback, 4096);
            IF v_out_price > 0 AND v_left IS NOT NULL THEN
                output_tokens := greatest(1, least(output_tokens, floor(v_left / 4 / v_out_price)));
            END IF;
        END IF;
        needed := greatest(r.input, 0) * v_in_price + output_tokens * v_out_price;
        IF needed > v_funds - a.held THEN
            verdict := 'insufficient_credit';
            can_wait := needed <= v_funds
                AND (a.budget IS NULL OR needed <= a.budget - penstock_spent(a));
        ELSIF needed > a.budget - penstock_spent(a) - a.held THEN
            verdict := 'budget_exceeded';
            funds := a.budget - penstock_spent(a);
            can_wait := needed <= funds;
        ELSE
            INSERT INTO holds (request_id, tenant_id, project_id, key_id, model, incarnation, price_version,
                    output_tokens, amount, admitted_at, renewed_at)
                VALUES (r.request, r.tenant, r.project, r.key, r.model, p_incarnation, p.id,
                    output_tokens, needed, admitted_at, admitted_at)
                ON CONFLICT DO NOTHING;
            IF FOUND THEN
                verdict := 'granted';
                amount := needed;
                a.held := a.held + needed;
                a.open_holds := a.open_holds + 1;
                v_changed := true;
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
