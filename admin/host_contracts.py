"""Contracts for hosts: list them with the hosts that they cover, enter one, end one."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from admin.actor import Actor, require
from admin.audit import record
from admin.transactions import now_of, read, write
from billing.economics.host_prices import MAX_SOURCE, check_kind, parse_price
from billing.usage.query import bucket_end, bucket_start
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import uuid7
from core.money import pico_to_usd
from tenants.names import clean_reason
from tenants.roles import PLATFORM_ADMIN, PLATFORM_ROLES
from workers.acting import contract_store
from workers.acting.contracts import HostContract

MAX_HOSTS = 1_024
"""Most hosts of a contract; also a constraint of the table."""
MAX_REGION = 100


class HostContractView(msgspec.Struct, frozen=True):
    """A contract for hosts."""

    contract_id: UUID
    kind: str
    region: str
    """In lower case; empty = any."""
    count: int
    starts_at: datetime
    ends_at: datetime | None
    """None = until a person ends it."""
    usd_per_hour: str
    """Of one host, exact."""
    source: str
    state: str
    """scheduled | running | ended"""
    hosts: list[str]
    """Names of the hosts that it covers now, the oldest first."""


async def list_contracts(database: Database, actor: Actor) -> list[HostContractView]:
    """All contracts for hosts, the latest start first. Raises PermissionDenied."""
    async with read(database, actor, PLATFORM_ROLES) as connection:
        return await _views(connection, await contract_store.read_all(connection))


async def add_contract(
    database: Database,
    actor: Actor,
    *,
    kind: str,
    count: int,
    usd_per_hour: str,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    region: str = "",
    source: str,
    reason: str,
) -> HostContractView:
    """Enter a contract for `count` hosts of a kind, in `region` or in any (empty), at `usd_per_hour` for each.

    `starts_at` and `ends_at` are whole UTC hours; None = the present hour, and until it is ended. Raises
    InvalidRequest, and Conflict when it would change the cost of a closed month.
    """
    require(actor, PLATFORM_ADMIN)
    why, source = clean_reason(reason), " ".join(source.split())
    if not 1 <= count <= MAX_HOSTS:
        raise InvalidRequest(f"count is {count}, must be 1 to {MAX_HOSTS}", param="count")
    if len(region) > MAX_REGION:
        raise InvalidRequest(f"region has at most {MAX_REGION} characters", param="region")
    if not 1 <= len(source) <= MAX_SOURCE:
        raise InvalidRequest(f"say where the contract is, in 1 to {MAX_SOURCE} characters", param="source")
    price = parse_price(usd_per_hour)
    async with write(database, actor) as connection:
        await check_kind(connection, kind, param="kind")
        start = bucket_start(await now_of(connection), "hour") if starts_at is None else starts_at
        _check_hour(start, "starts_at")
        if ends_at is not None:
            _check_hour(ends_at, "ends_at")
            if ends_at <= start:
                raise InvalidRequest(
                    f"the contract ends at {ends_at.isoformat()}, which is not after its start, {start.isoformat()}",
                    param="ends_at",
                )
        contract = HostContract(uuid7(), kind, region.strip().lower(), count, start, ends_at, price, source)
        with _closed_months_stay("starts_at"):
            await contract_store.add_contract(connection, contract)
        [after] = await _views(connection, [contract])
        await _record(connection, actor, "host_contract.add", None, after, why)
    return after


async def end_contract(
    database: Database, actor: Actor, *, contract_id: UUID, ends_at: datetime | None = None, reason: str
) -> HostContractView:
    """Set the end of a contract, a whole UTC hour; None = the end of the present hour. At its start, it never was.

    Raises NotFound, InvalidRequest, and Conflict when it would change the cost of a closed month.
    """
    require(actor, PLATFORM_ADMIN)
    why = clean_reason(reason)
    async with write(database, actor) as connection:
        contract = await contract_store.get_contract(connection, contract_id)
        if contract is None:
            raise NotFound(f"there is no contract for hosts with the id {contract_id}")
        hour = bucket_start(await now_of(connection), "hour")
        end = bucket_end(hour, "hour") if ends_at is None else ends_at
        _check_hour(end, "ends_at")
        if end < contract.starts_at:
            raise InvalidRequest(
                f"the contract cannot end at {end.isoformat()}: it starts at {contract.starts_at.isoformat()}",
                param="ends_at",
            )
        [before] = await _views(connection, [contract])
        with _closed_months_stay("ends_at"):
            await contract_store.end_contract(connection, contract_id, end)
        [after] = await _views(connection, [msgspec.structs.replace(contract, ends_at=end)])
        await _record(connection, actor, "host_contract.end", before, after, why)
    return after


def _check_hour(at: datetime, param: str) -> None:
    if at.tzinfo is None or at != bucket_start(at, "hour"):
        raise InvalidRequest(
            f"{param} is {at.isoformat()}, must be a whole UTC hour, such as 2026-12-01T00:00:00Z",
            param=param,
        )


@contextmanager
def _closed_months_stay(param: str) -> Iterator[None]:
    """Raises Conflict where the database refuses to change the cost of a closed month."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "PS001":
            raise
        told = f"{param} would change what a closed month cost: take an hour after it"
        raise Conflict(told, code="period_closed") from error


async def _views(connection: AsyncConnection, contracts: list[HostContract]) -> list[HostContractView]:
    now, assigned = await now_of(connection), (await contract_store.read_contracts(connection)).assigned
    return [
        HostContractView(
            one.contract_id,
            one.kind,
            one.region,
            one.count,
            one.starts_at,
            one.ends_at,
            pico_to_usd(one.usd_pico_per_hour),
            one.source,
            "scheduled" if now < one.starts_at else "running" if one.runs(now) else "ended",
            [name for name, contract in assigned.items() if contract.contract_id == one.contract_id],
        )
        for one in contracts
    ]


async def _record(
    connection: AsyncConnection,
    actor: Actor,
    act: str,
    before: HostContractView | None,
    after: HostContractView,
    reason: str,
) -> None:
    await record(
        connection,
        actor,
        act,
        tenant_id=None,
        object_kind="host_contract",
        object_id=str(after.contract_id),
        reason=reason,
        before=before,
        after=after,
    )
