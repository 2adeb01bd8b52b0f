-- Statements of months, the keys that sign them, and credits for missed service levels.
-- Public halves of the Ed25519 keys that sign statements and receipts; rows are never removed.
CREATE TABLE signing_keys (
    id text NOT NULL,
    public_key bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at timestamptz,
    CONSTRAINT pk_signing_keys PRIMARY KEY (id),
    CONSTRAINT ck_signing_keys_public_key CHECK (octet_length(public_key) = 32)
);
-- A tenant's statement of a month. A later revision, after corrections, is a new row; no row is rewritten.
CREATE TABLE statements (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    month date NOT NULL,
    revision integer NOT NULL,
    body_sha256 bytea NOT NULL,
    document text NOT NULL,
    pdf bytea NOT NULL,
    key_id text NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_statements PRIMARY KEY (id),
    CONSTRAINT fk_statements_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT fk_statements_key_id FOREIGN KEY (key_id) REFERENCES signing_keys (id),
    CONSTRAINT uq_statements_tenant_id_month_revision UNIQUE (tenant_id, month, revision),
    CONSTRAINT ck_statements_month CHECK (extract(day FROM month) = 1)
);
-- Credit for a missed service level, computed once per contract and month, with its evidence.
CREATE TABLE sla_credits (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    contract_id uuid NOT NULL,
    month date NOT NULL,
    amount numeric(38,0) NOT NULL,
    evidence jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_sla_credits PRIMARY KEY (id),
    CONSTRAINT fk_sla_credits_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT uq_sla_credits_contract_id_month UNIQUE (contract_id, month),
    CONSTRAINT ck_sla_credits_amount CHECK (amount >= 0),
    CONSTRAINT ck_sla_credits_month CHECK (extract(day FROM month) = 1)
);
CREATE INDEX ix_sla_credits_tenant_id_month ON sla_credits (tenant_id, month);
