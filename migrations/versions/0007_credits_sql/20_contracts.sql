-- What a customer agreed to. Contracts of one customer never overlap; a contract withdrawn before it began stays as a row.
CREATE TABLE contracts (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    effective tstzrange NOT NULL,
    discount_bps integer NOT NULL DEFAULT 0,
    commit_monthly numeric(38,0),
    payment_days integer NOT NULL,
    sla jsonb,
    reason text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_by text,
    withdrawn_at timestamptz,
    CONSTRAINT pk_contracts PRIMARY KEY (id),
    CONSTRAINT fk_contracts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_contracts_effective CHECK (NOT isempty(effective) AND NOT lower_inf(effective)),
    CONSTRAINT ck_contracts_discount CHECK (discount_bps BETWEEN 0 AND 10000),
    CONSTRAINT ck_contracts_commit CHECK (commit_monthly > 0),
    CONSTRAINT ck_contracts_payment_days CHECK (payment_days BETWEEN 0 AND 365),
    CONSTRAINT ex_contracts_overlap EXCLUDE USING gist (
        textrange(tenant_id::text, tenant_id::text, '[]') WITH =, effective WITH &&) WHERE (withdrawn_at IS NULL)
);
CREATE INDEX ix_contracts_tenant_id ON contracts (tenant_id);
-- Prices that follow from a contract's discount name the contract and the list version they were taken from.
-- A version that never began and is not wanted any more is withdrawn, not deleted: what pinned it still finds it.
ALTER TABLE price_versions ADD COLUMN contract_id uuid
    CONSTRAINT fk_price_versions_contract_id REFERENCES contracts (id);
ALTER TABLE price_versions ADD COLUMN list_version bigint
    CONSTRAINT fk_price_versions_list_version REFERENCES price_versions (id);
ALTER TABLE price_versions ADD COLUMN withdrawn_at timestamptz;
-- Who ended the book there on purpose; any other end must be the next version's start.
ALTER TABLE price_versions ADD COLUMN ended_by text;
ALTER TABLE price_versions ADD CONSTRAINT ck_price_versions_derived CHECK (
    (contract_id IS NULL) = (list_version IS NULL) AND (contract_id IS NULL OR tenant_id IS NOT NULL));
ALTER TABLE price_versions DROP CONSTRAINT ex_price_versions_overlap;
ALTER TABLE price_versions ADD CONSTRAINT ex_price_versions_overlap EXCLUDE USING gist (
    textrange(book, book, '[]') WITH =, effective WITH &&) WHERE (withdrawn_at IS NULL);
CREATE INDEX ix_price_versions_contract_id ON price_versions (contract_id) WHERE contract_id IS NOT NULL;
CREATE OR REPLACE FUNCTION penstock_price(p_model text, p_tier text, p_tenant uuid, p_at timestamptz)
RETURNS price_versions LANGUAGE sql STABLE AS $$
    SELECT p FROM price_versions p
    WHERE p.model = p_model AND p.tier = p_tier AND p.effective @> p_at AND p.withdrawn_at IS NULL
        AND coalesce(p.tenant_id, '00000000-0000-0000-0000-000000000000'::uuid)
            IN (coalesce(p_tenant, '00000000-0000-0000-0000-000000000000'::uuid),
                '00000000-0000-0000-0000-000000000000'::uuid)
    ORDER BY p.tenant_id NULLS LAST LIMIT 1
$$;
-- A price after a discount in basis points, half up to the picodollar a token.
CREATE FUNCTION penstock_discounted(p_rate bigint, p_bps integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT div(p_rate::numeric * (10000 - p_bps) + 5000, 10000)::bigint
$$;
-- The derived prices that should hold from p_now on: list price less discount while a contract runs, except where the
-- customer has a price of its own. NULL = every tenant, model, tier.
CREATE FUNCTION penstock_wanted_prices(p_tenant uuid, p_model text, p_tier text, p_now timestamptz)
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
-- Make the derived prices of the future what they should be; what holds already and stays is left alone. The caller
-- holds the lock of the price books. Returns how many versions were made.
CREATE FUNCTION penstock_derive_prices(p_tenant uuid, p_model text, p_tier text, p_now timestamptz, p_by text)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_made integer;
BEGIN
    -- Cut or withdraw what is not wanted, or not for so long.
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
    -- Let what is wanted for longer hold for longer.
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
-- Requests refused because there was no price: one row per model, tier and customer. Only models that we offer.
CREATE TABLE unpriced_refusals (
    model text NOT NULL,
    tier text NOT NULL,
    tenant_id uuid NOT NULL,
    requests bigint NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    CONSTRAINT pk_unpriced_refusals PRIMARY KEY (model, tier, tenant_id),
    CONSTRAINT fk_unpriced_refusals_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE FUNCTION penstock_count_unpriced(p_models text[], p_tiers text[], p_tenants uuid[], p_counts bigint[])
RETURNS void LANGUAGE sql AS $$
    INSERT INTO unpriced_refusals AS u (model, tier, tenant_id, requests, first_at, last_at)
        SELECT n.model, n.tier, n.tenant, sum(n.requests), clock_timestamp(), clock_timestamp()
        FROM unnest(p_models, p_tiers, p_tenants, p_counts) AS n (model, tier, tenant, requests)
        JOIN models m ON m.name = n.model JOIN tenants t ON t.id = n.tenant
        WHERE n.tier IN ('priority', 'standard', 'batch')
        GROUP BY n.model, n.tier, n.tenant ORDER BY n.model, n.tier, n.tenant
    ON CONFLICT (model, tier, tenant_id) DO UPDATE SET requests = u.requests + excluded.requests,
        last_at = greatest(u.last_at, excluded.last_at)
$$;
