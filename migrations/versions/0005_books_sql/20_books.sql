ALTER TABLE ledger_accounts DROP CONSTRAINT ck_ledger_accounts_code;
UPDATE ledger_accounts SET code = 'promotions' WHERE code = 'grants';
ALTER TABLE ledger_accounts ADD CONSTRAINT ck_ledger_accounts_code CHECK (code IN (
    'cash', 'receivable', 'invoiced', 'disputed', 'credit', 'revenue', 'breakage', 'promotions', 'sla_credits',
    'uncollectible', 'fees', 'dispute_losses', 'rounding'));
ALTER TABLE ledger_transfers DROP CONSTRAINT ck_ledger_transfers_kind;
ALTER TABLE ledger_transfers ADD CONSTRAINT ck_ledger_transfers_kind CHECK (kind IN (
    'usage', 'uncollectible', 'grant', 'purchase', 'sla_credit', 'expiry', 'refund', 'adjustment', 'commit',
    'invoice', 'rounding', 'payment', 'credit_note', 'credit_note_refund', 'credit_note_rounding', 'write_off', 'fee',
    'dispute', 'dispute_fee', 'dispute_won', 'dispute_lost', 'clawback', 'clawback_return'));
-- The instant whose month a transfer belongs to: for usage the end of the request, else the booking itself.
ALTER TABLE ledger_transfers ADD COLUMN effective_at timestamptz;
ALTER TABLE ledger_transfers DISABLE TRIGGER ledger_transfers_append_only;
UPDATE ledger_transfers SET effective_at = at;
ALTER TABLE ledger_transfers ENABLE TRIGGER ledger_transfers_append_only;
ALTER TABLE ledger_transfers ALTER COLUMN effective_at SET DEFAULT clock_timestamp();
ALTER TABLE ledger_transfers ALTER COLUMN effective_at SET NOT NULL;
CREATE INDEX ix_ledger_transfers_effective_at ON ledger_transfers USING brin (effective_at);
-- The effective instant is part of what a seal covers, where it differs (earlier seals stay valid).
CREATE OR REPLACE FUNCTION penstock_seal_text(p_seq bigint, t ledger_transfers) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('|', p_seq, t.id, (extract(epoch FROM t.at) * 1000000)::bigint, t.tenant_id, t.kind,
        t.debit_account, t.credit_account, t.amount, t.source_id,
        CASE WHEN t.effective_at <> t.at THEN (extract(epoch FROM t.effective_at) * 1000000)::bigint END)
$$;
-- Every transfer waits for the sealer; none may belong to a closed month.
CREATE OR REPLACE FUNCTION penstock_queue_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM billing_periods p
            JOIN fresh f ON f.effective_at >= p.starts_at AND f.effective_at < p.ends_at
            WHERE p.status = 'closed') THEN
        RAISE EXCEPTION 'a transfer belongs to a closed period: date it now, as an adjustment' USING ERRCODE = 'PS001';
    END IF;
    INSERT INTO ledger_unsealed (transfer_id) SELECT id FROM fresh;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION penstock_open_account(p_tenant uuid, p_mode text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_accounts (tenant_id, mode) VALUES (p_tenant, p_mode) ON CONFLICT DO NOTHING;
    INSERT INTO ledger_accounts (tenant_id, code)
        SELECT p_tenant, code FROM unnest(ARRAY['cash', 'receivable', 'invoiced', 'disputed', 'credit', 'revenue',
            'breakage', 'promotions', 'sla_credits', 'uncollectible', 'fees', 'dispute_losses', 'rounding']) code
        ON CONFLICT DO NOTHING;
END $$;
SELECT penstock_open_account(tenant_id, mode) FROM billing_accounts;
-- A customer in credit owes less than nothing: corrections after an invoice make it so.
ALTER TABLE billing_accounts DROP CONSTRAINT ck_billing_accounts_owed;
-- Book one transfer and keep the account in step; idempotent by (source, kind). Returns whether it is new.
-- The same source and kind with other facts is an error (PS002), as is taking credit that open holds need (CHECK).
CREATE FUNCTION penstock_book(p_kind text, p_tenant uuid, p_debit text, p_credit text, p_amount numeric,
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
        owed = owed + CASE 'receivable' WHEN p_debit THEN p_amount WHEN p_credit THEN -p_amount ELSE 0 END
        WHERE tenant_id = p_tenant;
    RETURN true;
END $$;
CREATE OR REPLACE FUNCTION penstock_grant(p_id uuid, p_tenant uuid, p_amount numeric, p_reason text, p_by text)
RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_balance numeric;
BEGIN
    INSERT INTO credit_grants (id, tenant_id, amount, reason, created_by)
        VALUES (p_id, p_tenant, p_amount, p_reason, p_by) ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
        PERFORM penstock_book('grant', p_tenant, 'promotions', 'credit', p_amount, p_id);
    END IF;
    SELECT balance INTO v_balance FROM billing_accounts WHERE tenant_id = p_tenant;
    RETURN v_balance;
END $$;
