-- Accounting months (UTC). A row appears when a month is first touched by its close; none = open.
CREATE TABLE billing_periods (
    month date NOT NULL,
    starts_at timestamptz NOT NULL GENERATED ALWAYS AS (month::timestamp AT TIME ZONE 'UTC') STORED,
    ends_at timestamptz NOT NULL GENERATED ALWAYS AS ((month + interval '1 month') AT TIME ZONE 'UTC') STORED,
    status text NOT NULL DEFAULT 'open',
    closed_at timestamptz,
    closed_by text,
    checklist jsonb,
    CONSTRAINT pk_billing_periods PRIMARY KEY (month),
    CONSTRAINT ck_billing_periods_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_billing_periods_status CHECK (status IN ('open', 'closed')),
    CONSTRAINT ck_billing_periods_closed CHECK ((status = 'closed') = (closed_at IS NOT NULL AND closed_by IS NOT NULL))
);
-- A closed month stays closed, as it was.
CREATE FUNCTION penstock_keep_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = 'closed' THEN
        RAISE EXCEPTION 'the period % is closed and never changes', to_char(OLD.month, 'YYYY-MM')
            USING ERRCODE = 'PS001';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_periods_keep_closed BEFORE UPDATE OR DELETE ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION penstock_keep_closed();
-- Whether the month of an instant is closed.
CREATE FUNCTION penstock_is_closed(p_at timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM billing_periods WHERE status = 'closed' AND p_at >= starts_at AND p_at < ends_at)
$$;
