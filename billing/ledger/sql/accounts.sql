-- Make a tenant's billing account and its ledger accounts. Idempotent.
CREATE OR REPLACE FUNCTION penstock_open_account(p_tenant uuid, p_mode text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_accounts (tenant_id, mode) VALUES (p_tenant, p_mode) ON CONFLICT DO NOTHING;
    INSERT INTO ledger_accounts (tenant_id, code)
        SELECT p_tenant, code FROM unnest(ARRAY['cash', 'receivable', 'invoiced', 'disputed', 'credit', 'revenue',
            'breakage', 'promotions', 'sla_credits', 'uncollectible', 'fees', 'dispute_losses', 'rounding']) code
        ON CONFLICT DO NOTHING;
END $$;

-- The ledger account of a tenant by its code; null when there is none.
CREATE OR REPLACE FUNCTION penstock_ledger_account(p_tenant uuid, p_code text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT id FROM ledger_accounts WHERE tenant_id = p_tenant AND code = p_code
$$;

-- The sums of all debits and all credits of each account.
CREATE OR REPLACE VIEW ledger_balances WITH (security_invoker = true) AS
    SELECT a.tenant_id, a.code, sum(s.debit) AS debit, sum(s.credit) AS credit
    FROM ledger_accounts a
    JOIN (
        SELECT debit_account AS account, amount AS debit, 0 AS credit FROM ledger_transfers
        UNION ALL
        SELECT credit_account, 0, amount FROM ledger_transfers) s ON s.account = a.id
    GROUP BY a.tenant_id, a.code;
GRANT SELECT ON ledger_balances TO penstock_app, penstock_system;
