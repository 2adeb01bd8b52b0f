-- The transfers of a set of ids. OFFSET 0 makes the planner read each range by the primary key: of a join with the
-- ranges it expects a ninth of the ledger, and reads all of it.
CREATE OR REPLACE FUNCTION penstock_transfers(p_ids int8multirange) RETURNS SETOF ledger_transfers
LANGUAGE sql STABLE AS $$
    SELECT t.* FROM unnest(p_ids) r,
        LATERAL (SELECT * FROM ledger_transfers l WHERE l.id >= lower(r) AND l.id < upper(r) OFFSET 0) t
$$;

-- The links of the hash chain after p_seq, whose hash is p_hash, recomputed from their transfers: one row for the last
-- sound link at which p_limit transfers or the link p_until are reached, or the chain ends. problem: why the link after
-- it is not sound, else null. transfers: how many the sound links cover; last_id: their largest id.
CREATE OR REPLACE FUNCTION penstock_verify_links(p_seq bigint, p_hash bytea, p_until bigint, p_limit bigint,
    OUT seq bigint, OUT hash bytea, OUT transfers bigint, OUT last_id bigint, OUT problem text)
LANGUAGE plpgsql STABLE SET jit = off AS $$
#variable_conflict use_column
DECLARE
    l ledger_seals;
    v_size bigint;
    v_found bigint;
    v_last bigint;
    v_text bytea;
    v_hash bytea;
BEGIN
    seq := p_seq; hash := p_hash; transfers := 0; last_id := 0;
    FOR l IN SELECT * FROM ledger_seals s WHERE s.seq > p_seq AND s.seq <= p_until ORDER BY s.seq LOOP
        EXIT WHEN transfers >= p_limit;
        IF l.seq <> seq + 1 THEN
            problem := format('the chain has a gap at %s', seq + 1);
            RETURN;
        END IF;
        IF l.audit_seq IS NOT NULL THEN
            v_size := 0; v_found := 0; v_last := 0;
            SELECT c.hash INTO v_text FROM audit_chain c WHERE c.seq = l.audit_seq;
            v_hash := penstock_audit_link(hash, l.seq, l.audit_seq, v_text);
        ELSIF l.transfers IS NULL THEN
            SELECT 1, count(*), max(t.id), convert_to(max(concat_ws('|', l.seq, t.id,
                    (extract(epoch FROM t.at) * 1000000)::bigint, t.tenant_id, t.kind, t.debit_account,
                    t.credit_account, t.amount, t.source_id,
                    CASE WHEN t.effective_at <> t.at THEN (extract(epoch FROM t.effective_at) * 1000000)::bigint END)),
                    'UTF8')
                INTO v_size, v_found, v_last, v_text FROM ledger_transfers t WHERE t.id = l.transfer_id;
            v_hash := sha256(hash || v_text);
        ELSE
            SELECT sum(upper(r) - lower(r)) INTO v_size FROM unnest(l.transfers) r;
            SELECT count(*), max(t.id),
                    sha256(convert_to(string_agg(penstock_sealed_text(t), E'\n' ORDER BY t.id), 'UTF8'))
                INTO v_found, v_last, v_text
                FROM penstock_transfers(l.transfers) t;
            v_hash := sha256(hash || convert_to(format('%s|%s|', l.seq, v_found), 'UTF8') || v_text);
        END IF;
        IF v_found <> v_size OR v_hash IS DISTINCT FROM l.hash THEN
            problem := format('the seal of %s does not verify (link %s): one of them or an earlier one was '
                'changed, added or removed', CASE WHEN l.audit_seq IS NULL THEN v_size || ' transfers'
                ELSE 'the rows of the audit log up to number ' || l.audit_seq END, l.seq);
            RETURN;
        END IF;
        seq := l.seq; hash := l.hash; transfers := transfers + v_found; last_id := greatest(last_id, v_last);
    END LOOP;
END $$;

-- The transfers of the links after p_after, up to p_until.
CREATE OR REPLACE FUNCTION penstock_linked(p_after bigint, p_until bigint) RETURNS SETOF ledger_transfers
LANGUAGE sql STABLE AS $$
    SELECT t.* FROM ledger_seals s,
        penstock_transfers(coalesce(s.transfers, int8multirange(int8range(s.transfer_id, s.transfer_id, '[]')))) t
    WHERE s.seq > p_after AND s.seq <= p_until
$$;

-- Move the checkpoint of the ledger over up to about p_limit transfers of sound links, and add them to the monthly
-- sums; returns how many. A checkpoint is kept for every p_slice transfers. It stops before a link that is not sound,
-- and does not move over a transfer between two tenants or one that differs from its usage row. The second OFFSET 0 keeps
-- the planner from asking penstock_usage_differs about every transfer instead of those that differ at first sight.
CREATE OR REPLACE FUNCTION penstock_checkpoint(p_limit bigint, p_slice bigint) RETURNS bigint
LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    v_last ledger_checkpoints;
    v_before bigint;
    v_after bigint;
    v record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('penstock_checkpoint')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO v_last FROM ledger_checkpoints ORDER BY seq DESC LIMIT 1;
    v_after := coalesce(v_last.seq, 0);
    SELECT * INTO v FROM penstock_verify_links(v_after, coalesce(v_last.hash, '\x'), 9223372036854775807, p_limit);
    IF v.transfers = 0 OR EXISTS (
            SELECT 1 FROM (
                SELECT DISTINCT l.tenant_id, l.debit_account, l.credit_account FROM penstock_linked(v_after, v.seq) l) t
            JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
            WHERE d.tenant_id <> t.tenant_id OR c.tenant_id <> t.tenant_id)
        OR EXISTS (
            SELECT 1 FROM (
                SELECT n.source_id FROM (
                    SELECT t.source_id, sum(t.amount) AS amount FROM penstock_linked(v_after, v.seq) t
                    WHERE t.kind IN ('usage', 'uncollectible') GROUP BY t.source_id) n
                LEFT JOIN LATERAL (SELECT r.cost FROM usage_rows r WHERE r.request_id = n.source_id OFFSET 0) u ON true
                WHERE u.cost IS DISTINCT FROM n.amount OFFSET 0) f
            WHERE penstock_usage_differs(f.source_id)) THEN
        RETURN 0;
    END IF;
    INSERT INTO ledger_months AS m (month, account, kind, debit, credit)
    SELECT g.month, e.account, g.kind, sum(e.debit), sum(e.credit) FROM (
        SELECT (date_trunc('month', t.effective_at, 'UTC') AT TIME ZONE 'UTC')::date AS month, t.kind, t.debit_account,
            t.credit_account, sum(t.amount) AS amount
        FROM penstock_linked(v_after, v.seq) t GROUP BY 1, 2, 3, 4) g,
        LATERAL (VALUES (g.debit_account, g.amount, 0), (g.credit_account, 0, g.amount)) AS e (account, debit, credit)
    GROUP BY g.month, e.account, g.kind
    ON CONFLICT (month, account, kind) DO UPDATE SET debit = m.debit + excluded.debit,
        credit = m.credit + excluded.credit;
    SELECT max(transfers) INTO v_before FROM ledger_checkpoints WHERE seq < v_last.seq;
    IF v_last.transfers - coalesce(v_before, 0) < p_slice THEN
        UPDATE ledger_checkpoints SET seq = v.seq, hash = v.hash, transfers = transfers + v.transfers,
            last_id = greatest(last_id, v.last_id) WHERE seq = v_last.seq;
    ELSE
        INSERT INTO ledger_checkpoints (seq, hash, transfers, last_id) VALUES (v.seq, v.hash,
            coalesce(v_last.transfers, 0) + v.transfers, greatest(v_last.last_id, v.last_id));
    END IF;
    RETURN v.transfers;
END $$;

-- Whether the transfers of a request's usage differ from its row. Both may lie in links of their own: all are read.
-- Of a month whose rows were dropped after its archive, nothing can be compared.
CREATE OR REPLACE FUNCTION penstock_usage_differs(p_request uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(u.cost, 0) <> t.amount AND NOT (u.cost IS NULL AND EXISTS (
        SELECT 1 FROM usage_archives a WHERE a.dropped_at IS NOT NULL
            AND a.month = (date_trunc('month', t.effective_at, 'UTC') AT TIME ZONE 'UTC')::date))
    FROM (
        SELECT sum(l.amount) AS amount, max(l.effective_at) AS effective_at FROM ledger_transfers l
        WHERE l.source_id = p_request AND l.kind IN ('usage', 'uncollectible')
            AND NOT EXISTS (SELECT 1 FROM adjustments a WHERE a.id = l.source_id)) t
    LEFT JOIN usage_rows u ON u.request_id = p_request
    WHERE t.amount IS NOT NULL
$$;

-- Recompute the links between a checkpoint and the one before it again, those that were verified longest ago; returns
-- their transfers, and stores a problem that it finds. What is behind a checkpoint is so verified in turns.
CREATE OR REPLACE FUNCTION penstock_verify_slice() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_slice ledger_checkpoints;
    v_before ledger_checkpoints;
    v record;
BEGIN
    SELECT * INTO v_slice FROM ledger_checkpoints ORDER BY verified_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF v_slice.seq IS NULL THEN
        RETURN 0;
    END IF;
    SELECT * INTO v_before FROM ledger_checkpoints WHERE seq < v_slice.seq ORDER BY seq DESC LIMIT 1;
    SELECT * INTO v FROM penstock_verify_links(coalesce(v_before.seq, 0), coalesce(v_before.hash, '\x'), v_slice.seq,
        9223372036854775807);
    UPDATE ledger_checkpoints SET verified_at = clock_timestamp(), problem = CASE
            WHEN v.problem IS NOT NULL THEN v.problem
            WHEN v.hash <> v_slice.hash THEN format('link %s is not the one that was verified', v_slice.seq) END
        WHERE seq = v_slice.seq;
    RETURN v.transfers;
END $$;

-- The transfers that no checkpoint covers: those of later links, and those that wait for the sealer.
CREATE OR REPLACE VIEW ledger_fresh WITH (security_invoker = true) AS
    SELECT t.id, t.at, t.tenant_id, t.kind, t.debit_account, t.credit_account, t.amount, t.source_id, t.effective_at
    FROM (
        SELECT unnest(coalesce(s.transfers, int8multirange(int8range(s.transfer_id, s.transfer_id, '[]')))) AS ids
        FROM ledger_seals s WHERE s.seq > (SELECT coalesce(max(c.seq), 0) FROM ledger_checkpoints c)
        UNION ALL SELECT unnest(w.transfers) FROM ledger_unsealed w) f,
        LATERAL (SELECT * FROM ledger_transfers r WHERE r.id >= lower(f.ids) AND r.id < upper(f.ids) OFFSET 0) t;
GRANT SELECT ON ledger_fresh TO penstock_system;

-- Debits and credits by month, account and kind: the verified sums, and the transfers that no checkpoint covers.
CREATE OR REPLACE FUNCTION penstock_ledger_sums()
RETURNS TABLE (month date, account bigint, kind text, debit numeric, credit numeric) LANGUAGE sql STABLE AS $$
    SELECT m.month, m.account, m.kind, m.debit, m.credit FROM ledger_months m
    UNION ALL
    SELECT (date_trunc('month', f.effective_at, 'UTC') AT TIME ZONE 'UTC')::date, f.debit_account, f.kind, f.amount, 0
    FROM ledger_fresh f
    UNION ALL
    SELECT (date_trunc('month', f.effective_at, 'UTC') AT TIME ZONE 'UTC')::date, f.credit_account, f.kind, 0, f.amount
    FROM ledger_fresh f
$$;
