"""Recorded requests go from a running scheduler into PostgreSQL, and out again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import select, text

from core.clock import SystemClock
from core.db import Database
from core.settings import Settings
from jobs.work import prune_request_traces as forget_job
from scheduler import request_trace_store
from scheduler.request_trace import TracedRequest
from scheduler.request_trace_store import RequestTraceStore, prune_traces, read_trace, traced_models
from scheduler.tables import request_traces
from scheduler.wire import Released
from tests.support.ports import free_port
from tests.support.scheduling import MODEL, agent, client, replica, request, service
from tests.support.waiting import until

HOUR = timedelta(hours=1)


async def _read(database: Database, **options) -> list[TracedRequest]:
    now = datetime.now(UTC)
    span = {"since": now - HOUR, "until": now + HOUR} | options
    async with database.read() as connection:
        return [traced async for _, traced in read_trace(connection, **span)]


async def test_requests_are_recorded_and_read_back(database: Database) -> None:
    store = RequestTraceStore(database, SystemClock(), every_s=0.05)
    await store.start()
    async with (
        service(listeners=[store.trace]) as scheduler,
        agent(scheduler.port, replica()),
        client(scheduler.port) as api,
    ):
        blocks = list(range(1, 17))
        for number in range(20):
            asked = request(tenant=f"tenant-{number % 3}", blocks=blocks, block_tokens=64)
            placement = await api.place(asked)
            api.prefill_done(placement)
            api.release(Released(placement.request_id, placement.replica_id, 1100, 512, number + 1))
        await until(lambda: _count(database, 20))
    await store.close()
    found = await _read(database)
    assert sorted(traced.output_tokens for traced in found) == list(range(1, 21))
    assert {traced.tenant_id for traced in found} == {"tenant-0", "tenant-1", "tenant-2"}
    assert all(traced.blocks == [8, 16] and traced.block_tokens == 512 for traced in found)
    assert all(0 <= traced.queue_ms <= traced.ttft_ms <= traced.total_ms for traced in found)
    assert store.trace.dropped == 0


async def _count(database: Database, wanted: int) -> bool:
    return len(await _read(database)) == wanted


def _traced(at: datetime, output: int = 1) -> TracedRequest:
    return TracedRequest(int(at.timestamp() * 1000), "t", "standard", 10, 0, output, [], 512, 0, 1, 2, "done")


async def _put(store: RequestTraceStore, model: str, *requests: TracedRequest) -> None:
    for traced in requests:
        store.trace._ended.setdefault(model, []).append(traced)
    await store.store()


async def test_a_period_and_a_model_are_read_exactly(database: Database) -> None:
    store = RequestTraceStore(database, SystemClock())
    now = datetime.now(UTC).replace(microsecond=0)
    await _put(store, "a", *(_traced(now + timedelta(seconds=second), second) for second in range(10)))
    await _put(store, "b", _traced(now, 99))
    got = await _read(database, since=now + timedelta(seconds=3), until=now + timedelta(seconds=6))
    assert [traced.output_tokens for traced in got] == [3, 4, 5]
    assert [traced.output_tokens for traced in await _read(database, model="b")] == [99]
    async with database.read() as connection:
        assert await traced_models(connection, now, now + HOUR) == {"a": 10, "b": 1}


async def test_a_round_that_failed_is_stored_once_later(database: Database) -> None:
    away = Database(f"postgresql://nobody:x@127.0.0.1:{free_port()}/none", pool_size=1)
    store = RequestTraceStore(away, SystemClock())
    await _put(store, "a", _traced(datetime.now(UTC)))
    assert await _read(database) == []
    store.database = database
    await store.store()
    await store.store()
    assert len(await _read(database)) == 1
    await away.close()


async def test_while_postgresql_is_away_the_oldest_go_and_are_counted(
    database: Database, monkeypatch, caplog
) -> None:
    away = Database(f"postgresql://nobody:x@127.0.0.1:{free_port()}/none", pool_size=1)
    monkeypatch.setattr("scheduler.request_trace_store.MAX_UNSTORED_BYTES", 200)
    store = RequestTraceStore(away, SystemClock())
    for number in range(10):
        await _put(store, "a", _traced(datetime.now(UTC), number))
    dropped = store.trace.dropped
    assert 5 <= dropped <= 9
    told = [record.getMessage() for record in caplog.records if "are dropped" in record.getMessage()]
    assert len(told) == 1, "once, not at every round"
    await store.close()
    assert f"{10 - dropped} recorded requests are lost" in caplog.text
    store.database = database
    await store.store()
    assert f"{dropped} recorded requests were dropped" in caplog.text
    assert sorted(traced.output_tokens for traced in await _read(database)) == list(range(dropped, 10))
    await away.close()


async def test_a_round_that_ends_while_it_packs_loses_nothing(database: Database, monkeypatch) -> None:
    store = RequestTraceStore(database, SystemClock())
    monkeypatch.setattr("scheduler.request_trace_store.BATCH", 2)
    row, left = request_trace_store._row, [2]

    def interrupted(model: str, requests: list[TracedRequest]) -> dict[str, Any]:
        left[0] -= 1
        if left[0] == 0:
            raise TimeoutError
        return row(model, requests)

    monkeypatch.setattr("scheduler.request_trace_store._row", interrupted)
    now = datetime.now(UTC)
    await _put(store, "a", *(_traced(now, number) for number in range(5)))
    assert await _read(database) == []
    await _put(store, "b", _traced(now, 5))
    await store.store()
    assert sorted(traced.output_tokens for traced in await _read(database)) == list(range(6))
    assert store.trace.dropped == 0


async def test_a_batch_that_fits_no_row_stops_nobody(database: Database, caplog) -> None:
    store = RequestTraceStore(database, SystemClock())
    now = datetime.now(UTC)
    await _put(store, "a", msgspec.structs.replace(_traced(now), at_ms=10**17))
    await _put(store, "b", _traced(now))
    assert len(await _read(database)) == 1
    assert store.trace.dropped == 1
    assert "cannot be packed" in caplog.text


async def test_a_name_that_no_column_holds_stops_nobody(database: Database) -> None:
    store = RequestTraceStore(database, SystemClock())
    now = datetime.now(UTC)
    await _put(store, "a\x00" + "b" * 5000, _traced(now))
    await _put(store, "c", _traced(now))
    assert len(await _read(database)) == 2


async def test_old_ones_are_forgotten_and_the_oldest_beyond_the_room(database: Database) -> None:
    store = RequestTraceStore(database, SystemClock())
    now = datetime.now(UTC)
    for hours in (24 * 9, 24 * 6, 3, 2, 1):
        await _put(store, "a", _traced(now - timedelta(hours=hours), hours))
    assert await forget_job(database, Settings(database_url=database.url)) == 1
    async with database.system() as connection:
        sizes = "SELECT octet_length(data) FROM request_traces ORDER BY last_at DESC LIMIT 2"
        room = sum((await connection.execute(text(sizes))).scalars())
        assert await prune_traces(connection, 7, room) == 2
    kept = await _read(database, since=now - timedelta(days=30))
    assert [traced.output_tokens for traced in kept] == [2, 1]


async def test_customers_sessions_cannot_read_them(database: Database) -> None:
    async with database.engine.connect() as connection:
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            allowed = text(f"SELECT has_table_privilege('penstock_app', 'request_traces', '{right}')")
            assert await connection.scalar(allowed) is False
        assert (await connection.execute(select(request_traces.c.model))).all() == []


async def test_nothing_is_stored_where_recording_is_off(database: Database) -> None:
    store = RequestTraceStore(database, SystemClock(), recording=False)
    async with (
        service(listeners=[store.trace]) as scheduler,
        agent(scheduler.port, replica()),
        client(scheduler.port) as api,
    ):
        placement = await api.place(request())
        api.release(Released(placement.request_id, placement.replica_id))
    await store.close()
    assert MODEL not in {model for model in await _models(database)}


async def _models(database: Database) -> list[str]:
    async with database.read() as connection:
        return list((await connection.execute(select(request_traces.c.model))).scalars())
