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

-- The smallest UUIDv7 of an instant: 48 bits of Unix milliseconds, then zeros.
CREATE OR REPLACE FUNCTION penstock_uuid_floor(p_at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT (lpad(to_hex((extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
