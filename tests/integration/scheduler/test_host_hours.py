"""Host seconds reach PostgreSQL, and a PostgreSQL that is away never holds up a placement."""

import asyncio
from contextlib import suppress

from sqlalchemy import text

from core.db import Database
from scheduler.host_hours import HostHours
from scheduler.wire import Released
from tests.support.ports import free_port
from tests.support.scheduling import agent, beat, client, replica, request, service
from tests.support.waiting import until
from workers.host_hours import record_heartbeat


async def _seconds(database: Database) -> int:
    async with database.system() as connection:
        return int(
            (await connection.execute(text("SELECT coalesce(sum(seconds), 0) FROM host_seconds"))).scalar()
        )


async def test_heartbeats_are_stored_and_the_rest_at_the_end(database: Database) -> None:
    hours = HostHours(database, record_heartbeat, every_s=0.05)
    await hours.start()
    async with service(listeners=[hours]) as scheduler, agent(scheduler.port, replica()) as host:
        await until(lambda: host.seq > 3)
        await until(lambda: _seconds(database))
    await hours.close()
    assert await _seconds(database) == host.seq


async def test_placement_goes_on_while_postgresql_is_away() -> None:
    away = Database(f"postgresql://nobody:x@127.0.0.1:{free_port()}/none", pool_size=1)
    hours = HostHours(away, record_heartbeat, every_s=0.01)
    await hours.start()
    async with (
        service(listeners=[hours]) as scheduler,
        agent(scheduler.port, replica()),
        client(scheduler.port) as api,
    ):
        for _ in range(20):
            placement = await api.place(request())
            api.release(Released(placement.request_id, placement.replica_id))
    await hours.close()
    await away.close()


async def test_a_failed_round_is_made_up_for(database: Database) -> None:
    failures = 2

    async def record(connection, heartbeat) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("away")
        await record_heartbeat(connection, heartbeat)

    hours = HostHours(database, record)
    for seq in range(1, 4):
        hours.on_heartbeat(beat(replica(), seq=seq * 10), lambda _: 0, 0.0)
        await hours.store()
    assert await _seconds(database) == 30
    await hours.store()
    assert await _seconds(database) == 30


async def test_a_frozen_postgresql_does_not_hold_up_the_shutdown(database: Database, monkeypatch) -> None:
    monkeypatch.setattr("scheduler.store_loop.CLOSE_S", 0.1)
    thawed, entered, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def record(connection, heartbeat) -> None:
        while not thawed.is_set():
            entered.set()
            with suppress(asyncio.CancelledError):
                await thawed.wait()
        left.set()

    hours = HostHours(database, record, every_s=0.01)
    hours.on_heartbeat(beat(replica()), lambda _: 0, 0.0)
    await hours.start()
    await entered.wait()
    await asyncio.wait_for(hours.close(), 60)
    thawed.set()
    await left.wait()
    hours._task.cancel()
    await asyncio.gather(hours._task, return_exceptions=True)
