"""Host-hours: seconds per state from heartbeats, by UTC hour of the database's clock.

A heartbeat holds totals since the agent's accounting began (`boot_id`), so a lost one costs nothing and a repeated one
changes nothing. The increase, the total less all stored hours of that boot, is added to the hour in which the heartbeat
arrives, at most a few seconds late.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from workers.tables import host_seconds, hosts, model_seconds
from workers.wire import Heartbeat

MAX_TEXT = 255
"""Longest address, as for DNS names, and version that are kept, in characters."""


async def record_heartbeat(connection: AsyncConnection, hb: Heartbeat) -> None:
    """Store what `hb` adds. Idempotent; a heartbeat older than the last stored one adds nothing."""
    # Two schedulers may overlap during a restart, so the lock admits one writer per accounting.
    key = f"{hb.host_id}/{hb.boot_id}"
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 4))"), {"key": key})
    facts = {
        "host_kind": hb.host_kind,
        "region": hb.region,
        "gpus": hb.gpus,
        "address": hb.address[:MAX_TEXT],
        "agent_version": hb.version[:MAX_TEXT],
    }
    host = insert(hosts).values(host_id=hb.host_id, **facts)
    await connection.execute(
        host.on_conflict_do_update(
            index_elements=[hosts.c.host_id],
            set_={**{name: host.excluded[name] for name in facts}, "last_seen": func.now()},
        )
    )
    await _book_host(connection, hb)
    await _book_models(connection, hb)


async def _book_host(connection: AsyncConnection, hb: Heartbeat) -> None:
    booked = await connection.execute(
        select(host_seconds.c.state, func.sum(host_seconds.c.seconds))
        .where(host_seconds.c.host_id == hb.host_id, host_seconds.c.boot_id == hb.boot_id)
        .group_by(host_seconds.c.state)
    )
    before = {str(state): int(seconds) for state, seconds in booked}
    rows = [
        {"host_id": hb.host_id, "boot_id": hb.boot_id, "hour": _hour(), "state": state, "seconds": added}
        for state, total in hb.state_seconds.items()
        if (added := total - before.get(state, 0)) > 0
    ]
    for row in rows:
        booking = insert(host_seconds).values(row)
        await connection.execute(
            booking.on_conflict_do_update(
                index_elements=list(host_seconds.primary_key.columns),
                set_={"seconds": host_seconds.c.seconds + booking.excluded.seconds},
            )
        )


async def _book_models(connection: AsyncConnection, hb: Heartbeat) -> None:
    booked = await connection.execute(
        select(model_seconds.c.model, model_seconds.c.state, func.sum(model_seconds.c.seconds))
        .where(model_seconds.c.host_id == hb.host_id, model_seconds.c.boot_id == hb.boot_id)
        .group_by(model_seconds.c.model, model_seconds.c.state)
    )
    before = {(str(model), str(state)): int(seconds) for model, state, seconds in booked}
    for model, states in hb.model_seconds.items():
        for state, total in states.items():
            added = total - before.get((model, state), 0)
            if added <= 0:
                continue
            booking = insert(model_seconds).values(
                host_id=hb.host_id, boot_id=hb.boot_id, hour=_hour(), model=model, state=state, seconds=added
            )
            await connection.execute(
                booking.on_conflict_do_update(
                    index_elements=list(model_seconds.primary_key.columns),
                    set_={"seconds": model_seconds.c.seconds + booking.excluded.seconds},
                )
            )


def _hour() -> ColumnElement[datetime]:
    return func.date_trunc("hour", func.now(), "UTC")
