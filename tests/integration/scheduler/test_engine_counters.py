"""Engines' counters in PostgreSQL: one report that is refused does not hold up the others."""

import pytest
from sqlalchemy import text

from core.db import Database
from scheduler import engine_counters
from scheduler.engine_counters import FORGET_S, EngineCounterStore
from tests.support.scheduling import beat, replica
from workers.engine_counters import record_counters
from workers.wire import EngineCounters, ReplicaStatus


def counting(name: str, tokens: int) -> ReplicaStatus:
    return replica(name, boot_id=f"boot-of-{name}", counters=EngineCounters(prompt_tokens=tokens))


async def stored(database: Database) -> dict[str, int]:
    async with database.read() as connection:
        rows = await connection.execute(text("SELECT replica_id, prompt_tokens FROM engine_counters"))
        return {row.replica_id: row.prompt_tokens for row in rows}


@pytest.mark.parametrize("name", ["b", "b\x00"], ids=["beyond bigint", "a text that no column holds"])
async def test_a_report_that_is_refused_does_not_stop_the_others(
    database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    told: list[str] = []
    monkeypatch.setattr(engine_counters.log, "error", lambda message, *facts: told.append(message % facts))
    store = EngineCounterStore(database, record_counters, lambda: now)
    refused = counting(name, 2**63 if name == "b" else 1)
    for status in (counting("a", 10), refused, counting("c", 30)):
        store.on_heartbeat(beat(status), lambda _: 0, now)
    await store.store()
    await store.store()
    assert await stored(database) == {"a": 10, "c": 30}
    assert len(told) == 1
    assert f"boot-of-{name}" in told[0]
    assert [boot.status.replica_id for boot in store.tracker.due(now)] == [name]
    store.on_heartbeat(beat(counting("a", 11)), lambda _: 0, now)
    await store.store()
    assert await stored(database) == {"a": 11, "c": 30}
    now += FORGET_S + 1
    await store.store()
    assert store.tracker.due(now) == [], "an engine that is gone is not tried for ever"


async def test_a_report_that_is_good_again_is_stored(database: Database) -> None:
    store = EngineCounterStore(database, record_counters, lambda: 100.0)
    store.on_heartbeat(beat(counting("b", 2**63)), lambda _: 0, 100.0)
    await store.store()
    store.on_heartbeat(beat(counting("b", 7)), lambda _: 0, 100.0)
    await store.store()
    assert await stored(database) == {"b": 7}
    assert store.tracker.due(100.0) == []
