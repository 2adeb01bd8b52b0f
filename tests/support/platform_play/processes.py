"""A living API process of the play: the product's hold book and meter."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from billing.metering.holds import HoldManager
from billing.metering.meter import Meter
from billing.metering.records import HoldGranted, HoldRequest
from core.clock import SystemClock
from tests.support.platform_play.doomed import SPOOL_BYTES
from tests.support.waiting import until


class ApiProcess:
    """One process on a host (its spool folder)."""

    def __init__(self, url: str, host: Path, name: str) -> None:
        host.mkdir(parents=True, exist_ok=True)
        self._host, self._name = host, name
        self.holds = HoldManager(url, name, ttl_s=3600.0, clock=SystemClock(), timeout_s=30.0)
        self.meter = Meter(
            url, host, name, spool_bytes=SPOOL_BYTES, adopt_every_s=0.05, on_settled=self.holds.stop_renewing
        )

    async def __aenter__(self) -> "ApiProcess":
        await self.holds.start()
        await self.meter.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.meter.close()
        await self.holds.close()

    async def adopted(self) -> None:
        """Wait until no dead process's spool is left on the host."""
        await until(lambda: [path.stem for path in self._host.glob("*.spool")] == [self._name], timeout_s=60)

    async def place(self, requests: Sequence[HoldRequest]) -> list[HoldGranted]:
        """Reserve money for all of them at once."""
        return list(await asyncio.gather(*(self.holds.place(one) for one in requests)))
