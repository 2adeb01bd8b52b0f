-- A record in settle_errors that a person has decided not to bill: it no longer keeps its month open.
CREATE TABLE parked_decisions (
    request_id uuid NOT NULL,
    reason text NOT NULL,
    decided_by text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_parked_decisions PRIMARY KEY (request_id)
);
-- Freeze a month. Settlements (the advisory lock) and other bookings under way are waited for, and later ones see the
-- month closed: nothing slips in between. Runs as the owner, since only an owner may lock the ledger. Returns false when the month was closed already.
CREATE FUNCTION penstock_close_month(p_month date, p_by text, p_checklist jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_close'));
    LOCK TABLE ledger_transfers IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT 1 FROM billing_periods WHERE month = p_month AND status = 'closed') THEN
        RETURN false;
    END IF;
    INSERT INTO billing_periods (month, status, closed_at, closed_by, checklist)
        VALUES (p_month, 'closed', clock_timestamp(), p_by, p_checklist)
        ON CONFLICT (month) DO UPDATE SET status = 'closed', closed_at = EXCLUDED.closed_at,
            closed_by = EXCLUDED.closed_by, checklist = EXCLUDED.checklist;
    RETURN true;
END $$;
