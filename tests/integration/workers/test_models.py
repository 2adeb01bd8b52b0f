"""Models: administrative acts, ModelDirectory, and host-hours."""

from datetime import datetime

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import text

from admin import model_life, models
from admin.actor import Actor
from core.db import Database
from core.errors import Conflict, InvalidRequest, ModelNotFound, NotFound, PermissionDenied, Unavailable
from tests.support.clock import ManualClock
from workers import models as workers_models
from workers.host_hours import record_heartbeat
from workers.models import ModelDirectory, ModelSpec
from workers.wire import Heartbeat

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")


async def audit(database: Database) -> list[tuple[str, str]]:
    async with database.read() as connection:
        rows = await connection.execute(text("SELECT action, object_id FROM audit_log ORDER BY at, id"))
        return [(row.action, row.object_id) for row in rows]


async def test_life_of_a_model(database: Database) -> None:
    added = await models.add_model(database, ADMIN, name="llama-3.3-70b")
    assert added.status == "active"
    with pytest.raises(Conflict, match="already"):
        await models.add_model(database, ADMIN, name="llama-3.3-70b")
    with pytest.raises(InvalidRequest, match="the catalog has no model 'nope'"):
        await models.add_model(database, ADMIN, name="nope")
    await models.set_alias(database, ADMIN, name="llama-latest", target="llama-3.3-70b")
    with pytest.raises(Conflict, match="is an alias of"):
        await models.set_alias(database, ADMIN, name="other", target="llama-latest")
    with pytest.raises(NotFound):
        await models.set_alias(database, ADMIN, name="other", target="missing")

    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.resolve("llama-latest").name == "llama-3.3-70b"
    assert [model.name for model in directory.list()] == ["llama-3.3-70b"]
    with pytest.raises(ModelNotFound, match=r"Did you mean 'llama-3\.3-70b'"):
        directory.resolve("llama-3.3-70")

    await model_life.deprecate_model(database, ADMIN, name="llama-3.3-70b", note="use another")
    await directory.refresh()
    assert directory.resolve("llama-3.3-70b").status == "deprecated"
    retired = await model_life.retire_model(database, ADMIN, name="llama-3.3-70b")
    assert (retired.status, retired.note) == ("retired", "use another")
    await directory.refresh()
    for name in ("llama-3.3-70b", "llama-latest"):
        with pytest.raises(ModelNotFound):
            directory.resolve(name)
    with pytest.raises(Conflict, match="retired"):
        await model_life.deprecate_model(database, ADMIN, name="llama-3.3-70b")
    assert (await models.add_model(database, ADMIN, name="llama-3.3-70b")).status == "active"
    assert await audit(database) == [
        ("model.add", "llama-3.3-70b"),
        ("model.alias", "llama-latest"),
        ("model.deprecate", "llama-3.3-70b"),
        ("model.retire", "llama-3.3-70b"),
        ("model.add", "llama-3.3-70b"),
    ]


async def test_a_retired_name_may_be_an_alias_of_its_successor(database: Database) -> None:
    await models.add_model(database, ADMIN, name="minimax-m2.5")
    await models.add_model(database, ADMIN, name="qwen3.5-397b")
    with pytest.raises(Conflict, match="is a live model"):
        await models.set_alias(database, ADMIN, name="minimax-m2.5", target="qwen3.5-397b")
    await model_life.retire_model(database, ADMIN, name="minimax-m2.5")
    await models.set_alias(database, ADMIN, name="minimax-m2.5", target="qwen3.5-397b")
    directory = ModelDirectory(database)
    await directory.refresh()
    assert directory.resolve("minimax-m2.5").name == "qwen3.5-397b"


async def test_models_that_cannot_be_read_are_used_for_a_while_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_models, "POLL_S", 3600.0)
    clock = ManualClock()
    await models.add_model(database, ADMIN, name="minimax-m2.5")
    directory = ModelDirectory(database, max_age_s=60.0, now=clock.monotonic)
    await directory.start()
    try:
        clock.advance(60.0)
        assert directory.fresh
        assert directory.resolve("minimax-m2.5").name == "minimax-m2.5"
        assert REGISTRY.get_sample_value("penstock_models_age_seconds") == 60.0
        clock.advance(1.0)
        assert not directory.fresh
        with pytest.raises(Unavailable, match="not been read for more than 60 s") as refused:
            directory.resolve("minimax-m2.5")
        assert refused.value.retry_after_s
        await directory.refresh()
        assert directory.resolve("minimax-m2.5").name == "minimax-m2.5"
    finally:
        await directory.close()


async def test_only_platform_admins_change_models(database: Database) -> None:
    finance = Actor(kind="user", id="x", label="x", role="finance")
    with pytest.raises(PermissionDenied):
        await models.add_model(database, finance, name="penstock/tiny")
    assert await models.list_models(database, finance) == []


def heartbeat(seq: int, state_seconds: dict[str, int], model_seconds: dict[str, dict[str, int]]) -> Heartbeat:
    return Heartbeat(
        agent_id="a", host_id="h", boot_id="b", seq=seq, region="local", host_kind="local-cpu", gpus=0,
        replicas=[], state_seconds=state_seconds, model_seconds=model_seconds,
    )  # fmt: skip


async def test_host_seconds_are_booked_once(database: Database) -> None:
    beats = [
        heartbeat(1, {"loading": 5}, {"m": {"loading": 5}}),
        heartbeat(2, {"loading": 5, "serving": 3}, {"m": {"loading": 5, "serving": 3}}),
        heartbeat(2, {"loading": 5, "serving": 3}, {"m": {"loading": 5, "serving": 3}}),
        heartbeat(1, {"loading": 5}, {"m": {"loading": 5}}),
        heartbeat(
            3,
            {"loading": 5, "serving": 9, "warm_idle": 2},
            {"m": {"loading": 5, "serving": 9, "warm_idle": 2}},
        ),
    ]
    for item in beats:
        async with database.system() as connection:
            await record_heartbeat(connection, item)
    async with database.read() as connection:
        rows = (
            await connection.execute(
                text("SELECT state, sum(seconds), min(hour) FROM host_seconds GROUP BY state")
            )
        ).all()
        by_model = (
            await connection.execute(text("SELECT state, sum(seconds) FROM model_seconds GROUP BY state"))
        ).all()
        host = (
            await connection.execute(text("SELECT host_kind, last_seen >= first_seen AS seen FROM hosts"))
        ).one()
    assert {state: int(seconds) for state, seconds, _ in rows} == {"loading": 5, "serving": 9, "warm_idle": 2}
    assert {state: int(seconds) for state, seconds in by_model} == {
        "loading": 5,
        "serving": 9,
        "warm_idle": 2,
    }
    assert all(isinstance(hour, datetime) and hour.minute == hour.second == 0 for _, _, hour in rows)
    assert (host.host_kind, host.seen) == ("local-cpu", True)


async def test_seconds_of_two_hours_add_up(database: Database) -> None:
    async with database.system() as connection:
        await record_heartbeat(connection, heartbeat(1, {"serving": 10}, {}))
        await connection.execute(text("UPDATE host_seconds SET hour = hour - interval '1 hour'"))
        await record_heartbeat(connection, heartbeat(2, {"serving": 25}, {}))
    async with database.read() as connection:
        rows = (
            (await connection.execute(text("SELECT seconds FROM host_seconds ORDER BY hour"))).scalars().all()
        )
    assert rows == [10, 15]


async def test_catalog_prices_are_seeded(database: Database) -> None:
    async with database.read() as connection:
        price = await connection.execute(
            text("SELECT usd_pico_per_hour FROM host_prices WHERE host_kind = 'gpu-h100x8-640gb'")
        )
        assert int(price.scalar_one()) == 35_280_000_000_000


async def test_a_model_of_an_external_engine_describes_itself(database: Database) -> None:
    spec = ModelSpec(8192, 4096)
    added = await models.add_model(database, ADMIN, name="meta-llama/Llama-3.1-8B", spec=spec)
    assert added.spec == spec
    directory = ModelDirectory(database)
    await directory.refresh()
    found = directory.resolve("meta-llama/Llama-3.1-8B")
    assert (found.title, found.context_len, found.max_output_tokens) == (found.name, 8192, 4096)
    assert found.capabilities == ("chat", "completions", "tools", "json", "logprobs")

    longer = ModelSpec(16384, 4096)
    for _ in range(2):
        await models.describe_model(database, ADMIN, name=added.name, spec=longer)
    await directory.refresh()
    assert directory.resolve(added.name).context_len == 16384
    await model_life.retire_model(database, ADMIN, name=added.name)
    assert (await models.add_model(database, ADMIN, name=added.name)).spec == longer
    assert [action for action, _ in await audit(database)] == [
        "model.add", "model.describe", "model.retire", "model.add",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("two words", ModelSpec(10, 1)),
        ("x" * 201, ModelSpec(10, 1)),
        ("m", ModelSpec(1, 1)),
        ("m", ModelSpec(10, 11)),
        ("m", ModelSpec(2**31, 1)),
    ],
)
async def test_a_description_out_of_range_is_refused(database: Database, name: str, spec: ModelSpec) -> None:
    with pytest.raises(InvalidRequest):
        await models.add_model(database, ADMIN, name=name, spec=spec)
