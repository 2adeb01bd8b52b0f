-- A host's price is dated. One that would change what an hour of a closed month cost is refused.
CREATE FUNCTION penstock_keep_host_prices() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER host_prices_keep BEFORE INSERT OR UPDATE OR DELETE ON host_prices
    FOR EACH ROW EXECUTE FUNCTION penstock_keep_host_prices();
-- What a provider of GPUs has asked for; entered by a person or fetched, never changed, at most voided.
CREATE TABLE provider_invoices (
    id uuid NOT NULL,
    provider text NOT NULL,
    number text NOT NULL,
    month date NOT NULL,
    currency text NOT NULL,
    total numeric(38,0) NOT NULL,
    source text NOT NULL,
    entered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    entered_by text NOT NULL,
    voided_at timestamptz,
    voided_by text,
    CONSTRAINT pk_provider_invoices PRIMARY KEY (id),
    CONSTRAINT ck_provider_invoices_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_provider_invoices_currency CHECK (currency = 'USD'),
    CONSTRAINT ck_provider_invoices_voided CHECK ((voided_at IS NULL) = (voided_by IS NULL))
);
CREATE UNIQUE INDEX uq_provider_invoices_number ON provider_invoices (provider, number) WHERE voided_at IS NULL;
CREATE INDEX ix_provider_invoices_month ON provider_invoices (month);
CREATE TABLE provider_invoice_lines (
    invoice_id uuid NOT NULL,
    line smallint NOT NULL,
    host_kind text NOT NULL,
    description text NOT NULL,
    hours numeric(38,6),
    amount numeric(38,0) NOT NULL,
    CONSTRAINT pk_provider_invoice_lines PRIMARY KEY (invoice_id, line),
    CONSTRAINT fk_provider_invoice_lines_invoice_id FOREIGN KEY (invoice_id) REFERENCES provider_invoices (id)
);
