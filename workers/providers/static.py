"""Hosts that join by themselves: whatever sends heartbeats. They are listed, and nothing creates or destroys them."""

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import text

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
