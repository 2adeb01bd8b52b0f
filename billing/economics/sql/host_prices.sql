-- A host price holds from its date until the next price of the kind. A change that would alter the cost of an hour of
-- a closed month is refused (PS001).
CREATE OR REPLACE FUNCTION penstock_keep_host_prices() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_kind text := CASE TG_OP WHEN 'DELETE' THEN OLD.host_kind ELSE NEW.host_kind END;
    v_from timestamptz := CASE TG_OP WHEN 'DELETE' THEN OLD.effective_from ELSE NEW.effective_from END;
    v_to timestamptz;
BEGIN
    IF TG_OP = 'UPDATE' AND (NEW.host_kind, NEW.effective_from) <> (OLD.host_kind, OLD.effective_from) THEN
        RAISE EXCEPTION 'a host price is moved by a new row' USING ERRCODE = 'PS001';
    END IF;
    SELECT min(p.effective_from) INTO v_to FROM host_prices p
        WHERE p.host_kind = v_kind AND p.effective_from > v_from;
    IF EXISTS (SELECT 1 FROM billing_periods b WHERE b.status = 'closed' AND b.ends_at > v_from
            AND b.starts_at < coalesce(v_to, 'infinity')) THEN
        RAISE EXCEPTION 'the price of % from % would change a closed period', v_kind, v_from USING ERRCODE = 'PS001';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE OR REPLACE TRIGGER host_prices_keep BEFORE INSERT OR UPDATE OR DELETE ON host_prices
    FOR EACH ROW EXECUTE FUNCTION penstock_keep_host_prices();
