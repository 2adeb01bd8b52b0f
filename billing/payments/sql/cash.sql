-- Cash movements are never changed or deleted.
CREATE OR REPLACE TRIGGER stripe_cash_append_only BEFORE UPDATE OR DELETE ON stripe_cash
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
