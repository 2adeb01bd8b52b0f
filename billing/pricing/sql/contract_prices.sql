-- A rate (picodollars a token) less a discount in basis points, rounded half up.
CREATE OR REPLACE FUNCTION penstock_discounted(p_rate bigint, p_bps integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT div(p_rate::numeric * (10000 - p_bps) + 5000, 10000)::bigint
$$;

-- The derived prices that should hold from p_now on: the list price less the discount while a contract runs, except
-- where the customer has a price of its own. A null p_tenant, p_model or p_tier means all of them.
CREATE OR REPLACE FUNCTION penstock_wanted_prices(p_tenant uuid, p_model text, p_tier text, p_now timestamptz)
RETURNS TABLE (tenant_id uuid, model text, tier text, contract_id uuid, list_version bigint, input bigint,
    cached_input bigint, output bigint, reasoning bigint, during tstzrange) LANGUAGE sql STABLE AS $$
    SELECT c.tenant_id, l.model, l.tier, c.id, l.id, penstock_discounted(l.input, c.discount_bps),
        penstock_discounted(l.cached_input, c.discount_bps), penstock_discounted(l.output, c.discount_bps),
        penstock_discounted(l.reasoning, c.discount_bps), part.during
    FROM contracts c
    JOIN price_versions l ON l.tenant_id IS NULL AND l.withdrawn_at IS NULL AND l.effective && c.effective
    CROSS JOIN LATERAL (
        SELECT coalesce(range_agg(x.effective), '{}'::tstzmultirange) AS own FROM price_versions x
        WHERE x.tenant_id = c.tenant_id AND x.model = l.model AND x.tier = l.tier
            AND x.contract_id IS NULL AND x.withdrawn_at IS NULL) explicit
    CROSS JOIN LATERAL unnest(
        tstzmultirange(c.effective * l.effective * tstzrange(p_now, NULL)) - explicit.own) AS part (during)
    WHERE c.withdrawn_at IS NULL AND c.discount_bps > 0
        AND (p_tenant IS NULL OR c.tenant_id = p_tenant)
        AND (p_model IS NULL OR l.model = p_model) AND (p_tier IS NULL OR l.tier = p_tier)
$$;

-- Bring the derived prices from p_now on to what they should be; versions that stay are not touched. Returns how many
-- versions were made. The caller holds the lock of the price books.
CREATE OR REPLACE FUNCTION penstock_derive_prices(p_tenant uuid, p_model text, p_tier text, p_now timestamptz,
    p_by text)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_made integer;
BEGIN
    -- End or withdraw versions that are no longer wanted, or not for so long.
    UPDATE price_versions e SET
        effective = CASE WHEN m.until_at IS NOT NULL THEN tstzrange(lower(e.effective), m.until_at)
            WHEN NOT m.found AND lower(e.effective) < p_now THEN tstzrange(lower(e.effective), p_now)
            ELSE e.effective END,
        withdrawn_at = CASE WHEN NOT m.found AND lower(e.effective) >= p_now THEN p_now END
    FROM (
        SELECT d.id, w.during IS NOT NULL AS found,
            CASE WHEN upper(w.during) < coalesce(upper(d.effective), 'infinity') THEN upper(w.during) END AS until_at
        FROM price_versions d
        LEFT JOIN penstock_wanted_prices(p_tenant, p_model, p_tier, p_now) w
            ON w.tenant_id = d.tenant_id AND w.model = d.model AND w.tier = d.tier
            AND w.contract_id = d.contract_id AND w.list_version = d.list_version
            AND lower(w.during) = greatest(lower(d.effective), p_now)
            AND (w.input, w.cached_input, w.output, w.reasoning)
                = (d.input, d.cached_input, d.output, d.reasoning)
        WHERE d.contract_id IS NOT NULL AND d.withdrawn_at IS NULL
            AND (upper(d.effective) IS NULL OR upper(d.effective) > p_now)
            AND (p_tenant IS NULL OR d.tenant_id = p_tenant)
            AND (p_model IS NULL OR d.model = p_model) AND (p_tier IS NULL OR d.tier = p_tier)
    ) m WHERE m.id = e.id AND (NOT m.found OR m.until_at IS NOT NULL);
    -- Extend versions that are wanted for longer.
    UPDATE price_versions e SET effective = tstzrange(lower(e.effective), upper(w.during))
    FROM penstock_wanted_prices(p_tenant, p_model, p_tier, p_now) w
    WHERE e.contract_id = w.contract_id AND e.list_version = w.list_version AND e.withdrawn_at IS NULL
        AND e.tenant_id = w.tenant_id AND lower(w.during) = greatest(lower(e.effective), p_now)
        AND coalesce(upper(w.during), 'infinity') > upper(e.effective) AND upper(e.effective) > p_now;
    INSERT INTO price_versions (model, tier, tenant_id, input, cached_input, output, reasoning, effective, created_by,
            contract_id, list_version)
        SELECT w.model, w.tier, w.tenant_id, w.input, w.cached_input, w.output, w.reasoning, w.during, p_by,
            w.contract_id, w.list_version
        FROM penstock_wanted_prices(p_tenant, p_model, p_tier, p_now) w
        WHERE NOT EXISTS (
            SELECT 1 FROM price_versions e WHERE e.contract_id = w.contract_id AND e.list_version = w.list_version
                AND e.withdrawn_at IS NULL AND e.effective && w.during)
        ORDER BY w.tenant_id, w.model, w.tier, w.during;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    RETURN v_made;
END $$;
