"""How a host shows who it is: its secret, its link to the schedulers, the address and certificate of its engines."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import aiohttp
import msgspec

from core.private_tls import fingerprint
from core.settings import Settings
from workers.engine_tls import engine_tls
from workers.host_reporting import HostReporting
from workers.kv_events_feed import KvOutbox
from workers.machine import engine_address
from workers.own_credentials import AgentCredentials
from workers.scheduler_dialer import SchedulerDialer
from workers.scheduler_link import SchedulerLink
from workers.wire import CommandResult, Heartbeat, ReplicaCommand


class HostAccess:
    """The credentials of a host, and its link to the schedulers."""

    def __init__(
        self,
        settings: Settings,
        host_id: str,
        *,
        heartbeat: Callable[[], Heartbeat],
        execute: Callable[[ReplicaCommand], Awaitable[CommandResult]],
        outbox: KvOutbox,
        run: str,
        wants: Sequence[str],
        now: Callable[[], datetime],
    ) -> None:
        """The callables, `run` and `wants` are SchedulerLink's. Raises InvalidRequest and OSError for its files."""
        self.credentials = own = AgentCredentials(settings, host_id)
        address = engine_address(settings.host, settings.advertise_host)
        self.tls = engine_tls(settings, own.engine_key, address.reach, now, joined=own.joined)
        """The certificate of the engines; None = they speak no TLS."""
        self.address = msgspec.structs.replace(address, tls=self.tls is not None)
        dialer = SchedulerDialer(settings, own)
        self.link = SchedulerLink(
            settings.scheduler_addresses,
            own.token,
            host_id,
            heartbeat=heartbeat,
            execute=execute,
            outbox=outbox,
            run=run,
            wants=wants,
            joined=own.joined,
            engine_key=own.stated_engine_key,
            engine_authority=self.tls.authority if self.tls is not None else b"",
            connect=dialer,
        )
        self._reporting = HostReporting(own, settings.scheduler_addresses, dialer, self.link)

    @property
    def keys_mark(self) -> str:
        """A text by which an agent knows engines that it started with the same keys and certificates."""
        mark = self.credentials.keys_mark
        return mark if self.tls is None else f"{mark} {fingerprint(self.tls.authority)[:16]}"

    def session(self) -> aiohttp.ClientSession:
        """For the agent's requests to its engines."""
        if self.tls is None:
            return aiohttp.ClientSession()
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls.client_context()))

    async def run(self) -> None:
        """Join and report until cancelled, and renew the certificate of the engines in time."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reporting.run())
            if self.tls is not None:
                group.create_task(self.tls.run())
