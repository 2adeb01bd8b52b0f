-- Invoices, their lines and credit notes; corrections of past months.
-- One invoice per tenant and month. exact is the sum of its lines in picodollars, total_cents the sum of their cents.
-- status of a postpaid invoice: draft, open, paid, void or uncollectible. settled: nothing is left to pay (prepaid,
-- zero, or carried over). carry_*: the part that the next invoice takes over (a credit, or the amount of a void
-- invoice) as a line of the kind carried.
CREATE TABLE invoices (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    month date NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    currency text NOT NULL DEFAULT 'USD',
    exact numeric(38,0) NOT NULL,
    total_cents bigint NOT NULL,
    number text,
    stripe_invoice_id text,
    due_at timestamptz,
    finalized_at timestamptz,
    paid_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    carry_exact numeric(38,0) NOT NULL DEFAULT 0,
    carry_cents bigint NOT NULL DEFAULT 0,
    carried_to uuid,
    CONSTRAINT pk_invoices PRIMARY KEY (id),
    CONSTRAINT fk_invoices_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_invoices_carried_to FOREIGN KEY (carried_to) REFERENCES invoices (id),
    CONSTRAINT uq_invoices_tenant_id_month UNIQUE (tenant_id, month),
    CONSTRAINT uq_invoices_number UNIQUE (number),
    CONSTRAINT uq_invoices_stripe_invoice_id UNIQUE (stripe_invoice_id),
    CONSTRAINT ck_invoices_month CHECK (extract(day FROM month) = 1),
    CONSTRAINT ck_invoices_kind CHECK (kind IN ('postpaid', 'prepaid')),
    CONSTRAINT ck_invoices_status CHECK (status IN ('draft', 'open', 'paid', 'void', 'uncollectible', 'settled')),
    CONSTRAINT ck_invoices_currency CHECK (currency = 'USD'),
    CONSTRAINT ck_invoices_payable CHECK (status IN ('draft', 'settled') OR kind = 'postpaid'),
    CONSTRAINT ck_invoices_not_negative CHECK (total_cents >= 0)
);
CREATE INDEX ix_invoices_month ON invoices (month);
CREATE INDEX ix_invoices_carry ON invoices (tenant_id)
    WHERE carried_to IS NULL AND (carry_exact <> 0 OR carry_cents <> 0);
-- The amounts that are charged: `cents` is `exact` rounded once, half away from zero.
CREATE TABLE invoice_lines (
    id uuid NOT NULL,
    invoice_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    position integer NOT NULL,
    kind text NOT NULL,
    model text NOT NULL,
    class text NOT NULL,
    tier text NOT NULL,
    price_version bigint,
    tokens numeric(38,0) NOT NULL,
    unit_price numeric(38,0),
    exact numeric(38,0) NOT NULL,
    cents bigint NOT NULL,
    description text NOT NULL,
    adjustment_id uuid,
    stripe_item_id text,
    CONSTRAINT pk_invoice_lines PRIMARY KEY (id),
    CONSTRAINT fk_invoice_lines_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices (id),
    CONSTRAINT uq_invoice_lines_invoice_id_position UNIQUE (invoice_id, position),
    CONSTRAINT ck_invoice_lines_kind CHECK (kind IN ('usage', 'late_usage', 'adjustment', 'commit', 'sla', 'carried')),
    CONSTRAINT ck_invoice_lines_class CHECK (class IN ('', 'input', 'cached_input', 'output', 'reasoning')),
    CONSTRAINT ck_invoice_lines_priced CHECK (kind NOT IN ('usage', 'late_usage') OR exact = tokens * unit_price)
);
CREATE INDEX ix_invoice_lines_adjustment_id ON invoice_lines (adjustment_id) WHERE adjustment_id IS NOT NULL;
-- Credit against a finalised invoice, which itself does not change. pays = invoice: lowers what is open on the invoice;
-- balance: the invoice was paid, the customer's balance rises and the next payment is smaller; refund: paid back.
CREATE TABLE credit_notes (
    id uuid NOT NULL,
    invoice_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    reason text NOT NULL,
    exact numeric(38,0) NOT NULL,
    cents bigint NOT NULL,
    status text NOT NULL DEFAULT 'issued',
    pays text NOT NULL,
    stripe_credit_note_id text,
    correction_id uuid,
    adjustment_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_credit_notes PRIMARY KEY (id),
    CONSTRAINT fk_credit_notes_invoice_id FOREIGN KEY (invoice_id) REFERENCES invoices (id),
    CONSTRAINT uq_credit_notes_stripe_credit_note_id UNIQUE (stripe_credit_note_id),
    CONSTRAINT ck_credit_notes_positive CHECK (cents > 0 AND exact > 0),
    CONSTRAINT ck_credit_notes_status CHECK (status IN ('issued', 'pushed', 'void')),
    CONSTRAINT ck_credit_notes_pays CHECK (pays IN ('invoice', 'balance', 'refund'))
);
CREATE INDEX ix_credit_notes_invoice_id ON credit_notes (invoice_id);
CREATE INDEX ix_credit_notes_adjustment_id ON credit_notes (adjustment_id);
CREATE TABLE credit_note_lines (
    id uuid NOT NULL,
    credit_note_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    invoice_line_id uuid NOT NULL,
    exact numeric(38,0) NOT NULL,
    cents bigint NOT NULL,
    description text NOT NULL,
    CONSTRAINT pk_credit_note_lines PRIMARY KEY (id),
    CONSTRAINT fk_credit_note_lines_credit_note_id FOREIGN KEY (credit_note_id) REFERENCES credit_notes (id),
    CONSTRAINT fk_credit_note_lines_invoice_line_id FOREIGN KEY (invoice_line_id) REFERENCES invoice_lines (id)
);
CREATE INDEX ix_credit_note_lines_credit_note_id ON credit_note_lines (credit_note_id);
-- The last invoice number of a month. It advances in the transaction of the invoices, so there are no gaps.
CREATE TABLE invoice_numbers (
    month date NOT NULL,
    last integer NOT NULL,
    CONSTRAINT pk_invoice_numbers PRIMARY KEY (month)
);
-- Months whose invoice run has finished.
CREATE TABLE invoice_runs (
    month date NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_invoice_runs PRIMARY KEY (month)
);
-- A past month recomputed under other prices. `until` bounds the usage that it covers. A reversal is a correction as
-- well: the lines of `reverses` with inverted signs; a correction has at most one that is not rejected. status is
-- `applying` from the approval until the last customer is booked; `applied_to` is the last customer booked.
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
-- The difference by tenant and line. old_* includes earlier approved corrections; delta = new_exact - old_exact.
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
