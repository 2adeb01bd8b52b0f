"""The watch of `penstock up` while an embedded server takes long to start again."""

import asyncio
from pathlib import Path
from typing import cast

from cli.display import Display
from cli.rundir import RunDir
from cli.stack import Options, Platform
from core.embedded import EmbeddedPostgres
from core.errors import Unavailable
from tests.support.waiting import until


class Recovering:
    """A PostgreSQL that has died, and whose starts last until the test says how they end."""

    url, pid = "postgresql://", 0

    def __init__(self) -> None:
        self.starts: list[asyncio.Future[str]] = []

    async def start(self) -> str:
        self.starts.append(asyncio.get_running_loop().create_future())
        return await self.starts[-1]

    def rotate_log(self) -> None:
        return None


async def test_roles_are_supervised_while_a_server_recovers(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.acquire()
    platform = Platform(Options(tmp_path), run_dir, Display())
    server, ticks = Recovering(), 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    platform._servers["postgres"] = cast(EmbeddedPostgres, server)
    platform._supervisor.tick = tick
    watching = asyncio.create_task(platform._watch())
    try:
        await until(lambda: server.starts)
        seen = ticks
        await until(lambda: ticks > seen + 2)
        assert len(server.starts) == 1, "one start at a time"
        server.starts[0].set_exception(Unavailable("not this time"))
        await until(lambda: len(server.starts) == 2, what="a failed start is followed by another")
    finally:
        tasks = [watching, *platform._restarts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        run_dir.release()
