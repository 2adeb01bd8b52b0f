-- Book one transfer and update the counters of the billing account. Idempotent by source and kind; returns whether
-- the transfer is new. The same source and kind with another tenant, account or amount is an error (PS002). Taking
-- credit that open holds need violates a CHECK. p_effective: the instant whose month the transfer belongs to, now
-- when null.
CREATE OR REPLACE FUNCTION penstock_book(p_kind text, p_tenant uuid, p_debit text, p_credit text, p_amount numeric,
    p_source uuid, p_effective timestamptz DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_debit bigint := penstock_ledger_account(p_tenant, p_debit);
    v_credit bigint := penstock_ledger_account(p_tenant, p_credit);
BEGIN
    PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
    IF NOT FOUND OR v_debit IS NULL OR v_credit IS NULL THEN
        RAISE EXCEPTION 'tenant % has no account % or %', p_tenant, p_debit, p_credit USING ERRCODE = 'PS002';
    END IF;
    v_now := clock_timestamp();
    INSERT INTO ledger_transfers (at, effective_at, tenant_id, kind, debit_account, credit_account, amount, source_id)
        VALUES (v_now, coalesce(p_effective, v_now), p_tenant, p_kind, v_debit, v_credit, p_amount, p_source)
        ON CONFLICT (source_id, kind) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM 1 FROM ledger_transfers WHERE source_id = p_source AND kind = p_kind AND tenant_id = p_tenant
            AND debit_account = v_debit AND credit_account = v_credit AND amount = p_amount;
        IF NOT FOUND THEN
            RAISE EXCEPTION '% % is booked already with other facts', p_kind, p_source USING ERRCODE = 'PS002';
        END IF;
        RETURN false;
    END IF;
    UPDATE billing_accounts SET
        balance = balance + CASE 'credit' WHEN p_credit THEN p_amount WHEN p_debit THEN -p_amount ELSE 0 END,
        owed = owed + CASE 'receivable' WHEN p_debit THEN p_amount WHEN p_credit THEN -p_amount ELSE 0 END,
        invoiced = invoiced + CASE 'invoiced' WHEN p_debit THEN p_amount WHEN p_credit THEN -p_amount ELSE 0 END
        WHERE tenant_id = p_tenant;
    RETURN true;
END $$;
