"""PostgreSQL around the model: connections, latency, commits that do not wait, crashes, freezes, lost answers.

A function runs at one instant between its request and its answer, as if it were alone: its locks give that order in
PostgreSQL. A commit on a connection with `synchronous_commit = off` is durable when a later durable commit or the
server's own writer has flushed the log; a crash undoes those after the last flush.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import asyncpg
import msgspec

from tests.simulation.sql_model import RefusedByDatabase, SqlModel
from tests.simulation.world import EPOCH_S, Process, World

FLUSH_S = 0.6
"""A commit that does not wait is durable after three of the writer's delays of 200 ms."""
_FUNCTION = re.compile(r"penstock_\w+")


class Server:
    """The database server. Its clock is its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock_skew_s = 0.0
        self.model = SqlModel(self._now_us)
        self.model.started_at = self._now_us()
        self.down_until = 0.0
        self.frozen_until = 0.0
        self.fail_next: list[str] = []
        """What happens to the next commands: deadlock, lost_before, lost_after or crash_after."""
        self.slow_s = 0.0
        """Added to the time of each command."""
        self.on_commit: Callable[[], None] = lambda: None
        self._connections: dict[Connection, None] = {}  # in the order of their making, so that a seed replays
        self._commits: list[tuple[float, int]] = []
        """Commits that are not durable: when, and where their changes begin in the model's undo list."""

    def _now_us(self) -> int:
        return round((EPOCH_S + self.world.now + self.clock_skew_s) * 1e6)

    @property
    def available(self) -> bool:
        """Whether it accepts connections."""
        return self.world.now >= self.down_until

    async def connect(self, *_: object, timeout: float = 5.0, **__: object) -> "Connection":
        """Stands in for `core.db.connect_system`."""
        world = self.world
        thread = world.current
        assert thread is not None
        world.point("connect", thread.process)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        at = max(world.now, self.frozen_until) + self._latency()
        if at - world.now > timeout:
            loop.call_later(timeout, _fail, answered, TimeoutError("connect"))
        else:
            world.push(at, lambda: loop.call_soon(_resolve, answered, None))
        await answered
        if not self.available:
            raise ConnectionRefusedError("the server is down")
        connection = Connection(self, thread.process)
        self._connections[connection] = None
        return connection

    def crash(self, down_s: float) -> None:
        """Stop at once and come back in `down_s`; commits that were not flushed are lost, in order from the last."""
        world = self.world
        lost = [mark for at, mark in self._commits if at > world.now - FLUSH_S]
        if lost:
            undone = lost[world.random.randint(0, len(lost) - 1) :] if world.random.random() < 0.8 else []
            if undone:
                self.model.roll_back(undone[0])
                world.note("crash loses", len(undone), "commits")
        self._commits.clear()
        self.model.undo.clear()
        self.down_until = max(self.down_until, world.now + down_s)
        for connection in list(self._connections):
            connection.cut("server crash")
        world.push(self.down_until, self._started)

    def _started(self) -> None:
        self.model.started_at = self._now_us()

    def freeze(self, seconds: float) -> None:
        """Answer nothing for a while; commands that were sent run afterwards."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    def cut_all(self) -> None:
        """Cut every connection, as an administrator's pg_terminate_backend does."""
        for connection in list(self._connections):
            connection.cut("terminated")

    def forget(self, process: Process) -> None:
        """The kernel closes the connections of a dead process."""
        for connection in list(self._connections):
            if connection.process is process:
                connection.terminate()

    def _latency(self) -> float:
        random = self.world.random.random()
        return self.slow_s + (0.0002 + 0.002 * random if random < 0.95 else 0.05 * random)

    def submit(
        self, connection: "Connection", query: str, args: tuple[Any, ...], future: "asyncio.Future[Any]"
    ) -> None:
        """Run a command after its way to the server, and answer."""
        self.world.after(self._latency(), lambda: self._execute(connection, query, args, future))

    def _execute(
        self, connection: "Connection", query: str, args: tuple[Any, ...], future: "asyncio.Future[Any]"
    ) -> None:
        world = self.world
        if world.now < self.frozen_until:
            world.push(
                self.frozen_until + self._latency(), lambda: self._execute(connection, query, args, future)
            )
            return
        if connection.gone or (connection.closed and world.random.random() < 0.5):
            return  # the server noticed in time that its client has gone
        world.point("execute", connection.process)
        if connection.gone:
            return
        if self._waits_for_lock(query, args):
            if not connection.lock_timeout_s:
                world.after(0.01, lambda: self._execute(connection, query, args, future))
            else:
                error = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
                world.after(connection.lock_timeout_s, lambda: connection.answer(future, error=error))
            return
        fate = self.fail_next.pop(0) if self.fail_next else ""
        if fate:
            world.note("database", fate)
        if fate == "lost_before":
            connection.cut("connection lost")
            return
        try:
            if fate == "deadlock":
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            rows = self.transaction(lambda: self._call(query, args), durable=connection.durable)
        except asyncpg.PostgresError as error:
            connection.answer(future, error=error)
            return
        if fate == "lost_after":
            connection.cut("connection lost")
        elif fate == "crash_after":
            self.crash(world.random.uniform(0.05, 3.0))
        else:
            connection.answer(future, rows)

    def _waits_for_lock(self, query: str, args: tuple[Any, ...]) -> bool:
        locked = self.model.locked
        if not locked:
            return False
        if "penstock_settle" in query:
            return any(record.tenant_id in locked for record in args[0])
        return "penstock_hold" in query and args[11] is True and not locked.isdisjoint(args[2])

    def transaction(self, call: Callable[[], Any], *, durable: bool) -> Any:
        """Commit what `call` does, or undo it when it raises."""
        model, mark = self.model, len(self.model.undo)
        try:
            result = call()
        except RefusedByDatabase as error:
            model.roll_back(mark)
            self.world.problem(f"the database refused: {error}")
            raise asyncpg.CheckViolationError(str(error)) from error
        if durable:
            model.undo.clear()
            self._commits.clear()
        elif len(model.undo) > mark:
            self._commits.append((self.world.now, mark))
        self.on_commit()
        return result

    def _call(self, query: str, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        found = _FUNCTION.search(query)
        name = found.group() if found else query
        model = self.model
        if name == "penstock_hold":
            return model.hold(*args)
        if name == "penstock_settle":
            return model.settle(args[0])
        if name == "penstock_settle_labelled":
            return model.settle_labelled(args[0], msgspec.json.decode(args[1]), *args[2:])
        if name == "penstock_settle_with_unbilled":
            return model.settle_with_unbilled(args[0], msgspec.json.decode(args[1]))
        if name == "penstock_extend":
            return model.extend(*args)
        if name == "penstock_renew":
            return [{"request_id": one} for one in model.renew(args[0])]
        if name == "penstock_void":
            return [{"busy": model.release(args[0], "voided")}]
        if query.startswith("WITH free"):
            return [{"tenant_id": one} for one in args[0] if one in model.locked]
        if name == "penstock_park":
            model.park(args[0], args[1])
        elif name == "penstock_count_unpriced":
            model.count_unpriced(*args)
        else:
            _unknown(query)
        return []

    # -- the job's connection --------------------------------------------------------------------------------------

    async def execute(self, statement: Any, values: dict[str, Any]) -> "Scalar":
        """A statement of the reaper's SQLAlchemy connection."""
        if "penstock_reap" not in str(statement):
            _unknown(str(statement))
        ttl, gap, limit = (_us(values["ttl"]), _us(values["gap"]), values["limit"])
        return Scalar(self.transaction(lambda: self.model.reap(ttl, gap, limit), durable=True))


class Scalar:
    """A result of one value."""

    def __init__(self, value: int) -> None:
        self._value = value

    def scalar_one(self) -> int:
        return self._value


class Connection:
    """One connection, with the methods of asyncpg.Connection that the product uses."""

    def __init__(self, server: Server, process: Process) -> None:
        self.server = server
        self.process = process
        self.durable = True
        self.lock_timeout_s = 0.0
        self.closed = False
        """By the client."""
        self.gone = False
        """By the server, which runs nothing that was sent on it."""
        self._pending: set[asyncio.Future[Any]] = set()
        self._listeners: list[Callable[[Any], None]] = []
        self._loop = asyncio.get_running_loop()

    def add_termination_listener(self, listener: Callable[[Any], None]) -> None:
        self._listeners.append(listener)

    def is_closed(self) -> bool:
        return self.closed or self.gone

    async def execute(self, query: str) -> str:
        if "synchronous_commit = off" in query:
            self.durable = False
        elif query.startswith("SET lock_timeout = "):
            self.lock_timeout_s = int(query.rpartition(" ")[2]) / 1000
        else:
            _unknown(query)
        await self._send("SET", ())
        return "SET"

    async def fetch(self, query: str, *args: Any) -> Any:
        return await self._send(query, args)

    async def _send(self, query: str, args: tuple[Any, ...]) -> Any:
        if self.is_closed():
            raise asyncpg.InterfaceError("connection is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending.add(future)
        self.server.world.point("send", self.process)
        if query == "SET":
            self.server.world.after(0.0003, lambda: self.answer(future, []))
        else:
            self.server.submit(self, query, args, future)
        return await future

    def answer(self, future: "asyncio.Future[Any]", rows: Any = None, error: Exception | None = None) -> None:
        """Send the answer of a command; it is lost when the connection or the client is."""
        if self.is_closed() or self.process.dead:
            return
        self._pending.discard(future)
        world = self.server.world
        world.after(
            0.0001 + 0.001 * world.random.random(),
            lambda: (
                self._loop.call_soon(_fail, future, error)
                if error is not None
                else self._loop.call_soon(_resolve, future, rows)
            ),
        )

    def cut(self, reason: str) -> None:
        """End the connection from the server's side."""
        self.gone = True
        self._drop(asyncpg.ConnectionDoesNotExistError(reason))

    def terminate(self) -> None:
        """End the connection from the client's side; a command that was sent may run all the same."""
        self.closed = True
        self._drop(asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"))

    async def close(self, *, timeout: float = 0.0) -> None:
        self.terminate()

    def _drop(self, error: Exception) -> None:
        self.server._connections.pop(self, None)
        for future in self._pending:
            self._loop.call_soon(_fail, future, error)
        self._pending.clear()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.call_soon(self._tell, listener)

    def _tell(self, listener: Callable[[Any], None]) -> None:
        if not self.process.dead:
            listener(self)


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _us(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1e6)


def _unknown(statement: str) -> NoReturn:
    raise NotImplementedError(f"the simulated server does not know: {statement}")
