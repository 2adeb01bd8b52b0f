-- Rows of these tables are never changed or deleted.
CREATE OR REPLACE FUNCTION penstock_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: book a reversing row instead', TG_TABLE_NAME;
END $$;
CREATE OR REPLACE TRIGGER ledger_transfers_append_only BEFORE UPDATE OR DELETE ON ledger_transfers
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
CREATE OR REPLACE TRIGGER ledger_seals_append_only BEFORE UPDATE OR DELETE ON ledger_seals
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
CREATE OR REPLACE TRIGGER grant_draws_append_only BEFORE UPDATE OR DELETE ON grant_draws
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
CREATE OR REPLACE TRIGGER adjustments_append_only BEFORE UPDATE OR DELETE ON adjustments
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
