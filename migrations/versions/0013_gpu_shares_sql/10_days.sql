-- A day's parts of what the hosts cost: every hour shared on its own, then added up.
ALTER TABLE usage_days
    ADD COLUMN gpu_input_cost numeric(38,0) NOT NULL DEFAULT 0,
    ADD COLUMN gpu_output_cost numeric(38,0) NOT NULL DEFAULT 0,
    ADD COLUMN gpu_us numeric(38,0) NOT NULL DEFAULT 0,
    ADD COLUMN machine_us numeric(38,0) NOT NULL DEFAULT 0;
-- SHA-256 of the host costs and weights that the day was shared by. Empty: not shared since it was rolled. Whoever
-- reads compares it with what the hosts cost by now, so a late second or a new price is never missed.
ALTER TABLE usage_day_state ADD COLUMN shared_by bytea;
CREATE INDEX ix_host_seconds_hour ON host_seconds (hour);
CREATE INDEX ix_model_seconds_hour ON model_seconds (hour);
-- As before; the new sums are shared out anew.
CREATE OR REPLACE FUNCTION penstock_roll_day(p_day timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_rollup'));
    DELETE FROM usage_days WHERE day = p_day;
    INSERT INTO usage_days (day, tenant_id, project_id, key_id, model, tier, region, price_version,
        list_price_version, simulated, requests, outcomes, input_tokens, cached_input_tokens, output_tokens,
        reasoning_tokens, unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, busy_us)
    SELECT p_day, h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version,
        h.list_price_version, h.simulated, sum(h.requests), ARRAY[sum(h.outcomes[1]), sum(h.outcomes[2]),
            sum(h.outcomes[3]), sum(h.outcomes[4]), sum(h.outcomes[5]), sum(h.outcomes[6]), sum(h.outcomes[7])]::bigint[],
        sum(h.input_tokens), sum(h.cached_input_tokens), sum(h.output_tokens), sum(h.reasoning_tokens),
        sum(h.unbilled_input_tokens), sum(h.unbilled_output_tokens), sum(h.cost), sum(h.list_cost), sum(h.busy_us)
    FROM usage_hours h WHERE h.hour >= p_day AND h.hour < p_day + interval '1 day'
    GROUP BY h.tenant_id, h.project_id, h.key_id, h.model, h.tier, h.region, h.price_version, h.list_price_version,
        h.simulated;
    INSERT INTO usage_day_state (day, whole) VALUES (p_day, true)
        ON CONFLICT (day) DO UPDATE SET whole = true, shared_by = NULL;
END $$;
