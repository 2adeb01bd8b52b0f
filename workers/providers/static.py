"""Hosts that join by themselves: whatever sends heartbeats. They are listed, and nothing creates or destroys them."""

from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.db import Database
from workers.providers.interface import (
    Account,
    CallResult,
    Endings,
    HostRequest,
    Listing,
    ObservedHost,
    Outcome,
    Prices,
)

NAME = "static"
SILENT_AFTER = timedelta(minutes=2)
"""A host whose last heartbeat is older is not listed."""
_REFUSAL = "static hosts join and leave by themselves: start or stop an agent on the machine"

_JOINED = text(
    """
    SELECT host_id, host_kind, region, first_seen FROM hosts h
    WHERE last_seen > clock_timestamp() - CAST(:silent AS interval) AND NOT EXISTS (
        SELECT FROM host_intents i WHERE h.host_id IN (i.name, 'sim-' || i.name))
    ORDER BY host_id
    """
)
_SILENT = text(
    """
    SELECT * FROM (
        SELECT DISTINCT ON (c.host_id) h.host_id, host_kind, region, first_seen, last_seen
        FROM host_credentials c JOIN hosts h ON h.host_id IN (c.host_id, 'sim-' || c.host_id)
        WHERE c.secret_hash IS NOT NULL AND NOT EXISTS (
            SELECT FROM host_intents i WHERE h.host_id IN (i.name, 'sim-' || i.name))
        ORDER BY c.host_id, last_seen DESC) newest
    WHERE last_seen <= clock_timestamp() - CAST(:silent AS interval)
    ORDER BY host_id
    """
)


class SilentHost(msgspec.Struct, frozen=True):
    """A host with a secret that holds, and without a heartbeat for SILENT_AFTER."""

    host_id: str
    host_kind: str
    region: str
    first_seen: datetime
    last_seen: datetime


async def read_silent(connection: AsyncConnection) -> list[SilentHost]:
    """Hosts that joined with a token, that no provider has made, and that are silent; by name."""
    rows = await connection.execute(_SILENT, {"silent": SILENT_AFTER})
    return [SilentHost(**row) for row in rows.mappings()]


class StaticHosts:
    """Hosts that send heartbeats and that no provider has made."""

    name = NAME

    def __init__(self, database: Database) -> None:
        self._database = database

    async def account(self) -> Account:
        """No account."""
        return Account(NAME, CallResult("account", Outcome.OK))

    async def prices(self, kinds: Collection[str]) -> Prices:
        """No prices."""
        return Prices({}, (CallResult("prices", Outcome.OK),), complete=True)

    async def list_hosts(self, kinds: Collection[str] = ()) -> Listing:
        """The hosts that sent a heartbeat within SILENT_AFTER. Their price is not the provider's to know: 0."""
        async with self._database.read() as connection:
            rows = (await connection.execute(_JOINED, {"silent": SILENT_AFTER})).all()
        hosts = tuple(
            ObservedHost(row.host_id, row.host_id, row.host_kind, row.region, "running", row.first_seen, 0)
            for row in rows
        )
        return Listing(hosts, (CallResult("list", Outcome.OK),), complete=True)

    async def create(self, request: HostRequest) -> CallResult:
        """Refused."""
        return CallResult("create", Outcome.REFUSED, detail=_REFUSAL)

    async def destroy(self, provider_id: str) -> CallResult:
        """Refused."""
        return CallResult("destroy", Outcome.REFUSED, detail=_REFUSAL)

    async def endings(self, since: datetime) -> Endings:
        """No records."""
        return Endings({}, (CallResult("endings", Outcome.OK),), complete=True)

    async def close(self) -> None:
        """Nothing to close."""
