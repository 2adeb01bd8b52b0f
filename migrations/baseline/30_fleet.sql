-- The outbox, the models, the hosts with their seconds by state, and what hosts cost.
-- Code that must start a job writes an outbox row in its own transaction.
CREATE TABLE outbox (
    id bigserial,
    topic text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    done_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    next_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_outbox PRIMARY KEY (id)
);
CREATE INDEX ix_outbox_open ON outbox (id) WHERE done_at IS NULL;
CREATE TABLE models (
    name text CONSTRAINT pk_models PRIMARY KEY,
    status text NOT NULL DEFAULT 'active'
        CONSTRAINT ck_models_status CHECK (status IN ('active', 'deprecated', 'retired')),
    alias_of text CONSTRAINT fk_models_alias_of REFERENCES models (name),
    note text,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_models_alias CHECK (alias_of <> name)
);
CREATE TABLE hosts (
    host_id text CONSTRAINT pk_hosts PRIMARY KEY,
    host_kind text NOT NULL,
    region text NOT NULL,
    gpus integer NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT now(),
    last_seen timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE host_seconds (
    host_id text NOT NULL,
    boot_id text NOT NULL,
    hour timestamptz NOT NULL,
    state text NOT NULL,
    seconds bigint NOT NULL CONSTRAINT ck_host_seconds_seconds CHECK (seconds >= 0),
    CONSTRAINT pk_host_seconds PRIMARY KEY (host_id, boot_id, hour, state)
);
CREATE INDEX ix_host_seconds_hour ON host_seconds (hour);
CREATE TABLE model_seconds (
    host_id text NOT NULL,
    boot_id text NOT NULL,
    hour timestamptz NOT NULL,
    model text NOT NULL,
    state text NOT NULL,
    seconds bigint NOT NULL CONSTRAINT ck_model_seconds_seconds CHECK (seconds >= 0),
    CONSTRAINT pk_model_seconds PRIMARY KEY (host_id, boot_id, hour, model, state)
);
CREATE INDEX ix_model_seconds_hour ON model_seconds (hour);
-- A price holds from effective_from until the next row of its kind.
CREATE TABLE host_prices (
    host_kind text NOT NULL,
    usd_pico_per_hour numeric(38,0) NOT NULL CONSTRAINT ck_host_prices_price CHECK (usd_pico_per_hour >= 0),
    effective_from timestamptz NOT NULL,
    source text NOT NULL,
    CONSTRAINT pk_host_prices PRIMARY KEY (host_kind, effective_from)
);
INSERT INTO host_prices (host_kind, usd_pico_per_hour, effective_from, source) VALUES
    ('gpu-h100x8-640gb', 35280000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-h100x1-80gb', 4410000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-h200x8-1128gb', 35760000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-h200x1-141gb', 4470000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-mi300x8-1536gb', 20720000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-b300x1-288gb-spot', 8000000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-b300x8-2304gb-spot', 64000000000000, '2026-10-01 00:00:00+00', 'DigitalOcean price list'),
    ('gpu-b300x8-2304gb-contracted', 64000000000000, '2026-10-01 00:00:00+00',
        'stand-in: the spot price; put your contract''s price here'),
    ('gpu-b300x8-2304gb-fabric-contracted', 64000000000000, '2026-10-01 00:00:00+00',
        'stand-in: the spot price; put your contract''s price here'),
    ('local-cpu', 62500000000, '2026-10-01 00:00:00+00',
        'stand-in: a 2-vCPU CPU-optimised droplet (c-2); put your machine''s price here'),
    ('external', 0, '2026-10-01 00:00:00+00', 'an engine somebody else runs and pays for');
-- Batches of recent requests without their text: their shapes, for simulations of the same traffic on another pool.
CREATE TABLE request_shapes (
    id uuid CONSTRAINT pk_request_shapes PRIMARY KEY,
    model text NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    requests integer NOT NULL,
    -- Compressed by the writer.
    data bytea STORAGE EXTERNAL NOT NULL
);
CREATE INDEX ix_request_shapes_last_at ON request_shapes (last_at);
