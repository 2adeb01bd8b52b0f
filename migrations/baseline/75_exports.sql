-- Scheduled exports.
-- What is exported, where and how often. Credentials are named, never stored: they come from the settings.
CREATE TABLE export_definitions (
    id uuid NOT NULL,
    name text NOT NULL,
    dataset text NOT NULL,
    format text NOT NULL,
    group_by text NOT NULL DEFAULT '',
    cadence text NOT NULL,
    destination text NOT NULL,
    tenant_id uuid,
    enabled boolean NOT NULL DEFAULT true,
    starts_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    CONSTRAINT pk_export_definitions PRIMARY KEY (id),
    CONSTRAINT uq_export_definitions_name UNIQUE (name),
    CONSTRAINT fk_export_definitions_tenant_id FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT ck_export_definitions_dataset CHECK (
        dataset IN ('report', 'focus_charges', 'focus_gpu', 'journal', 'invoices')),
    CONSTRAINT ck_export_definitions_format CHECK (format IN ('csv', 'json', 'xlsx', 'parquet')),
    CONSTRAINT ck_export_definitions_cadence CHECK (cadence IN ('hourly', 'daily', 'monthly'))
);
-- Files written: one row per new revision of a period's files. A run that changes nothing only updates checked_at.
CREATE TABLE export_runs (
    id uuid NOT NULL,
    definition_id uuid NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    revision integer NOT NULL,
    location text NOT NULL,
    row_count bigint NOT NULL,
    sums jsonb NOT NULL,
    sha256 text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    checked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    final boolean NOT NULL DEFAULT false,
    CONSTRAINT pk_export_runs PRIMARY KEY (id),
    CONSTRAINT fk_export_runs_definition_id FOREIGN KEY (definition_id) REFERENCES export_definitions (id),
    CONSTRAINT uq_export_runs_definition_id_period_start_revision UNIQUE (definition_id, period_start, revision),
    CONSTRAINT ck_export_runs_revision CHECK (revision >= 1)
);
-- Periods that could not be written: the error, the number of attempts, and when the next attempt is due.
CREATE TABLE export_failures (
    definition_id uuid NOT NULL,
    period_start timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    error text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at timestamptz NOT NULL,
    CONSTRAINT pk_export_failures PRIMARY KEY (definition_id, period_start),
    CONSTRAINT fk_export_failures_definition_id FOREIGN KEY (definition_id) REFERENCES export_definitions (id)
);
