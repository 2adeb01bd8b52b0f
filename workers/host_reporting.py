"""The host's right to report, and its change: the agent joins, and replaces its secret when an admin asks for that."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from core.addresses import Address
from core.supervise import supervise
from workers.join_token import secret_hash
from workers.joining import ask, join
from workers.own_credentials import AgentCredentials
from workers.scheduler_link import Connect, SchedulerLink
from workers.wire import AgentRotation

FIRST_JOIN_S = 3.0
"""Seconds that an agent with a secret that may hold waits for its new join token to be used, before it reports."""
SETTLE_S = 3.0
"""Seconds after which all schedulers know a new secret; they read the hashes every second."""
AGAIN_S = 30.0
"""Seconds until the next attempt after one that failed."""

log = logging.getLogger(__name__)


class HostReporting:
    """Joins, keeps the link to the schedulers, and replaces the secret."""

    def __init__(
        self,
        credentials: AgentCredentials,
        addresses: Sequence[Address],
        connect: Connect,
        link: SchedulerLink,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._credentials, self._addresses, self._connect = credentials, addresses, connect
        self._link, self._pause = link, pause
        self._rotating: asyncio.Task[None] | None = None
        link.on_rotate = self.rotate

    async def run(self) -> None:
        """Join if there is a token to use, and report until cancelled; with a secret of before, also without that."""
        try:
            async with asyncio.TaskGroup() as group:
                joining = group.create_task(self._join())
                await asyncio.wait({joining}, timeout=FIRST_JOIN_S if self._credentials.reports else None)
                if self._credentials.rotates:
                    self.rotate()  # the answer to the last attempt was lost
                group.create_task(self._link.run())
        finally:
            if self._rotating is not None:
                self._rotating.cancel()

    def rotate(self) -> None:
        """Replace the secret in the background, unless that is in progress."""
        if self._rotating is None or self._rotating.done():
            self._rotating = supervise("secret-rotation", self._rotate)

    async def _join(self) -> None:
        await join(self._credentials, self._addresses, self._connect)
        self._link.renew(self._credentials.token)

    async def _rotate(self) -> None:
        """Tell a scheduler the hash of a new secret, and make all connections anew with it. Both hold for a while."""
        own = self._credentials
        if own.join_token is not None:
            return  # that brings a new secret, too
        own.make_next()
        hashed = secret_hash(own.next_secret)
        # The second one: the last attempt succeeded long ago, and its answer was lost.
        for secret in (own.token, own.next_secret):
            problem = await ask(AgentRotation(secret, own.host_id, hashed), self._addresses, self._connect)
            if not problem:
                break
        else:
            log.error("the secret of this host cannot be replaced: %s", problem)
            await self._pause(AGAIN_S)
            return
        own.on_rotated()
        log.info("this host has another secret")
        await self._pause(SETTLE_S)
        self._link.renew(own.token)
