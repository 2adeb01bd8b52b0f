-- What one person asks for and another must agree to.
CREATE TABLE approvals (
    id uuid NOT NULL,
    kind text NOT NULL,
    tenant_id uuid,
    facts jsonb NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text,
    decided_at timestamptz,
    decision text,
    CONSTRAINT pk_approvals PRIMARY KEY (id),
    CONSTRAINT fk_approvals_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_approvals_decision CHECK (decision IN ('approved', 'rejected')),
    CONSTRAINT ck_approvals_decided CHECK ((decision IS NULL) = (decided_by IS NULL)
        AND (decision IS NULL) = (decided_at IS NULL)),
    CONSTRAINT ck_approvals_two_people CHECK (decision IS DISTINCT FROM 'approved' OR decided_by <> requested_by)
);
CREATE INDEX ix_approvals_open ON approvals (requested_at) WHERE decision IS NULL;
-- Corrections of what a customer owes; a positive amount is in the customer's favour. Booked when made, never changed.
CREATE TABLE adjustments (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    amount numeric(38,0) NOT NULL,
    uncollectible numeric(38,0) NOT NULL DEFAULT 0,
    reason text NOT NULL,
    corrects date,
    facts jsonb,
    created_by text NOT NULL,
    approved_by text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_adjustments PRIMARY KEY (id),
    CONSTRAINT fk_adjustments_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_adjustments_amount CHECK (amount <> 0),
    CONSTRAINT ck_adjustments_uncollectible CHECK (uncollectible BETWEEN 0 AND abs(amount)),
    CONSTRAINT ck_adjustments_corrects CHECK (extract(day FROM corrects) = 1)
);
CREATE INDEX ix_adjustments_tenant_id_created_at ON adjustments (tenant_id, created_at);
CREATE INDEX ix_adjustments_created_at ON adjustments (created_at);
CREATE TRIGGER adjustments_append_only BEFORE UPDATE OR DELETE ON adjustments
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
