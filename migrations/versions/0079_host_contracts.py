"""Contracts for hosts: how many of a kind, where, for which hours and at which price per hour.

Until now the catalog said that the hosts of three kinds are paid for in any case. Those that run are put under a
contract without an end, at the price in force, so that none of them is given up after the upgrade.
"""

from alembic import op

revision = "0079_host_contracts"
down_revision = "0081_shared_hosts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE host_contracts (contract_id uuid NOT NULL, kind text NOT NULL, region text NOT NULL, "
        "count integer NOT NULL, starts_at timestamptz NOT NULL, ends_at timestamptz, "
        "usd_pico_per_hour numeric(38,0) NOT NULL, source text NOT NULL, "
        "created_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
        "CONSTRAINT pk_host_contracts PRIMARY KEY (contract_id), "
        "CONSTRAINT ck_host_contracts_count CHECK (count BETWEEN 1 AND 1024), "
        "CONSTRAINT ck_host_contracts_price CHECK (usd_pico_per_hour >= 0), "
        "CONSTRAINT ck_host_contracts_region CHECK (region = lower(region)), "
        "CONSTRAINT ck_host_contracts_term CHECK (ends_at >= starts_at), "
        "CONSTRAINT ck_host_contracts_hours CHECK (starts_at = date_trunc('hour', starts_at, 'UTC') "
        "AND ends_at = date_trunc('hour', ends_at, 'UTC')))"
    )
    op.execute("GRANT SELECT, INSERT ON host_contracts TO penstock_system")
    op.execute("GRANT UPDATE (ends_at) ON host_contracts TO penstock_system")
    op.execute(
        "INSERT INTO host_contracts (contract_id, kind, region, count, starts_at, usd_pico_per_hour, source) "
        "SELECT gen_random_uuid(), host_kind, '', least(count(*), 1024), date_trunc('hour', now(), 'UTC'), "
        "coalesce((SELECT p.usd_pico_per_hour FROM host_prices p WHERE p.host_kind = h.host_kind "
        "AND p.effective_from <= now() ORDER BY p.effective_from DESC LIMIT 1), 0), "
        "'until this release its kind was contracted: end it and enter the contract' "
        "FROM hosts h WHERE last_seen > now() - interval '1 day' AND host_kind IN "
        "('gpu-b300x8-2304gb-contracted', 'gpu-b300x8-2304gb-fabric-contracted', 'gb200-nvl4') GROUP BY host_kind"
    )
