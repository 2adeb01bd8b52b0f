-- Who may read and write what. penstock_app sees the rows of the session's tenant (penstock.tenant_id), penstock_system
-- sees all rows. FORCE applies this to the owner of the tables as well.
DO $$
DECLARE
    v_tenant text := 'nullif(current_setting(''penstock.tenant_id'', true), '''')::uuid';
    v_table text;
    v_rows text;
BEGIN
    FOR v_table, v_rows IN
        SELECT t, format('USING (tenant_id = %1$s) WITH CHECK (tenant_id = %1$s)', v_tenant) FROM unnest(ARRAY[
            'projects', 'api_keys', 'limits', 'memberships', 'audit_log',
            'contracts', 'billing_accounts', 'ledger_accounts', 'ledger_transfers', 'credit_grants', 'grant_draws',
            'adjustments', 'holds', 'usage_dims', 'usage_hours', 'usage_days',
            'invoices', 'invoice_lines', 'credit_notes', 'credit_note_lines',
            'stripe_customers', 'stripe_payment_methods', 'stripe_topups', 'stripe_auto_topups', 'stripe_payments',
            'stripe_refunds', 'stripe_disputes',
            'notices', 'notice_endpoints', 'notice_deliveries', 'alert_rules', 'alert_events',
            'statements', 'sla_credits']) t
        UNION ALL SELECT 'tenants', format('USING (id = %1$s) WITH CHECK (id = %1$s)', v_tenant)
    LOOP
        EXECUTE format('CREATE POLICY tenant_rows ON %I TO penstock_app %s', v_table, v_rows);
    END LOOP;
    -- List prices and the tenant's own.
    EXECUTE format('CREATE POLICY tenant_rows ON price_versions FOR SELECT TO penstock_app '
        'USING (tenant_id IS NULL OR tenant_id = %s)', v_tenant);
    -- The rows of the tenant's dimensions. As an array, so that the index on dim_id answers it.
    EXECUTE format('CREATE POLICY tenant_rows ON usage_rows FOR SELECT TO penstock_app '
        'USING (dim_id = ANY (ARRAY(SELECT d.id FROM usage_dims d WHERE d.tenant_id = %s)))', v_tenant);
    CREATE POLICY tenant_rows ON usage_far FOR SELECT TO penstock_app
        USING (EXISTS (SELECT 1 FROM usage_rows u WHERE u.request_id = usage_far.request_id));
    FOR v_table IN SELECT polrelid::regclass FROM pg_policy WHERE polname = 'tenant_rows' LOOP
        EXECUTE format('CREATE POLICY all_rows ON %s TO penstock_system USING (true) WITH CHECK (true)', v_table);
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', v_table);
    END LOOP;
END $$;

-- The tenant's own session. It reads no key hash, moves nothing between tenants, and does not see what GPUs cost us.
GRANT INSERT ON outbox TO penstock_app;
GRANT SELECT ON models TO penstock_app;
GRANT SELECT, UPDATE (name) ON tenants TO penstock_app;
GRANT SELECT, INSERT, UPDATE (name, status) ON projects TO penstock_app;
GRANT SELECT (id, tenant_id, project_id, name, kind, last4, status, allowed_models, created_at, expires_at, revoked_at,
        last_used_at),
    INSERT, UPDATE (name, status, revoked_at) ON api_keys TO penstock_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON limits TO penstock_app;
GRANT SELECT, INSERT ON audit_log TO penstock_app;
GRANT SELECT ON memberships, contracts, price_versions, billing_accounts, ledger_accounts, ledger_transfers,
    credit_grants, grant_draws, billing_periods, adjustments, holds, usage_dims, usage_engines, usage_rows, usage_far,
    usage_hours, usage_touched, usage_day_state, invoices, invoice_lines, credit_notes, credit_note_lines,
    stripe_customers, stripe_payment_methods, stripe_topups, stripe_auto_topups, stripe_payments, stripe_refunds,
    stripe_disputes, notices, notice_endpoints, notice_deliveries, alert_rules, alert_events, signing_keys, statements,
    sla_credits TO penstock_app;
GRANT SELECT (day, tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version, simulated,
    requests, outcomes, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, unbilled_input_tokens,
    unbilled_output_tokens, cost, list_cost, busy_us) ON usage_days TO penstock_app;

-- The platform. What was agreed, asked, booked, written or sent stays as it is: only the columns named here change.
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox, tenants, projects, api_keys, limits, users, memberships, admin_tokens,
    login_failures, models, hosts, host_seconds, model_seconds, host_prices, request_shapes, usage_day_state,
    usage_archives, stripe_events, export_failures, alert_rules TO penstock_system;
GRANT SELECT, INSERT, UPDATE ON billing_accounts, holds, unpriced_refusals, reaper_state, invoice_numbers,
    stripe_customers, stripe_payment_methods, stripe_topups, stripe_auto_topups, stripe_payments, stripe_refunds,
    stripe_disputes, stripe_pushes, stripe_meter_events, stripe_state, engine_counters, reconciliations,
    export_definitions, export_runs, notice_endpoints, notice_deliveries TO penstock_system;
GRANT SELECT, INSERT, DELETE ON ledger_unsealed, usage_touched, usage_hours, usage_days, usage_unbilled, engine_cuts,
    stripe_reconciliations TO penstock_system;
GRANT SELECT, INSERT ON audit_log, contracts, price_versions, ledger_accounts, ledger_transfers, ledger_seals,
    credit_grants, grant_draws, approvals, adjustments, usage_dims, usage_engines, usage_rows, usage_late, usage_far,
    settle_errors, parked_decisions, invoices, invoice_lines, credit_notes, credit_note_lines, invoice_runs,
    corrections, correction_lines, stripe_cash, provider_invoices, provider_invoice_lines, notices, alert_events,
    signing_keys, statements, sla_credits TO penstock_system;
GRANT SELECT, DELETE ON tenancy_changes TO penstock_system;
GRANT SELECT ON billing_periods TO penstock_system;
GRANT UPDATE (effective, ended_by, withdrawn_at) ON contracts TO penstock_system;
GRANT UPDATE (effective, ended_by, withdrawn_at) ON price_versions TO penstock_system;
GRANT UPDATE (remaining, ended_at) ON credit_grants TO penstock_system;
GRANT UPDATE (decided_by, decided_at, decision) ON approvals TO penstock_system;
GRANT UPDATE (gpu_input_cost, gpu_output_cost, gpu_us, machine_us) ON usage_days TO penstock_system;
GRANT UPDATE (status, stripe_invoice_id, paid_at, carry_exact, carry_cents, carried_to) ON invoices TO penstock_system;
GRANT UPDATE (stripe_item_id) ON invoice_lines TO penstock_system;
GRANT UPDATE (status, stripe_credit_note_id) ON credit_notes TO penstock_system;
GRANT UPDATE (status, decided_by, decided_at, applied_to) ON corrections TO penstock_system;
GRANT UPDATE (voided_at, voided_by) ON provider_invoices TO penstock_system;
GRANT UPDATE (planned_at) ON notices TO penstock_system;
GRANT UPDATE (retired_at) ON signing_keys TO penstock_system;
