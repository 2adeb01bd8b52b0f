-- The price version of a model and tier for a tenant at an instant: its contract price, else the list price. A null
-- p_tenant asks for the list price.
CREATE OR REPLACE FUNCTION penstock_price(p_model text, p_tier text, p_tenant uuid, p_at timestamptz)
RETURNS price_versions LANGUAGE sql STABLE AS $$
    SELECT p FROM price_versions p
    WHERE p.model = p_model AND p.tier = p_tier AND p.effective @> p_at AND p.withdrawn_at IS NULL
        AND coalesce(p.tenant_id, '00000000-0000-0000-0000-000000000000'::uuid)
            IN (coalesce(p_tenant, '00000000-0000-0000-0000-000000000000'::uuid),
                '00000000-0000-0000-0000-000000000000'::uuid)
    ORDER BY p.tenant_id NULLS LAST LIMIT 1
$$;
