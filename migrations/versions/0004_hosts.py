"""Models that are served, hosts, their seconds by state, and what they cost."""

from datetime import UTC, datetime, time

import sqlalchemy as sa
from alembic import op

from core.money import usd_to_pico
from migrations.support import grant
from workers.catalog import load_catalog

revision = "0004_hosts"
down_revision = "0003_billing"
branch_labels = None
depends_on = None

_TABLES = (
    """
    CREATE TABLE models (
      name text CONSTRAINT pk_models PRIMARY KEY,
      status text NOT NULL DEFAULT 'active'
        CONSTRAINT ck_models_status CHECK (status IN ('active', 'deprecated', 'retired')),
      alias_of text CONSTRAINT fk_models_alias_of REFERENCES models (name),
      note text,
      created_at timestamptz NOT NULL DEFAULT now(),
      CONSTRAINT ck_models_alias CHECK (alias_of <> name)
    )
    """,
    """
    CREATE TABLE hosts (
      host_id text CONSTRAINT pk_hosts PRIMARY KEY,
      host_kind text NOT NULL,
      region text NOT NULL,
      gpus integer NOT NULL,
      first_seen timestamptz NOT NULL DEFAULT now(),
      last_seen timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE host_seconds (
      host_id text NOT NULL,
      boot_id text NOT NULL,
      hour timestamptz NOT NULL,
      state text NOT NULL,
      seconds bigint NOT NULL CONSTRAINT ck_host_seconds_seconds CHECK (seconds >= 0),
      CONSTRAINT pk_host_seconds PRIMARY KEY (host_id, boot_id, hour, state)
    )
    """,
    """
    CREATE TABLE model_seconds (
      host_id text NOT NULL,
      boot_id text NOT NULL,
      hour timestamptz NOT NULL,
      model text NOT NULL,
      state text NOT NULL,
      seconds bigint NOT NULL CONSTRAINT ck_model_seconds_seconds CHECK (seconds >= 0),
      CONSTRAINT pk_model_seconds PRIMARY KEY (host_id, boot_id, hour, model, state)
    )
    """,
    """
    CREATE TABLE host_prices (
      host_kind text NOT NULL,
      usd_pico_per_hour numeric(38,0) NOT NULL CONSTRAINT ck_host_prices_price CHECK (usd_pico_per_hour >= 0),
      effective_from timestamptz NOT NULL,
      source text NOT NULL,
      CONSTRAINT pk_host_prices PRIMARY KEY (host_kind, effective_from)
    )
    """,
)


def upgrade() -> None:
    for table in _TABLES:
        op.execute(table)
    for name in ("models", "hosts", "host_seconds", "model_seconds", "host_prices"):
        # What GPUs cost us is no customer's business; which models there are is.
        grant(op, name, app="SELECT" if name == "models" else "")
    insert = sa.text(
        "INSERT INTO host_prices (host_kind, usd_pico_per_hour, effective_from, source) "
        "VALUES (:host_kind, :price, :effective_from, :source)"
    )
    for kind, price in load_catalog().host_prices.items():
        values = {
            "host_kind": kind,
            "price": usd_to_pico(price.usd_per_hour),
            "effective_from": datetime.combine(price.date, time(), UTC),
            "source": price.source,
        }
        op.get_bind().execute(insert, values)
