-- Lock the accounts of a settled batch in id order and charge them. What holds cover is in the ledger already. Where
-- a prepaid hold is gone or too small, what is available is charged and the rest booked as uncollectible. p_month: the
-- present month. The budget's counter takes each cost in the month of its row (p_ends), which is the present month or
-- the one before; when the counter is in the present month already, it no longer takes costs of the one before.
CREATE OR REPLACE FUNCTION penstock_charge(p_requests uuid[], p_tenants uuid[], p_costs numeric[], p_ends timestamptz[],
    p_held numeric[], p_month date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_month timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    s record;
    v_tenant uuid;
    v_free numeric;
    v_pay numeric;
    v_tenants uuid[] := '{}';
    v_requests uuid[] := '{}';
    v_ends timestamptz[] := '{}';
    v_paid numeric[] := '{}';
    v_lost numeric[] := '{}';
    v_scopes boolean;
BEGIN
    SELECT bool_or(l.has_scope_budgets) INTO v_scopes FROM (SELECT b.has_scope_budgets FROM billing_accounts b
        WHERE b.tenant_id = ANY (p_tenants) ORDER BY b.tenant_id FOR UPDATE) l;
    FOR s IN
        SELECT n.*, b.balance - b.held + sum(n.held - n.cost) FILTER (WHERE n.cost <= n.held)
                OVER (PARTITION BY n.tenant) AS sure, b.balance - b.held AS free
        FROM unnest(p_requests, p_tenants, p_costs, p_ends, p_held) AS n (request, tenant, cost, ended_at, held)
        JOIN billing_accounts b ON b.tenant_id = n.tenant AND b.mode = 'prepaid'
        WHERE EXISTS (SELECT 1 FROM unnest(p_costs, p_held) AS t (cost, held) WHERE t.cost > coalesce(t.held, 0))
        ORDER BY n.tenant, n.request
    LOOP
        IF v_tenant IS DISTINCT FROM s.tenant THEN
            v_tenant := s.tenant;
            v_free := coalesce(s.sure, s.free);
        END IF;
        CONTINUE WHEN s.cost <= coalesce(s.held, 0);
        v_pay := least(s.cost, coalesce(s.held, 0) + v_free);
        v_free := v_free - (v_pay - coalesce(s.held, 0));
        v_tenants := v_tenants || s.tenant;
        v_requests := v_requests || s.request;
        v_ends := v_ends || s.ended_at;
        v_paid := v_paid || v_pay;
        v_lost := v_lost || (s.cost - v_pay);
    END LOOP;
    INSERT INTO ledger_transfers (effective_at, tenant_id, kind, debit_account, credit_account, amount, source_id)
    SELECT n.ended_at, n.tenant, t.kind, penstock_ledger_account(n.tenant, t.code),
        penstock_ledger_account(n.tenant, 'revenue'), t.amount, n.request
    FROM unnest(v_requests, v_tenants, v_ends, v_paid, v_lost) AS n (request, tenant, ended_at, paid, lost),
        LATERAL (VALUES ('usage', 'credit', n.paid), ('uncollectible', 'uncollectible', n.lost))
            AS t (kind, code, amount)
    WHERE t.amount > 0;
    UPDATE billing_accounts b SET
        balance = b.balance - CASE b.mode WHEN 'prepaid' THEN n.charged ELSE 0 END,
        owed = b.owed + CASE b.mode WHEN 'prepaid' THEN 0 ELSE n.spent END,
        held = b.held - n.released, open_holds = b.open_holds - n.holds, month = greatest(b.month, n.month),
        spent_month = CASE WHEN b.month >= n.month THEN b.spent_month ELSE 0 END
            + CASE WHEN greatest(b.month, n.month) >= p_month THEN n.spent_now ELSE n.spent - n.spent_now END
    FROM (
        SELECT t.tenant, sum(t.cost) AS spent, coalesce(sum(t.held), 0) AS released, count(t.held) AS holds,
            coalesce(sum(t.cost) FILTER (WHERE t.cost <= coalesce(t.held, 0)), 0) + coalesce(sum(t.paid), 0) AS charged,
            coalesce(sum(t.cost) FILTER (WHERE t.ended_at >= v_month), 0) AS spent_now,
            CASE WHEN max(t.ended_at) >= v_month THEN p_month ELSE (p_month - interval '1 month')::date END AS month
        FROM (
            SELECT a.*, 0::numeric AS paid
                FROM unnest(p_tenants, p_costs, p_held, p_ends) AS a (tenant, cost, held, ended_at)
            UNION ALL
            SELECT p.tenant, 0, NULL, NULL, p.paid FROM unnest(v_tenants, v_paid) AS p (tenant, paid)) t
        GROUP BY t.tenant) n
    WHERE b.tenant_id = n.tenant;
    IF v_scopes THEN
        PERFORM penstock_charge_scopes(p_requests, p_costs, p_ends, p_held, p_month);
    END IF;
END $$;

-- p_amounts, which belong to p_some, at the places of p_all; null at the other places. Both lists are sorted, and
-- p_all contains p_some.
CREATE OR REPLACE FUNCTION penstock_line_up(p_all uuid[], p_some uuid[], p_amounts numeric[]) RETURNS numeric[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_amounts numeric[] := '{}';
    v_next integer := 1;
    v_id uuid;
BEGIN
    IF cardinality(p_some) = cardinality(p_all) THEN
        RETURN p_amounts;
    END IF;
    FOREACH v_id IN ARRAY p_all LOOP
        v_amounts := v_amounts || CASE WHEN p_some[v_next] = v_id THEN p_amounts[v_next] END;
        v_next := v_next + CASE WHEN p_some[v_next] = v_id THEN 1 ELSE 0 END;
    END LOOP;
    RETURN v_amounts;
END $$;
