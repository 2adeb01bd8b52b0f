-- Queue new rows of the audit log for the sealer.
CREATE OR REPLACE FUNCTION penstock_queue_audit_seal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit_unsealed VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER audit_log_queue_seal AFTER INSERT ON audit_log
    FOR EACH ROW EXECUTE FUNCTION penstock_queue_audit_seal();
CREATE OR REPLACE TRIGGER audit_chain_append_only BEFORE UPDATE OR DELETE ON audit_chain
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();

-- What the seal of a row of the audit log covers. A jsonb array has one text, whatever its values hold.
CREATE OR REPLACE FUNCTION penstock_audit_text(p_seq bigint, a audit_log) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(p_seq, a.id, (extract(epoch FROM a.at) * 1000000)::bigint, a.actor_kind, a.actor_id,
        a.actor_label, a.action, a.tenant_id, a.object_kind, a.object_id, a.reason, a.before, a.after)::text
$$;

-- The hash of the ledger's link p_seq over the rows of the audit log up to p_audit_seq, whose hash is p_audit_hash.
CREATE OR REPLACE FUNCTION penstock_audit_link(p_hash bytea, p_seq bigint, p_audit_seq bigint, p_audit_hash bytea)
RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(p_hash || convert_to(format('%s|audit|%s|', p_seq, p_audit_seq), 'UTF8') || p_audit_hash)
$$;

-- Give up to p_limit waiting rows of the audit log their numbers and hashes, and append one link over them to the
-- ledger's chain; returns how many. It takes turns with the sealer of transfers, which appends to the same chain.
--   hash(n) = sha256(hash(n-1) || text of row n)
CREATE OR REPLACE FUNCTION penstock_seal_audit(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
    v_hash bytea;
    v_link bigint;
    v_link_hash bytea;
    v_count integer := 0;
    v_row audit_log;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('penstock_seal')) THEN
        RETURN 0;
    END IF;
    SELECT c.seq, c.hash INTO v_seq, v_hash FROM audit_chain c ORDER BY c.seq DESC LIMIT 1;
    v_seq := coalesce(v_seq, 0);
    v_hash := coalesce(v_hash, '\x');
    -- Ids grow with time (UUIDv7): by them a batch is read from the primary keys, however many rows wait.
    FOR v_row IN SELECT a.* FROM (SELECT entry_id FROM audit_unsealed ORDER BY entry_id LIMIT p_limit) u
            JOIN audit_log a ON a.id = u.entry_id ORDER BY a.id LOOP
        v_seq := v_seq + 1;
        v_hash := sha256(v_hash || convert_to(penstock_audit_text(v_seq, v_row), 'UTF8'));
        INSERT INTO audit_chain (seq, entry_id, hash) VALUES (v_seq, v_row.id, v_hash);
        DELETE FROM audit_unsealed WHERE entry_id = v_row.id;
        v_count := v_count + 1;
    END LOOP;
    IF v_count = 0 THEN
        RETURN 0;
    END IF;
    SELECT s.seq, s.hash INTO v_link, v_link_hash FROM ledger_seals s ORDER BY s.seq DESC LIMIT 1;
    v_link := coalesce(v_link, 0) + 1;
    INSERT INTO ledger_seals (seq, transfers, audit_seq, hash) VALUES (v_link, '{}', v_seq,
        penstock_audit_link(coalesce(v_link_hash, '\x'), v_link, v_seq, v_hash));
    RETURN v_count;
END $$;
