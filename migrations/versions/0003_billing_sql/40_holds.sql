-- The price of a tenant for a model and tier at an instant: its contract price, else the list price.
CREATE FUNCTION penstock_price(p_model text, p_tier text, p_tenant uuid, p_at timestamptz)
RETURNS price_versions LANGUAGE sql STABLE AS $$
    SELECT p FROM price_versions p
    WHERE p.model = p_model AND p.tier = p_tier AND p.effective @> p_at
        AND coalesce(p.tenant_id, '00000000-0000-0000-0000-000000000000'::uuid)
            IN (coalesce(p_tenant, '00000000-0000-0000-0000-000000000000'::uuid),
                '00000000-0000-0000-0000-000000000000'::uuid)
    ORDER BY p.tenant_id NULLS LAST LIMIT 1
$$;
-- What an account has spent in the current UTC month: a counter of an earlier month counts nothing.
CREATE FUNCTION penstock_spent(a billing_accounts) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN a.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date
        THEN a.spent_month ELSE 0 END
$$;
-- Money that pays for new work: NULL = no bound. Open holds are not yet taken off.
CREATE FUNCTION penstock_funds(a billing_accounts) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a.mode = 'prepaid' THEN a.balance
        WHEN a.credit_limit IS NOT NULL THEN greatest(a.credit_limit - a.owed, 0) END
$$;
-- Reserve money for many requests in one call (DESIGN §5). One verdict per row:
--   granted | unpriced | no_account | duplicate | insufficient_credit | budget_exceeded
-- can_wait: the refusal is caused by open holds only. Accounts are locked in id order.
CREATE FUNCTION penstock_hold(
    p_incarnation text, p_requests uuid[], p_tenants uuid[], p_projects uuid[], p_keys uuid[],
    p_models text[], p_tiers text[], p_inputs bigint[], p_outputs bigint[], p_defaults bigint[])
RETURNS TABLE (
    request_id uuid, verdict text, can_wait boolean, admitted_at timestamptz,
    price_id bigint, price_input bigint, price_cached bigint, price_output bigint, price_reasoning bigint,
    list_id bigint, list_input bigint, list_cached bigint, list_output bigint, list_reasoning bigint,
    amount numeric, output_tokens bigint, needed numeric, funds numeric, held numeric, open_holds integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    a billing_accounts;
    p price_versions;
    l price_versions;
    v_touched boolean := false;
    v_funds numeric;
    v_left numeric;
    v_in_price numeric;
    v_out_price numeric;
BEGIN
    FOR r IN SELECT * FROM unnest(p_requests, p_tenants, p_projects, p_keys, p_models, p_tiers,
            p_inputs, p_outputs, p_defaults) WITH ORDINALITY
            AS t (request, tenant, project, key, model, tier, input, output, fallback, position)
        ORDER BY tenant, position
    LOOP
        IF a.tenant_id IS DISTINCT FROM r.tenant THEN
            IF v_touched THEN
                UPDATE billing_accounts b SET held = a.held, open_holds = a.open_holds
                    WHERE b.tenant_id = a.tenant_id;
                v_touched := false;
            END IF;
            SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = r.tenant FOR UPDATE;
        END IF;
        request_id := r.request; verdict := NULL; can_wait := false; admitted_at := clock_timestamp();
        amount := NULL; output_tokens := NULL; needed := NULL;
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
        IF r.output <= 0 THEN
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
                v_touched := true;
            ELSE
                verdict := 'duplicate';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF v_touched THEN
        UPDATE billing_accounts b SET held = a.held, open_holds = a.open_holds WHERE b.tenant_id = a.tenant_id;
    END IF;
END $$;
-- Make open holds cover p_tokens[i] more output tokens; false when the hold is gone or the money is not there.
-- Lock order everywhere: holds in id order, then accounts in id order.
CREATE FUNCTION penstock_extend(p_requests uuid[], p_tokens bigint[])
RETURNS TABLE (request_id uuid, extended boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    a billing_accounts;
    v_more numeric;
BEGIN
    PERFORM 1 FROM holds h WHERE h.request_id = ANY (p_requests) AND h.state = 'open'
        ORDER BY h.request_id FOR UPDATE;
    PERFORM 1 FROM billing_accounts b WHERE b.tenant_id IN (
            SELECT h.tenant_id FROM holds h WHERE h.request_id = ANY (p_requests) AND h.state = 'open')
        ORDER BY b.tenant_id FOR UPDATE;
    FOR r IN SELECT t.request, t.tokens, h.tenant_id, greatest(p.output, p.reasoning) AS price
        FROM unnest(p_requests, p_tokens) AS t (request, tokens)
        LEFT JOIN holds h ON h.request_id = t.request AND h.state = 'open'
        LEFT JOIN price_versions p ON p.id = h.price_version
    LOOP
        request_id := r.request;
        extended := false;
        IF r.tenant_id IS NOT NULL THEN
            SELECT * INTO a FROM billing_accounts b WHERE b.tenant_id = r.tenant_id;
            v_more := r.tokens::numeric * r.price;
            extended := coalesce(v_more <= least(penstock_funds(a), a.budget - penstock_spent(a)) - a.held, true);
            IF extended THEN
                UPDATE holds h SET amount = h.amount + v_more, output_tokens = h.output_tokens + r.tokens,
                    renewed_at = clock_timestamp() WHERE h.request_id = r.request;
                UPDATE billing_accounts b SET held = b.held + v_more WHERE b.tenant_id = r.tenant_id;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
-- Close open holds without a charge and give their money back. p_state: voided or expired. Returns how many.
CREATE FUNCTION penstock_release(p_requests uuid[], p_state hold_state) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_tenants uuid[];
    v_amounts numeric[];
BEGIN
    WITH locked AS (
        SELECT h.request_id FROM holds h WHERE h.request_id = ANY (p_requests) AND h.state = 'open'
        ORDER BY h.request_id FOR UPDATE),
    closed AS (
        UPDATE holds h SET state = p_state, closed_at = clock_timestamp()
        FROM locked WHERE h.request_id = locked.request_id
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
-- The caller gave up before dispatch: nothing is charged. Idempotent.
CREATE FUNCTION penstock_void(p_requests uuid[]) RETURNS integer LANGUAGE sql AS $$
    SELECT penstock_release(p_requests, 'voided')
$$;
-- Say that these requests live; returns those whose hold is still open. Rows being settled are skipped, not awaited.
CREATE FUNCTION penstock_renew(p_requests uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holds h SET renewed_at = clock_timestamp() WHERE h.request_id IN (
        SELECT o.request_id FROM holds o WHERE o.request_id = ANY (p_requests) AND o.state = 'open'
        ORDER BY o.request_id FOR UPDATE SKIP LOCKED);
    RETURN QUERY SELECT h.request_id FROM holds h WHERE h.request_id = ANY (p_requests) AND h.state = 'open';
END $$;
-- Expire holds whose process has not renewed them for p_ttl and that have no usage row. After PostgreSQL came back
-- (a new postmaster, or nobody looked for p_gap) nothing expires for one TTL, so that live processes can renew first.
CREATE FUNCTION penstock_reap(p_ttl interval, p_gap interval, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_state reaper_state;
    v_lapsed uuid[];
BEGIN
    INSERT INTO reaper_state (id, seen_at, postmaster_start, paused_until)
        VALUES (1, v_now, pg_postmaster_start_time(), v_now) ON CONFLICT DO NOTHING;
    SELECT * INTO v_state FROM reaper_state WHERE id = 1 FOR UPDATE;
    IF v_state.postmaster_start <> pg_postmaster_start_time() OR v_state.seen_at < v_now - p_gap THEN
        v_state.paused_until := v_now + p_ttl;
    END IF;
    UPDATE reaper_state SET seen_at = v_now, postmaster_start = pg_postmaster_start_time(),
        paused_until = v_state.paused_until WHERE id = 1;
    IF v_now < v_state.paused_until THEN
        RETURN 0;
    END IF;
    SELECT array_agg(request_id) INTO v_lapsed FROM (
        SELECT h.request_id FROM holds h
        WHERE h.state = 'open' AND h.renewed_at < v_now - p_ttl
            AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.request_id = h.request_id)
        ORDER BY h.request_id LIMIT p_limit FOR UPDATE OF h SKIP LOCKED) lapsed;
    RETURN penstock_release(coalesce(v_lapsed, '{}'), 'expired');
END $$;
