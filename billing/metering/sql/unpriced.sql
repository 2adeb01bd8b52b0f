-- Count requests that were refused because their model had no price: p_counts[i] of a model, tier and tenant. Models
-- and tenants that do not exist are ignored.
CREATE OR REPLACE FUNCTION penstock_count_unpriced(p_models text[], p_tiers text[], p_tenants uuid[], p_counts bigint[])
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
