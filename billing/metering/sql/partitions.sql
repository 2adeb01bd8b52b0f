-- Make the partitions of this month and of p_ahead more; returns how many were new. It runs as the owner, since only
-- an owner may attach a partition.
CREATE OR REPLACE FUNCTION penstock_make_partitions(p_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_made integer := 0;
    v_parent text;
    v_month timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_partitions'));
    FOREACH v_parent IN ARRAY ARRAY['holds', 'usage_rows'] LOOP
        FOR i IN 0..p_ahead LOOP
            v_month := (date_trunc('month', now() AT TIME ZONE 'UTC') + i * interval '1 month') AT TIME ZONE 'UTC';
            IF penstock_make_partition(v_parent, v_month) THEN
                v_made := v_made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_made;
END $$;
REVOKE ALL ON FUNCTION penstock_make_partitions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_make_partitions TO penstock_system;

-- Make one month's partition of holds or usage_rows; false when it exists. Rows that clock skew sent to the DEFAULT
-- partition move into it.
CREATE OR REPLACE FUNCTION penstock_make_partition(p_parent text, p_month timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_name text := format('%s_%s', p_parent, to_char(p_month AT TIME ZONE 'UTC', 'YYYY_MM'));
    v_low uuid := penstock_uuid_floor(p_month);
    v_high uuid := penstock_uuid_floor((p_month AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    IF to_regclass(format('%I', v_name)) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', v_name, p_parent);
    EXECUTE format('WITH moved AS (DELETE FROM %I WHERE request_id >= %L AND request_id < %L RETURNING *) '
        'INSERT INTO %I SELECT * FROM moved', p_parent || '_default', v_low, v_high, v_name);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
        p_parent, v_name, v_low, v_high);
    RETURN true;
END $$;

-- Take the ACCESS EXCLUSIVE lock on a table; false when it was not free in any of 20 attempts. An attempt waits 100 ms at
-- most, because everything that comes later waits behind it.
CREATE OR REPLACE FUNCTION penstock_lock_briefly(p_table text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_timeout text := current_setting('lock_timeout');
BEGIN
    FOR attempt IN 1..20 LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '100ms', true);
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', p_table);
            PERFORM set_config('lock_timeout', v_timeout, true);
            RETURN true;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    RETURN false;
END $$;

-- Drop the partitions of holds whose month ended more than p_keep ago and that have no open hold, and delete up to p_limit
-- closed holds of that age from the default partition; returns how many partitions and rows. A settlement without a
-- hold row takes free money, as after a hold that expired. It runs as the owner, since only an owner may drop.
CREATE OR REPLACE FUNCTION penstock_prune_holds(p_keep interval, p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_before timestamptz := now() - p_keep;
    v_name text;
    v_open boolean;
    v_pruned integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_partitions'));
    WITH old AS (
        SELECT request_id FROM holds_default WHERE state <> 'open' AND closed_at < v_before LIMIT p_limit)
    DELETE FROM holds_default h USING old WHERE h.request_id = old.request_id;
    GET DIAGNOSTICS v_pruned = ROW_COUNT;
    FOR v_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'holds'::regclass AND c.relname ~ '^holds_[0-9]{4}_[0-9]{2}$'
            AND (to_date(right(c.relname, 7), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' < v_before
        ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE state = ''open'')', v_name) INTO v_open;
        CONTINUE WHEN v_open;
        EXIT WHEN NOT penstock_lock_briefly('holds');
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE state = ''open'')', v_name) INTO v_open;
        EXIT WHEN v_open;  -- nothing more under the lock
        EXECUTE format('ALTER TABLE holds DETACH PARTITION %I', v_name);
        EXECUTE format('DROP TABLE %I', v_name);
        v_pruned := v_pruned + 1;
        EXIT;
    END LOOP;
    RETURN v_pruned;
END $$;
REVOKE ALL ON FUNCTION penstock_prune_holds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_prune_holds TO penstock_system;

-- The smallest UUIDv7 of an instant: 48 bits of Unix milliseconds, then zeros.
CREATE OR REPLACE FUNCTION penstock_uuid_floor(p_at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex((extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
