-- Close a month; returns false when it was closed already. It waits for settlements under way (the advisory lock) and
-- for other bookings under way (the table lock); later ones see the month closed. It runs as the owner, since only an
-- owner may lock the ledger.
CREATE OR REPLACE FUNCTION penstock_close_month(p_month date, p_by text, p_checklist jsonb) RETURNS boolean
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
REVOKE ALL ON FUNCTION penstock_close_month FROM PUBLIC;
GRANT EXECUTE ON FUNCTION penstock_close_month TO penstock_system;

-- A close and the settlements exclude each other (penstock_settle takes the same lock shared), so that no settlement
-- dates usage into a month that is being closed.
CREATE OR REPLACE FUNCTION penstock_hold_close() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('penstock_close'));
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER billing_periods_hold_close BEFORE INSERT OR UPDATE ON billing_periods
    FOR EACH ROW WHEN (NEW.status = 'closed') EXECUTE FUNCTION penstock_hold_close();
