-- Whether the month of an instant is closed.
CREATE OR REPLACE FUNCTION penstock_is_closed(p_at timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM billing_periods WHERE status = 'closed' AND p_at >= starts_at AND p_at < ends_at)
$$;

-- The row of a closed month never changes.
CREATE OR REPLACE FUNCTION penstock_keep_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = 'closed' THEN
        RAISE EXCEPTION 'the period % is closed and never changes', to_char(OLD.month, 'YYYY-MM')
            USING ERRCODE = 'PS001';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE OR REPLACE TRIGGER billing_periods_keep_closed BEFORE UPDATE OR DELETE ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION penstock_keep_closed();
