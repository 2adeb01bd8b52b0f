-- Take p_amount from a lot. The caller has locked the billing account.
CREATE OR REPLACE FUNCTION penstock_draw(p_grant uuid, p_kind text, p_amount numeric, p_source uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE credit_grants SET remaining = remaining - p_amount WHERE id = p_grant;
    INSERT INTO grant_draws (grant_id, tenant_id, kind, amount, source_id)
        SELECT id, tenant_id, p_kind, p_amount, p_source FROM credit_grants WHERE id = p_grant;
END $$;

-- Take up to p_use from a tenant's lots in the order of their use; expired lots come last. Returns what was taken.
CREATE OR REPLACE FUNCTION penstock_draw_use(p_tenant uuid, p_use numeric) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_left numeric := p_use;
    v_take numeric;
    l credit_grants;
BEGIN
    FOR l IN SELECT * FROM credit_grants WHERE tenant_id = p_tenant AND remaining > 0
        ORDER BY (ended_at IS NOT NULL), priority, expires_at NULLS LAST, created_at, id
    LOOP
        EXIT WHEN v_left <= 0;
        v_take := least(v_left, l.remaining);
        PERFORM penstock_draw(l.id, 'use', v_take, NULL);
        v_left := v_left - v_take;
    END LOOP;
    RETURN p_use - v_left;
END $$;

-- Take the credit used so far from a tenant's lots; returns how much. The hot path only moves the balance, so what
-- the lots hold beyond the balance has been used: sum(remaining) >= balance always, and they are equal after this
-- call. Expired lots end in the order of their expiry, each after the use that was booked before it.
CREATE OR REPLACE FUNCTION penstock_allocate(p_tenant uuid) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_balance numeric;
    v_used numeric;
    v_later numeric;
    v_account bigint := penstock_ledger_account(p_tenant, 'credit');
    v_now timestamptz;
    v_taken numeric := 0;
    v_end timestamptz;
BEGIN
    SELECT balance INTO v_balance FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_now := clock_timestamp();
    SELECT coalesce(sum(remaining), 0) - v_balance INTO v_used FROM credit_grants
        WHERE tenant_id = p_tenant AND remaining > 0;
    FOR v_end IN SELECT DISTINCT expires_at FROM credit_grants
        WHERE tenant_id = p_tenant AND remaining > 0 AND ended_at IS NULL AND expires_at <= v_now
        ORDER BY expires_at
    LOOP
        -- Every earlier allocation was made before this expiry, so v_used includes all use booked after it.
        SELECT coalesce(sum(amount), 0) INTO v_later FROM ledger_transfers
            WHERE tenant_id = p_tenant AND at > v_end AND debit_account = v_account
                AND kind NOT IN ('refund', 'clawback', 'expiry');
        IF v_used > v_later THEN
            v_taken := v_taken + penstock_draw_use(p_tenant, v_used - v_later);
            v_used := v_later;
        END IF;
        UPDATE credit_grants SET ended_at = v_now WHERE tenant_id = p_tenant AND ended_at IS NULL
            AND expires_at <= v_end AND remaining > 0;
    END LOOP;
    IF v_used > 0 THEN
        v_taken := v_taken + penstock_draw_use(p_tenant, v_used);
    END IF;
    RETURN v_taken;
END $$;

-- Credit for a prepaid customer: one lot and one transfer. Idempotent by id; returns whether the lot is new. The same
-- id with another tenant, amount or kind is an error (PS002), as is a postpaid account.
CREATE OR REPLACE FUNCTION penstock_add_lot(p_id uuid, p_tenant uuid, p_amount numeric, p_kind text,
    p_priority smallint, p_expires timestamptz, p_reason text, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_mode text;
BEGIN
    SELECT mode INTO v_mode FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
    IF v_mode IS DISTINCT FROM 'prepaid' THEN
        RAISE EXCEPTION 'only a prepaid account takes credit lots' USING ERRCODE = 'PS002';
    END IF;
    -- Use before this lot must not be taken from it.
    PERFORM penstock_allocate(p_tenant);
    INSERT INTO credit_grants (id, tenant_id, amount, kind, priority, expires_at, remaining, reason, created_by,
            created_at)
        VALUES (p_id, p_tenant, p_amount, p_kind, p_priority, p_expires, p_amount, p_reason, p_by, clock_timestamp())
        ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM 1 FROM credit_grants WHERE id = p_id AND tenant_id = p_tenant AND amount = p_amount AND kind = p_kind;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the credit % was given already with other facts', p_id USING ERRCODE = 'PS002';
        END IF;
        RETURN false;
    END IF;
    PERFORM penstock_book(
        CASE p_kind WHEN 'purchased' THEN 'purchase' WHEN 'promotional' THEN 'grant' WHEN 'sla' THEN 'sla_credit'
            ELSE 'adjustment' END, p_tenant,
        CASE p_kind WHEN 'purchased' THEN 'cash' WHEN 'promotional' THEN 'promotions' WHEN 'sla' THEN 'sla_credits'
            ELSE 'revenue' END, 'credit', p_amount, p_id);
    RETURN true;
END $$;

-- Promotional credit without an expiry. Idempotent by id; returns the balance.
CREATE OR REPLACE FUNCTION penstock_grant(p_id uuid, p_tenant uuid, p_amount numeric, p_reason text, p_by text)
RETURNS numeric LANGUAGE plpgsql AS $$
BEGIN
    PERFORM penstock_add_lot(p_id, p_tenant, p_amount, 'promotional', 10::smallint, NULL, p_reason, p_by);
    RETURN (SELECT balance FROM billing_accounts WHERE tenant_id = p_tenant);
END $$;
