"""What a request of a metered platform waits for at least before it may go to an engine, and nothing else.

Its rates are asked from Redis, then money from PostgreSQL and, at the same time, a place from another process. Here
each is the shortest exchange that there is: PING, SELECT 1, and an echo by `cat`. All requests that wait at one moment
share an exchange. A gateway in Python that keeps these three apart cannot add less to the time to the first token.
"""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable

import asyncpg
from redis.asyncio import Redis


class Shared:
    """Runs `exchange` for all who wait when it begins; who comes later waits for the next one."""

    def __init__(self, exchange: Callable[[], Awaitable[object]]) -> None:
        self._exchange = exchange
        self._waiting: list[asyncio.Future[None]] = []
        self._running: asyncio.Task[None] | None = None

    def ask(self) -> "asyncio.Future[None]":
        """Return a future that is done after an exchange that begins now or later."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        return future

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._exchange()
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._running = None


class Asking:
    """The three exchanges, over one connection each."""

    def __init__(self, rates: Shared, money: Shared, place: Shared) -> None:
        self._rates = rates
        self._money = money
        self._place = place

    @classmethod
    async def connect(cls, redis_url: str, database_url: str) -> "Asking":
        """Connect to both servers and start `cat`."""
        redis = Redis.from_url(redis_url, single_connection_client=True)
        postgres = await asyncpg.connect(database_url.replace("+asyncpg", ""))
        select = await postgres.prepare("SELECT 1")
        echo = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if echo.stdin is None or echo.stdout is None:
            raise RuntimeError("cat was started without pipes")
        write, read = echo.stdin.write, echo.stdout.read

        async def repeat() -> None:
            write(b"place")
            await read(64)

        return cls(Shared(redis.ping), Shared(select.fetchval), Shared(repeat))

    async def ask(self) -> None:
        """Wait as one request has to."""
        await self._rates.ask()
        await asyncio.gather(self._money.ask(), self._place.ask())
