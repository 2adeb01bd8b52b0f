-- Processes of the release before do not know `kind`, and insert a token with a null `expires_at`. During a rolling
-- upgrade their rows get what revision 0070 gave to rows of before. The next release drops this.
CREATE OR REPLACE FUNCTION penstock_complete_old_token() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.kind := CASE WHEN NEW.expires_at IS NULL THEN 'token' ELSE 'session' END;
    NEW.expires_at := coalesce(NEW.expires_at, now() + interval '365 days');
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER admin_tokens_complete_old BEFORE INSERT ON admin_tokens
    FOR EACH ROW WHEN (NEW.kind IS NULL) EXECUTE FUNCTION penstock_complete_old_token();
