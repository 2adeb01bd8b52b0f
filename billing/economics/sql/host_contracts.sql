-- A contract for hosts costs its price in every hour of its term. A new one, or another end, that would alter the cost
-- of an hour of a closed month is refused (PS001).
CREATE OR REPLACE FUNCTION penstock_keep_host_contracts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_from timestamptz := NEW.starts_at;
    v_to timestamptz := coalesce(NEW.ends_at, 'infinity');
BEGIN
    IF TG_OP = 'UPDATE' THEN
        v_from := least(coalesce(OLD.ends_at, 'infinity'), v_to);
        v_to := greatest(coalesce(OLD.ends_at, 'infinity'), v_to);
    END IF;
    IF EXISTS (SELECT 1 FROM billing_periods b
            WHERE b.status = 'closed' AND b.ends_at > v_from AND b.starts_at < v_to) THEN
        RAISE EXCEPTION 'the contract would change a closed period' USING ERRCODE = 'PS001';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER host_contracts_keep BEFORE INSERT OR UPDATE ON host_contracts
    FOR EACH ROW EXECUTE FUNCTION penstock_keep_host_contracts();
