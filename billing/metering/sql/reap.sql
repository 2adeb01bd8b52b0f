-- Expire up to p_limit holds that were not renewed for p_ttl and have no usage row; returns how many. Those of an
-- account that another transaction has locked are left for the next call. After
-- PostgreSQL was away (a new postmaster, or no call for p_gap) nothing expires for one TTL, so that live processes
-- can renew first.
CREATE OR REPLACE FUNCTION penstock_reap(p_ttl interval, p_gap interval, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_state reaper_state;
    v_lapsed uuid[];
    v_left uuid[];
BEGIN
    INSERT INTO reaper_state (id, seen_at, postmaster_start, paused_until)
        VALUES (1, v_now, pg_postmaster_start_time(), v_now) ON CONFLICT DO NOTHING;
    SELECT * INTO v_state FROM reaper_state WHERE id = 1 FOR UPDATE;
    IF v_state.postmaster_start <> pg_postmaster_start_time() OR v_state.seen_at < v_now - p_gap THEN
        v_state.paused_until := v_now + p_ttl;
    END IF;
    UPDATE reaper_state SET seen_at = v_now, postmaster_start = pg_postmaster_start_time(),
        paused_until = v_state.paused_until WHERE id = 1;
    IF v_now < v_state.paused_until THEN
        RETURN 0;
    END IF;
    SELECT array_agg(request_id) INTO v_lapsed FROM (
        SELECT h.request_id FROM holds h
        WHERE h.state = 'open' AND h.renewed_at < v_now - p_ttl
            AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.request_id = h.request_id)
        ORDER BY h.request_id LIMIT p_limit FOR UPDATE OF h SKIP LOCKED) lapsed;
    v_left := penstock_release(coalesce(v_lapsed, '{}'), 'expired');
    RETURN coalesce(cardinality(v_lapsed), 0) - cardinality(v_left);
END $$;
