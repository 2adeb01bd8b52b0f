-- Drop the partition of an archived month; returns null, or why it was not dropped. The caller has verified the archive's
-- file. Its rows that ended in another month move to the default partition. They are looked for before the lock on
-- usage_rows is taken; under it, only those that were settled since then are. Such a row is dated to its settlement,
-- at most 48 h back, and the BRIN index on ended_at finds it without a scan.
CREATE OR REPLACE FUNCTION penstock_drop_usage(p_month date) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_start timestamptz := p_month::timestamp AT TIME ZONE 'UTC';
    v_end timestamptz := (p_month + interval '1 month') AT TIME ZONE 'UTC';
    v_name text := format('usage_rows_%s', to_char(p_month, 'YYYY_MM'));
    v_archive usage_archives;
    v_rows bigint;
    v_cost numeric;
    v_began timestamptz := clock_timestamp() - interval '49 hours';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_partitions'));
    SELECT * INTO v_archive FROM usage_archives WHERE month = p_month FOR UPDATE;
    IF v_archive.month IS NULL THEN
        RETURN 'the month is not archived';
    ELSIF v_archive.dropped_at IS NOT NULL THEN
        RETURN NULL;
    ELSIF NOT penstock_is_closed(v_start) THEN
        RETURN 'the month is open';
    ELSIF to_regclass(v_name) IS NULL THEN
        RETURN 'there is no partition ' || v_name;
    ELSIF EXISTS (SELECT 1 FROM dirty_hours WHERE hour >= v_start AND hour < v_end) THEN
        RETURN 'hours of it are not rolled up yet';
    END IF;
    SELECT count(*), coalesce(sum(cost), 0) INTO v_rows, v_cost FROM usage_rows
        WHERE ended_at >= v_start AND ended_at < v_end;
    IF v_rows <> v_archive.rows OR v_cost <> v_archive.cost THEN
        RETURN format('it has %s rows, the archive %s', v_rows, v_archive.rows);
    END IF;
    SELECT coalesce(sum(requests), 0), coalesce(sum(cost), 0) INTO v_rows, v_cost FROM usage_hours
        WHERE hour >= v_start AND hour < v_end;
    IF v_rows <> v_archive.rows OR v_cost <> v_archive.cost THEN
        RETURN format('its rollups count %s requests, the archive %s rows', v_rows, v_archive.rows);
    END IF;
    SELECT coalesce(sum(amount), 0) INTO v_cost FROM ledger_transfers
        WHERE kind IN ('usage', 'uncollectible') AND effective_at >= v_start AND effective_at < v_end
            AND NOT EXISTS (SELECT 1 FROM adjustments a WHERE a.id = source_id);
    IF v_cost <> v_archive.cost THEN
        RETURN format('the ledger booked %s picodollars of usage in it, the archive holds %s', v_cost, v_archive.cost);
    END IF;
    CREATE TEMPORARY TABLE strays (LIKE usage_rows) ON COMMIT DROP;
    EXECUTE format('INSERT INTO pg_temp.strays SELECT * FROM %I WHERE ended_at < %L OR ended_at >= %L',
        v_name, v_start, v_end);
    CREATE UNIQUE INDEX ON pg_temp.strays (request_id);
    -- End users and tags are customers' data, of which the archive has none: they go with the rows.
    DELETE FROM usage_labels l WHERE l.ended_at >= v_start AND l.ended_at < v_end;
    -- A value of a month belongs to rows that were settled in it, which are dated at most 48 h back.
    DELETE FROM label_values v WHERE v.month <= p_month + interval '1 month'
        AND v.month < (date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC'))::date
        AND NOT EXISTS (SELECT 1 FROM usage_labels l WHERE l.tenant_id = v.tenant_id
            AND l.ended_at >= (v.month::timestamp AT TIME ZONE 'UTC') - interval '49 hours'
            AND l.ended_at < (v.month + interval '1 month') AT TIME ZONE 'UTC');
    IF NOT penstock_lock_briefly('usage_rows') THEN
        RETURN 'other transactions read usage now: try again';
    END IF;
    EXECUTE format('ALTER TABLE usage_rows DETACH PARTITION %I', v_name);
    EXECUTE format('INSERT INTO pg_temp.strays SELECT * FROM %I WHERE ended_at >= greatest(%L, %L::timestamptz) '
        'ON CONFLICT DO NOTHING', v_name, v_end, v_began);
    INSERT INTO usage_rows SELECT * FROM pg_temp.strays;
    EXECUTE format('DROP TABLE %I', v_name);
    UPDATE usage_archives SET dropped_at = clock_timestamp() WHERE month = p_month;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION penstock_drop_usage FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_drop_usage TO penstock_system;
