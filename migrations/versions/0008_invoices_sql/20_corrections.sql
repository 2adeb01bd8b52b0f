-- A month told again under other prices. `until` bounds the usage that it covers. A reversal is a correction, too:
-- the lines of `reverses` with the signs turned round; there is at most one that is not rejected. From the second
-- person's yes until its last customer is booked it is `applying`; `applied_to` is the last customer that is.
CREATE TABLE corrections (
    id uuid NOT NULL,
    month date NOT NULL,
    until timestamptz NOT NULL,
    status text NOT NULL DEFAULT 'requested',
    spec jsonb NOT NULL,
    reason text NOT NULL,
    reverses uuid,
    approval_id uuid NOT NULL,
    delta numeric(38,0) NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text,
    decided_at timestamptz,
    applied_to uuid,
    CONSTRAINT pk_corrections PRIMARY KEY (id),
    CONSTRAINT fk_corrections_reverses FOREIGN KEY (reverses) REFERENCES corrections (id),
    CONSTRAINT ck_corrections_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_corrections_status CHECK (status IN ('requested', 'applying', 'approved', 'rejected')),
    CONSTRAINT ck_corrections_decided CHECK ((status = 'requested') = (decided_at IS NULL))
);
CREATE INDEX ix_corrections_month ON corrections (month);
CREATE INDEX ix_corrections_applying ON corrections (decided_at) WHERE status = 'applying';
CREATE UNIQUE INDEX uq_corrections_reverses ON corrections (reverses) WHERE status <> 'rejected';
-- The difference by tenant and line. `old_*` has earlier approved corrections in it; delta = new_exact - old_exact.
CREATE TABLE correction_lines (
    correction_id uuid NOT NULL,
    position integer NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    model text NOT NULL,
    class text NOT NULL,
    tier text NOT NULL,
    price_version bigint NOT NULL,
    tokens numeric(38,0) NOT NULL,
    old_price numeric(38,0),
    new_price numeric(38,0),
    old_exact numeric(38,0) NOT NULL,
    new_exact numeric(38,0) NOT NULL,
    delta numeric(38,0) NOT NULL,
    CONSTRAINT pk_correction_lines PRIMARY KEY (correction_id, position),
    CONSTRAINT fk_correction_lines_correction_id FOREIGN KEY (correction_id) REFERENCES corrections (id),
    CONSTRAINT ck_correction_lines_delta CHECK (delta = new_exact - old_exact)
);
CREATE INDEX ix_correction_lines_tenant_id ON correction_lines (tenant_id);
CREATE INDEX ix_correction_lines_customer ON correction_lines (correction_id, tenant_id);
