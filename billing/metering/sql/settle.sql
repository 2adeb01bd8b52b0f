-- Settle ended requests; idempotent by request id.
-- The result of each: settled, duplicate or parked. A record that cannot be billed is parked in settle_errors with
-- the reason and does not stop the others. Holds are closed first; accounts are locked last, in id order.
CREATE OR REPLACE FUNCTION penstock_settle(p_batch settle_record[]) RETURNS TABLE (request_id uuid, result text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_month timestamptz := date_trunc('month', v_now, 'UTC');
    v_unnumbered integer;
    v_all uuid[];
    v_problems text[];
    v_results text[];
    v_new uuid[];
    v_tenants uuid[];
    v_costs numeric[];
    v_ends timestamptz[];
    v_late timestamptz[];
    v_far timestamptz[];
    v_open uuid[];
    v_held numeric[];
BEGIN
    -- No month is closed while usage is dated into it (penstock_hold_close takes this lock exclusively).
    PERFORM pg_advisory_xact_lock_shared(hashtext('penstock_close'));
    FOR attempt IN 1..2 LOOP
        WITH given AS (
            SELECT DISTINCT ON (x.request_id) x.*,
                x.admitted_at + least(x.duration_us, 604800000000) * interval '1 microsecond' AS claimed
            FROM unnest(p_batch) AS x
            ORDER BY x.request_id),
        checked AS MATERIALIZED (
            SELECT g.*, d.id AS dim_id, n.id AS engine_id, penstock_lag_us(g.claimed, v_now) AS lag_us,
                -- Usage belongs to its end by the database's clock, never in the future. A record that arrives after
                -- the late window of 48 h, or for a closed month, belongs to the hour in which it arrives.
                g.claimed < v_now - interval '48 hours'
                    OR (g.claimed < v_month AND penstock_is_closed(g.claimed)) AS late,
                CASE
                    WHEN a.tenant_id IS NULL THEN 'tenant ' || g.tenant_id || ' has no billing account'
                    WHEN p.id IS NULL OR p.tenant_id <> g.tenant_id OR (p.model <> g.model AND NOT EXISTS (
                        SELECT FROM adapters m WHERE m.public_name = p.model AND m.model = g.model
                            AND m.tenant_id = g.tenant_id)) THEN
                        'price version ' || g.price_version || ' is not one of model ' || g.model || ' for this tenant'
                    WHEN l.id IS NULL THEN 'list price version ' || g.list_price_version || ' does not exist'
                    WHEN least(g.input_tokens, g.cached_input_tokens, g.output_tokens, g.reasoning_tokens,
                            g.unbilled_input_tokens, g.unbilled_output_tokens, g.queue_us, g.ttft_us,
                            g.duration_us) < 0 THEN 'a count or duration is negative'
                    WHEN greatest(g.input_tokens, g.output_tokens, g.unbilled_input_tokens,
                            g.unbilled_output_tokens) > 2147483647 THEN 'more than 2147483647 tokens'
                    WHEN g.cached_input_tokens > g.input_tokens THEN 'more cached than input tokens'
                    WHEN g.reasoning_tokens > g.output_tokens THEN 'more reasoning than output tokens'
                END AS problem,
                CASE WHEN g.free THEN 0 ELSE
                    (g.input_tokens - g.cached_input_tokens)::numeric * p.input
                    + g.cached_input_tokens::numeric * p.cached_input
                    + (g.output_tokens - g.reasoning_tokens)::numeric * p.output
                    + g.reasoning_tokens::numeric * p.reasoning END AS cost,
                CASE WHEN g.free OR l.id = p.id THEN 0 ELSE
                    (g.input_tokens - g.cached_input_tokens)::numeric * (l.input - p.input)
                    + g.cached_input_tokens::numeric * (l.cached_input - p.cached_input)
                    + (g.output_tokens - g.reasoning_tokens)::numeric * (l.output - p.output)
                    + g.reasoning_tokens::numeric * (l.reasoning - p.reasoning) END AS discount
            FROM given g
            LEFT JOIN billing_accounts a ON a.tenant_id = g.tenant_id
            LEFT JOIN price_versions p ON p.id = g.price_version
            LEFT JOIN price_versions l ON l.id = g.list_price_version
            LEFT JOIN usage_dims d ON d.tenant_id = g.tenant_id AND d.project_id = g.project_id
                AND d.key_id = g.key_id AND d.model = g.model AND d.tier = g.tier AND d.region = g.region
                AND d.price_version = g.price_version AND d.list_price_version = g.list_price_version
                AND d.simulated = g.simulated AND d.gpu = coalesce(g.gpu, '')
            LEFT JOIN usage_engines n ON n.replica_id = g.replica_id AND n.boot_id = g.boot_id),
        -- On the first attempt, a dimension or engine without a number stops the whole batch until it has one.
        ready AS MATERIALIZED (
            SELECT c.* FROM checked c WHERE c.problem IS NULL AND (attempt = 2 OR NOT EXISTS (
                SELECT 1 FROM checked w WHERE w.problem IS NULL AND (w.dim_id IS NULL OR w.engine_id IS NULL)))),
        made AS (
            INSERT INTO usage_rows (request_id, ended_at, duration_us, queue_us, ttft_us, dim_id, engine_id, lag_us,
                input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, unbilled_input_tokens,
                unbilled_output_tokens, outcome, attempts, stream, late, cost, discount)
            SELECT r.request_id, CASE WHEN r.late OR r.claimed > v_now THEN v_now ELSE r.claimed END, r.duration_us,
                r.queue_us, r.ttft_us, r.dim_id, r.engine_id, coalesce(r.lag_us, 0),
                r.input_tokens::integer, r.cached_input_tokens::integer, r.output_tokens::integer,
                r.reasoning_tokens::integer, r.unbilled_input_tokens::integer, r.unbilled_output_tokens::integer,
                r.outcome, r.attempts, r.stream, r.late, r.cost, r.discount
            FROM ready r ORDER BY r.request_id
            ON CONFLICT DO NOTHING
            RETURNING usage_rows.request_id, usage_rows.cost, usage_rows.ended_at)
        SELECT count(*) FILTER (WHERE c.problem IS NULL AND (c.dim_id IS NULL OR c.engine_id IS NULL)),
            array_agg(c.request_id), array_agg(c.problem),
            array_agg(CASE WHEN c.problem IS NOT NULL THEN 'parked' WHEN m.request_id IS NULL THEN 'duplicate'
                ELSE 'settled' END),
            array_agg(m.request_id ORDER BY m.request_id) FILTER (WHERE m.request_id IS NOT NULL),
            array_agg(c.tenant_id ORDER BY m.request_id) FILTER (WHERE m.request_id IS NOT NULL),
            array_agg(m.cost ORDER BY m.request_id) FILTER (WHERE m.request_id IS NOT NULL),
            array_agg(m.ended_at ORDER BY m.request_id) FILTER (WHERE m.request_id IS NOT NULL),
            array_agg(CASE WHEN c.late THEN c.claimed END ORDER BY m.request_id) FILTER (WHERE m.request_id IS NOT NULL),
            array_agg(CASE WHEN c.lag_us IS NULL THEN c.claimed END ORDER BY m.request_id)
                FILTER (WHERE m.request_id IS NOT NULL)
        INTO v_unnumbered, v_all, v_problems, v_results, v_new, v_tenants, v_costs, v_ends, v_late, v_far
        FROM checked c LEFT JOIN made m ON m.request_id = c.request_id;
        EXIT WHEN v_unnumbered = 0;
        PERFORM penstock_number_dims(p_batch);
    END LOOP;

    IF num_nonnulls(VARIADIC v_problems) > 0 THEN
        INSERT INTO settle_errors (request_id, reason, record)
        SELECT DISTINCT ON (t.request_id) t.request_id, t.problem, convert_to(to_jsonb(x)::text, 'UTF8')
        FROM unnest(v_all, v_problems) AS t (request_id, problem)
        JOIN unnest(p_batch) AS x ON x.request_id = t.request_id
        WHERE t.problem IS NOT NULL ORDER BY t.request_id ON CONFLICT DO NOTHING;
    END IF;
    IF v_new IS NOT NULL THEN
        IF num_nonnulls(VARIADIC v_late || v_far) > 0 THEN
            INSERT INTO usage_late (request_id, ended_at)
            SELECT t.request_id, t.claimed FROM unnest(v_new, v_late) AS t (request_id, claimed)
            WHERE t.claimed IS NOT NULL;
            INSERT INTO usage_far (request_id, claimed_at, settled_at)
            SELECT t.request_id, t.claimed, v_now FROM unnest(v_new, v_far) AS t (request_id, claimed)
            WHERE t.claimed IS NOT NULL;
        END IF;
        INSERT INTO dirty_hours (hour) SELECT DISTINCT date_trunc('hour', e, 'UTC') FROM unnest(v_ends) e;
        -- The state is compared outside of the scan, which thereby uses the primary key alone. The bounds leave out the
        -- partitions of other months.
        WITH locked AS MATERIALIZED (
            SELECT h.request_id, h.amount, h.state FROM holds h
            WHERE h.request_id = ANY (v_new) AND h.request_id BETWEEN v_new[1] AND v_new[cardinality(v_new)]
            ORDER BY h.request_id FOR UPDATE)
        SELECT array_agg(l.request_id ORDER BY l.request_id), array_agg(l.amount ORDER BY l.request_id)
        INTO v_open, v_held FROM locked l WHERE l.state = 'open';
        UPDATE holds h SET state = 'settled', closed_at = v_now
        WHERE h.request_id = ANY (v_open) AND h.request_id BETWEEN v_new[1] AND v_new[cardinality(v_new)];
        v_held := penstock_line_up(v_new, v_open, v_held);

        -- What a hold or a later invoice covers is booked before any account is locked.
        INSERT INTO ledger_transfers (effective_at, tenant_id, kind, debit_account, credit_account, amount, source_id)
        SELECT n.ended_at, n.tenant, 'usage', d.id, c.id, n.cost, n.request
        FROM unnest(v_new, v_tenants, v_costs, v_ends, v_held) AS n (request, tenant, cost, ended_at, held)
        JOIN billing_accounts b ON b.tenant_id = n.tenant
        JOIN ledger_accounts d ON d.tenant_id = n.tenant
            AND d.code = CASE b.mode WHEN 'prepaid' THEN 'credit' ELSE 'receivable' END
        JOIN ledger_accounts c ON c.tenant_id = n.tenant AND c.code = 'revenue'
        WHERE n.cost > 0 AND (b.mode = 'postpaid' OR n.cost <= coalesce(n.held, 0));
        PERFORM penstock_charge(v_new, v_tenants, v_costs, v_ends, v_held, (v_month AT TIME ZONE 'UTC')::date);
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_all, v_results);
END $$;

-- Give numbers to a batch's dimensions and engines that have none yet. In sorted order and before anything else is
-- locked, so that two settlements with the same new dimensions cannot deadlock.
CREATE OR REPLACE FUNCTION penstock_number_dims(p_batch settle_record[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage_dims (tenant_id, project_id, key_id, model, tier, region, price_version, list_price_version,
        simulated, gpu)
    SELECT DISTINCT x.tenant_id, x.project_id, x.key_id, x.model, x.tier, x.region, x.price_version,
        x.list_price_version, x.simulated, coalesce(x.gpu, '')
    FROM unnest(p_batch) AS x
    WHERE num_nulls(VARIADIC ARRAY[x.tenant_id::text, x.project_id::text, x.key_id::text, x.model, x.tier, x.region,
            x.price_version::text, x.list_price_version::text, x.simulated::text]) = 0
        AND EXISTS (SELECT 1 FROM billing_accounts b WHERE b.tenant_id = x.tenant_id)
        AND EXISTS (SELECT 1 FROM price_versions p WHERE p.id = x.price_version)
        AND EXISTS (SELECT 1 FROM price_versions p WHERE p.id = x.list_price_version)
    EXCEPT SELECT d.tenant_id, d.project_id, d.key_id, d.model, d.tier, d.region, d.price_version,
        d.list_price_version, d.simulated, d.gpu FROM usage_dims d
        WHERE d.tenant_id IN (SELECT x.tenant_id FROM unnest(p_batch) AS x)
    ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
    ON CONFLICT DO NOTHING;
    INSERT INTO usage_engines (replica_id, boot_id)
    SELECT DISTINCT x.replica_id, x.boot_id FROM unnest(p_batch) AS x
    WHERE x.replica_id IS NOT NULL AND x.boot_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM usage_engines e WHERE e.replica_id = x.replica_id AND e.boot_id = x.boot_id)
    ORDER BY 1, 2
    ON CONFLICT DO NOTHING;
END $$;

-- Microseconds from the claimed end to the settlement; null beyond 35 minutes, which do not fit an integer.
CREATE OR REPLACE FUNCTION penstock_lag_us(p_claimed timestamptz, p_settled timestamptz) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_settled - p_claimed BETWEEN interval '-35 minutes' AND interval '35 minutes'
        THEN (extract(epoch FROM p_settled - p_claimed) * 1000000)::integer END
$$;
