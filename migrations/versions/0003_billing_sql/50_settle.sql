-- Settle ended requests (DESIGN §5), idempotent by request id. p_batch is a JSON array of flat records
-- (billing/metering/settlement.py). Result per row: settled | duplicate | parked. A record that cannot be billed is parked in
-- settle_errors with the reason and never stops the others. Holds are closed first, accounts locked last in id order.
CREATE FUNCTION penstock_settle(p_batch jsonb) RETURNS TABLE (request_id uuid, result text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_all uuid[];
    v_parked uuid[];
    v_new uuid[];
    v_tenants uuid[];
    v_costs numeric[];
    v_hours timestamptz[];
    v_held numeric[];
    a billing_accounts;
    s record;
    v_free numeric;
    v_pay numeric;
    v_charged numeric;
    v_spent numeric;
    v_released numeric;
    v_holds integer;
    v_month date;
BEGIN
    WITH given AS (
        SELECT DISTINCT ON (x.request_id) x.*, e.raw FROM jsonb_array_elements(p_batch) AS e (raw),
            jsonb_to_record(e.raw) AS x (
                request_id uuid, tenant_id uuid, project_id uuid, key_id uuid, model text, tier text, region text,
                replica_id text, boot_id text, admitted_at timestamptz, outcome usage_outcome, free boolean,
                attempts smallint, stream boolean, simulated boolean, price_version bigint,
                list_price_version bigint, input_tokens bigint, cached_input_tokens bigint, output_tokens bigint,
                reasoning_tokens bigint, unbilled_input_tokens bigint, unbilled_output_tokens bigint,
                queue_us bigint, ttft_us bigint, duration_us bigint)
        ORDER BY x.request_id),
    checked AS (
        SELECT g.*,
            CASE
                WHEN a.tenant_id IS NULL THEN 'tenant ' || g.tenant_id || ' has no billing account'
                WHEN p.id IS NULL OR p.model <> g.model OR p.tenant_id <> g.tenant_id
                    THEN 'price version ' || g.price_version || ' is not one of model ' || g.model || ' for this tenant'
                WHEN l.id IS NULL THEN 'list price version ' || g.list_price_version || ' does not exist'
                WHEN least(g.input_tokens, g.cached_input_tokens, g.output_tokens, g.reasoning_tokens,
                        g.unbilled_input_tokens, g.unbilled_output_tokens, g.queue_us, g.ttft_us,
                        g.duration_us) < 0 THEN 'a count or duration is negative'
                WHEN g.cached_input_tokens > g.input_tokens THEN 'more cached than input tokens'
                WHEN g.reasoning_tokens > g.output_tokens THEN 'more reasoning than output tokens'
            END AS problem,
            CASE WHEN g.free THEN 0 ELSE
                (g.input_tokens - g.cached_input_tokens)::numeric * p.input
                + g.cached_input_tokens::numeric * p.cached_input
                + (g.output_tokens - g.reasoning_tokens)::numeric * p.output
                + g.reasoning_tokens::numeric * p.reasoning END AS cost,
            CASE WHEN g.free THEN 0 ELSE
                (g.input_tokens - g.cached_input_tokens)::numeric * l.input
                + g.cached_input_tokens::numeric * l.cached_input
                + (g.output_tokens - g.reasoning_tokens)::numeric * l.output
                + g.reasoning_tokens::numeric * l.reasoning END AS list_cost
        FROM given g
        LEFT JOIN billing_accounts a ON a.tenant_id = g.tenant_id
        LEFT JOIN price_versions p ON p.id = g.price_version
        LEFT JOIN price_versions l ON l.id = g.list_price_version),
    parked AS (
        INSERT INTO settle_errors (request_id, reason, record)
        SELECT c.request_id, c.problem, convert_to(c.raw::text, 'UTF8') FROM checked c WHERE c.problem IS NOT NULL
        ON CONFLICT DO NOTHING),
    made AS (
        INSERT INTO usage (request_id, tenant_id, project_id, key_id, model, tier, region, replica_id, boot_id,
            admitted_at, ended_at, settled_at, outcome, attempts, stream, simulated, price_version,
            list_price_version, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens,
            unbilled_input_tokens, unbilled_output_tokens, cost, list_cost, queue_us, ttft_us, duration_us)
        SELECT c.request_id, c.tenant_id, c.project_id, c.key_id, c.model, c.tier, c.region, c.replica_id, c.boot_id,
            c.admitted_at,
            -- The end by the database's clock: admission plus the measured duration, never in the future; a record
            -- that arrives after the late window of 48 h belongs to the hour in which it arrives.
            CASE WHEN c.admitted_at + least(c.duration_us, 604800000000) * interval '1 microsecond'
                    BETWEEN v_now - interval '48 hours' AND v_now
                THEN c.admitted_at + c.duration_us * interval '1 microsecond' ELSE v_now END,
            v_now, c.outcome, c.attempts, c.stream, c.simulated, c.price_version,
            c.list_price_version, c.input_tokens, c.cached_input_tokens, c.output_tokens, c.reasoning_tokens,
            c.unbilled_input_tokens, c.unbilled_output_tokens, c.cost, c.list_cost, c.queue_us, c.ttft_us,
            c.duration_us
        FROM checked c WHERE c.problem IS NULL ORDER BY c.request_id
        ON CONFLICT DO NOTHING
        RETURNING usage.request_id, usage.tenant_id, usage.cost, usage.ended_at)
    SELECT (SELECT array_agg(c.request_id) FROM checked c),
        (SELECT array_agg(c.request_id) FROM checked c WHERE c.problem IS NOT NULL),
        (SELECT array_agg(m.request_id ORDER BY m.request_id) FROM made m),
        (SELECT array_agg(m.tenant_id ORDER BY m.request_id) FROM made m),
        (SELECT array_agg(m.cost ORDER BY m.request_id) FROM made m),
        (SELECT array_agg(DISTINCT date_trunc('hour', m.ended_at, 'UTC')) FROM made m)
    INTO v_all, v_parked, v_new, v_tenants, v_costs, v_hours;

    IF v_new IS NOT NULL THEN
        INSERT INTO usage_touched (hour) SELECT unnest(v_hours);
        WITH locked AS (
            SELECT h.request_id FROM holds h WHERE h.request_id = ANY (v_new) AND h.state = 'open'
            ORDER BY h.request_id FOR UPDATE),
        closed AS (
            UPDATE holds h SET state = 'settled', closed_at = v_now FROM locked WHERE h.request_id = locked.request_id
            RETURNING h.request_id, h.amount)
        SELECT array_agg(closed.amount ORDER BY n.request) INTO v_held
        FROM unnest(v_new) AS n (request) LEFT JOIN closed ON closed.request_id = n.request;

        -- What its hold covers, or an invoice will: booked before any account is locked.
        INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id)
        SELECT n.tenant, 'usage',
            penstock_ledger_account(n.tenant, CASE b.mode WHEN 'prepaid' THEN 'credit' ELSE 'receivable' END),
            penstock_ledger_account(n.tenant, 'revenue'), n.cost, n.request
        FROM unnest(v_new, v_tenants, v_costs, v_held) AS n (request, tenant, cost, held)
        JOIN billing_accounts b ON b.tenant_id = n.tenant
        WHERE n.cost > 0 AND (b.mode = 'postpaid' OR n.cost <= coalesce(n.held, 0));

        v_month := date_trunc('month', v_now AT TIME ZONE 'UTC')::date;
        FOR a IN SELECT b.* FROM billing_accounts b WHERE b.tenant_id = ANY (v_tenants)
            ORDER BY b.tenant_id FOR UPDATE
        LOOP
            SELECT coalesce(sum(n.cost), 0), coalesce(sum(n.held), 0), count(n.held),
                coalesce(sum(n.cost) FILTER (WHERE n.cost <= coalesce(n.held, 0)), 0),
                coalesce(sum(n.held - n.cost) FILTER (WHERE n.cost <= n.held), 0)
            INTO v_spent, v_released, v_holds, v_charged, v_free
            FROM unnest(v_tenants, v_costs, v_held) AS n (tenant, cost, held) WHERE n.tenant = a.tenant_id;
            IF a.mode = 'postpaid' THEN
                UPDATE billing_accounts b SET owed = b.owed + v_spent, held = b.held - v_released,
                    open_holds = b.open_holds - v_holds, month = greatest(b.month, v_month),
                    spent_month = CASE WHEN b.month >= v_month THEN b.spent_month ELSE 0 END + v_spent
                WHERE b.tenant_id = a.tenant_id;
                CONTINUE;
            END IF;
            -- Holds that are gone or too small: charge what is available, the rest is uncollectible.
            v_free := v_free + a.balance - a.held;
            FOR s IN SELECT n.request, n.cost, coalesce(n.held, 0) AS held
                FROM unnest(v_new, v_tenants, v_costs, v_held) AS n (request, tenant, cost, held)
                WHERE n.tenant = a.tenant_id AND n.cost > coalesce(n.held, 0) ORDER BY n.request
            LOOP
                v_pay := least(s.cost, s.held + v_free);
                v_free := v_free - (v_pay - s.held);
                v_charged := v_charged + v_pay;
                INSERT INTO ledger_transfers (tenant_id, kind, debit_account, credit_account, amount, source_id)
                SELECT a.tenant_id, t.kind, penstock_ledger_account(a.tenant_id, t.code),
                    penstock_ledger_account(a.tenant_id, 'revenue'), t.amount, s.request
                FROM (VALUES ('usage', 'credit', v_pay), ('uncollectible', 'uncollectible', s.cost - v_pay))
                    AS t (kind, code, amount)
                WHERE t.amount > 0;
            END LOOP;
            UPDATE billing_accounts b SET balance = b.balance - v_charged, held = b.held - v_released,
                open_holds = b.open_holds - v_holds, month = greatest(b.month, v_month),
                spent_month = CASE WHEN b.month >= v_month THEN b.spent_month ELSE 0 END + v_spent
            WHERE b.tenant_id = a.tenant_id;
        END LOOP;
    END IF;

    RETURN QUERY SELECT t.id, CASE WHEN t.id = ANY (v_parked) THEN 'parked'
            WHEN t.id = ANY (v_new) THEN 'settled' ELSE 'duplicate' END
        FROM unnest(v_all) AS t (id);
END $$;
-- Set a record aside that not even the batch call could read.
CREATE FUNCTION penstock_park(p_request uuid, p_reason text, p_record bytea) RETURNS void LANGUAGE sql AS $$
    INSERT INTO settle_errors (request_id, reason, record) VALUES (p_request, p_reason, p_record)
    ON CONFLICT DO NOTHING
$$;
