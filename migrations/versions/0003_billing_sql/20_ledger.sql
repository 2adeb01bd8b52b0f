-- Every transfer waits in ledger_unsealed until the sealer has put it into the chain.
CREATE FUNCTION penstock_queue_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger_unsealed (transfer_id) SELECT id FROM fresh;
    RETURN NULL;
END $$;
CREATE TRIGGER ledger_transfers_queue_seal AFTER INSERT ON ledger_transfers
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION penstock_queue_seal();
CREATE FUNCTION penstock_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: book a reversing row instead', TG_TABLE_NAME;
END $$;
CREATE TRIGGER ledger_transfers_append_only BEFORE UPDATE OR DELETE ON ledger_transfers
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
CREATE TRIGGER ledger_seals_append_only BEFORE UPDATE OR DELETE ON ledger_seals
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
-- The bytes of a transfer that its seal covers. billing/ledger/transfers.py builds the same text to verify it.
CREATE FUNCTION penstock_seal_text(p_seq bigint, t ledger_transfers) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('|', p_seq, t.id, (extract(epoch FROM t.at) * 1000000)::bigint, t.tenant_id, t.kind,
        t.debit_account, t.credit_account, t.amount, t.source_id)
$$;
-- Appends at most p_limit unsealed transfers to the hash chain; one sealer at a time, the others return 0.
CREATE FUNCTION penstock_seal(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
    v_hash bytea;
    v_count integer := 0;
    t ledger_transfers;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('penstock_seal')) THEN
        RETURN 0;
    END IF;
    SELECT seq, hash INTO v_seq, v_hash FROM ledger_seals ORDER BY seq DESC LIMIT 1;
    v_seq := coalesce(v_seq, 0);
    v_hash := coalesce(v_hash, '\x'::bytea);
    FOR t IN
        WITH taken AS (
            DELETE FROM ledger_unsealed WHERE transfer_id IN (
                SELECT transfer_id FROM ledger_unsealed ORDER BY transfer_id LIMIT p_limit)
            RETURNING transfer_id)
        SELECT l.* FROM ledger_transfers l JOIN taken ON taken.transfer_id = l.id ORDER BY l.id
    LOOP
        v_seq := v_seq + 1;
        v_hash := sha256(v_hash || convert_to(penstock_seal_text(v_seq, t), 'UTF8'));
        INSERT INTO ledger_seals (seq, transfer_id, hash) VALUES (v_seq, t.id, v_hash);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
-- A tenant's billing account and its ledger accounts; doing it twice changes nothing.
CREATE FUNCTION penstock_open_account(p_tenant uuid, p_mode text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_accounts (tenant_id, mode) VALUES (p_tenant, p_mode) ON CONFLICT DO NOTHING;
    INSERT INTO ledger_accounts (tenant_id, code)
        SELECT p_tenant, code FROM unnest(ARRAY['credit', 'receivable', 'revenue', 'uncollectible', 'grants']) code
        ON CONFLICT DO NOTHING;
END $$;
-- The ledger account of a tenant by its code.
CREATE FUNCTION penstock_ledger_account(p_tenant uuid, p_code text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT id FROM ledger_accounts WHERE tenant_id = p_tenant AND code = p_code
$$;
-- Credit given to a prepaid customer: grants -> credit. Idempotent by grant id; returns the new balance.
CREATE FUNCTION penstock_grant(p_id uuid, p_tenant uuid, p_amount numeric, p_reason text, p_by text)
RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_balance numeric;
BEGIN
    INSERT INTO credit_grants (id, tenant_id, amount, reason, created_by)
        VALUES (p_id, p_tenant, p_amount, p_reason, p_by) ON CONFLICT (id) DO NOTHING;
    IF FOUND THEN
        INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id)
            VALUES (p_tenant, 'grant', penstock_ledger_account(p_tenant, 'grants'),
                penstock_ledger_account(p_tenant, 'credit'), p_amount, p_id);
        UPDATE billing_accounts SET balance = balance + p_amount WHERE tenant_id = p_tenant;
    END IF;
    SELECT balance INTO v_balance FROM billing_accounts WHERE tenant_id = p_tenant;
    RETURN v_balance;
END $$;
-- What was ever debited and credited to each account.
CREATE VIEW ledger_balances WITH (security_invoker = true) AS
    SELECT a.tenant_id, a.code, sum(s.debit) AS debit, sum(s.credit) AS credit
    FROM ledger_accounts a
    JOIN (
        SELECT debit_account AS account, amount AS debit, 0 AS credit FROM ledger_transfers
        UNION ALL
        SELECT credit_account, 0, amount FROM ledger_transfers) s ON s.account = a.id
    GROUP BY a.tenant_id, a.code;
