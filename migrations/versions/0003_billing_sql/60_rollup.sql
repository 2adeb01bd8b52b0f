-- Recompute the whole hour p_hour from its usage rows. The marks are taken before the rows are read, so a batch that
-- commits in between leaves its mark behind and the hour is read raw until the next run (billing/usage/rollups.py).
CREATE FUNCTION penstock_roll_hour(p_hour timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM usage_touched WHERE hour = p_hour;
    DELETE FROM usage_hours WHERE hour = p_hour;
    INSERT INTO usage_hours (hour, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_hour, f.* FROM penstock_fold_usage(p_hour, p_hour + interval '1 hour') f;
END $$;
