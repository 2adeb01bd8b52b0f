-- What customers agreed to, and what tokens cost them. Rates are picodollars (1e-12 USD) a token.
-- Contracts of one customer never overlap. A contract withdrawn before it began stays as a row.
CREATE TABLE contracts (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    effective tstzrange NOT NULL,
    discount_bps integer NOT NULL DEFAULT 0,
    commit_monthly numeric(38,0),
    payment_days integer NOT NULL,
    sla jsonb,
    reason text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_by text,
    withdrawn_at timestamptz,
    CONSTRAINT pk_contracts PRIMARY KEY (id),
    CONSTRAINT fk_contracts_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_contracts_effective CHECK (NOT isempty(effective) AND NOT lower_inf(effective)),
    CONSTRAINT ck_contracts_discount CHECK (discount_bps BETWEEN 0 AND 10000),
    CONSTRAINT ck_contracts_commit CHECK (commit_monthly > 0),
    CONSTRAINT ck_contracts_payment_days CHECK (payment_days BETWEEN 0 AND 365),
    CONSTRAINT ex_contracts_overlap EXCLUDE USING gist (
        textrange(tenant_id::text, tenant_id::text, '[]') WITH =, effective WITH &&) WHERE (withdrawn_at IS NULL)
);
CREATE INDEX ix_contracts_tenant_id ON contracts (tenant_id);
-- A price book is one model and tier, for all customers (tenant_id is null) or for one. Its versions never overlap.
-- A version that follows from a contract's discount names the contract and the list version that it was taken from.
-- A version that never began and is no longer wanted is withdrawn, not deleted: requests that pinned it still find it.
-- ended_by: who ended the book at that instant; any other end must be the next version's start.
CREATE TABLE price_versions (
    id bigint GENERATED ALWAYS AS IDENTITY,
    model text NOT NULL,
    tier text NOT NULL,
    tenant_id uuid,
    input bigint NOT NULL,
    cached_input bigint NOT NULL,
    output bigint NOT NULL,
    reasoning bigint NOT NULL,
    effective tstzrange NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    book text NOT NULL GENERATED ALWAYS AS (model || ' ' || tier || ' ' || coalesce(tenant_id::text, 'list')) STORED,
    contract_id uuid,
    list_version bigint,
    withdrawn_at timestamptz,
    ended_by text,
    CONSTRAINT pk_price_versions PRIMARY KEY (id),
    CONSTRAINT fk_price_versions_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_price_versions_contract_id FOREIGN KEY (contract_id) REFERENCES contracts (id),
    CONSTRAINT fk_price_versions_list_version FOREIGN KEY (list_version) REFERENCES price_versions (id),
    CONSTRAINT ck_price_versions_not_negative CHECK (least(input, cached_input, output, reasoning) >= 0),
    CONSTRAINT ck_price_versions_effective CHECK (NOT isempty(effective) AND NOT lower_inf(effective)),
    CONSTRAINT ck_price_versions_derived CHECK (
        (contract_id IS NULL) = (list_version IS NULL) AND (contract_id IS NULL OR tenant_id IS NOT NULL)),
    CONSTRAINT ex_price_versions_overlap EXCLUDE USING gist (
        textrange(book, book, '[]') WITH =, effective WITH &&) WHERE (withdrawn_at IS NULL)
);
CREATE INDEX ix_price_versions_model_tier ON price_versions (model, tier);
CREATE INDEX ix_price_versions_contract_id ON price_versions (contract_id) WHERE contract_id IS NOT NULL;
