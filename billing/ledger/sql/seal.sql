-- Queue new transfers for the sealer, one row per statement. A transfer dated into a closed month is an error
-- (PS001).
CREATE OR REPLACE FUNCTION penstock_queue_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM billing_periods p WHERE p.status = 'closed' AND EXISTS (
            SELECT 1 FROM fresh f WHERE f.effective_at >= p.starts_at AND f.effective_at < p.ends_at)) THEN
        RAISE EXCEPTION 'a transfer belongs to a closed period: date it now, as an adjustment' USING ERRCODE = 'PS001';
    END IF;
    INSERT INTO ledger_unsealed (transfers)
        SELECT range_agg(int8range(id, id, '[]')) FROM fresh HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER ledger_transfers_queue_seal AFTER INSERT ON ledger_transfers
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION penstock_queue_seal();

-- The text of a transfer that its seal covers. The verification of the ledger builds the same text in Python.
CREATE OR REPLACE FUNCTION penstock_sealed_text(t ledger_transfers) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('|', t.id, (extract(epoch FROM t.at) * 1000000)::bigint,
        (extract(epoch FROM t.effective_at) * 1000000)::bigint, t.tenant_id, t.kind, t.debit_account,
        t.credit_account, t.amount, t.source_id)
$$;

-- Append about p_limit queued transfers to the hash chain as one link; returns how many. One sealer works at a time,
-- the others return 0.
--   hash(n) = sha256(hash(n-1) || "n|count|" || sha256(their texts in the order of their ids, a line each))
CREATE OR REPLACE FUNCTION penstock_seal(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
    v_hash bytea;
    v_ids int8multirange;
    v_count integer;
    v_digest bytea;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('penstock_seal')) THEN
        RETURN 0;
    END IF;
    WITH waiting AS (
        SELECT w.id, sum(s.size) OVER (ORDER BY w.id) - s.size AS before
        FROM (SELECT * FROM ledger_unsealed ORDER BY id LIMIT p_limit) w,
            LATERAL (SELECT sum(upper(r) - lower(r)) AS size FROM unnest(w.transfers) r) s),
    taken AS (
        DELETE FROM ledger_unsealed WHERE id IN (SELECT id FROM waiting WHERE before < p_limit) RETURNING transfers)
    SELECT range_agg(transfers) INTO v_ids FROM taken;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    SELECT count(*), sha256(convert_to(string_agg(penstock_sealed_text(t), E'\n' ORDER BY t.id), 'UTF8'))
    INTO v_count, v_digest
    FROM penstock_transfers(v_ids) t;
    SELECT seq, hash INTO v_seq, v_hash FROM ledger_seals ORDER BY seq DESC LIMIT 1;
    v_seq := coalesce(v_seq, 0) + 1;
    INSERT INTO ledger_seals (seq, transfers, hash) VALUES (v_seq, v_ids,
        sha256(coalesce(v_hash, '\x') || convert_to(format('%s|%s|', v_seq, v_count), 'UTF8') || v_digest));
    RETURN v_count;
END $$;
