"""Contracts for hosts in PostgreSQL, and the hosts that they may cover."""

from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import RowMapping, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.acting.contracts import Contracts, HostContract, RunningHost
from workers.acting.tables import host_contracts

_COLUMNS = [host_contracts.c[name] for name in HostContract.__struct_fields__]
# A host that joined by itself keeps its place for an hour after its last heartbeat. An agent with simulated engines
# calls its host `sim-NAME`.
_HOSTS = text(
    """
    SELECT name, kind, region, requested_at AS since FROM host_intents WHERE wanted AND state <> 'ended'
    UNION ALL
    SELECT host_id, host_kind, region, first_seen FROM hosts h
    WHERE last_seen > clock_timestamp() - interval '1 hour'
        AND NOT EXISTS (SELECT FROM host_intents i WHERE h.host_id IN (i.name, 'sim-' || i.name))
    """
)


async def read_all(connection: AsyncConnection) -> list[HostContract]:
    """All contracts, the latest start first."""
    order = (host_contracts.c.starts_at.desc(), host_contracts.c.contract_id)
    rows = await connection.execute(select(*_COLUMNS).order_by(*order))
    return [_contract(row) for row in rows.mappings()]


async def read_contracts(connection: AsyncConnection) -> Contracts:
    """The contracts that run now, and the hosts that they may cover, which are not read where no contract runs."""
    now = func.clock_timestamp()
    running = await connection.execute(
        select(*_COLUMNS).where(
            host_contracts.c.starts_at <= now,
            host_contracts.c.ends_at.is_(None) | (host_contracts.c.ends_at > now),
        )
    )
    found = tuple(_contract(row) for row in running.mappings())
    if not found:
        return Contracts()
    hosts = await connection.execute(_HOSTS)
    return Contracts(found, tuple(RunningHost(row.name, row.kind, row.region, row.since) for row in hosts))


async def any_since(connection: AsyncConnection, start: datetime) -> bool:
    """Whether a contract covered any hour after `start`."""
    found = await connection.scalar(
        text(
            "SELECT EXISTS (SELECT FROM host_contracts WHERE starts_at < clock_timestamp() "
            "AND (ends_at IS NULL OR ends_at > :start))"
        ),
        {"start": start},
    )
    return bool(found)


async def add_contract(connection: AsyncConnection, contract: HostContract) -> None:
    """Store a contract."""
    await connection.execute(insert(host_contracts).values(**msgspec.structs.asdict(contract)))


async def end_contract(connection: AsyncConnection, contract_id: UUID, ends_at: datetime) -> None:
    """Set the end of a contract."""
    await connection.execute(
        update(host_contracts).where(host_contracts.c.contract_id == contract_id).values(ends_at=ends_at)
    )


async def get_contract(connection: AsyncConnection, contract_id: UUID) -> HostContract | None:
    """A contract, which does not change until the end of the transaction; None = there is none."""
    query = select(*_COLUMNS).where(host_contracts.c.contract_id == contract_id).with_for_update()
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _contract(row)


def _contract(row: RowMapping) -> HostContract:
    return HostContract(**{**row, "usd_pico_per_hour": int(row["usd_pico_per_hour"])})
