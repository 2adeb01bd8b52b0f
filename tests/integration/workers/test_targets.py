"""Targets that an admin sets: stored over the catalog's, recorded, and read by the scheduler while it runs."""

import json

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from admin import models, targets
from admin.actor import Actor
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from tests.support.scheduling import MODEL, agent, replica, service
from tests.support.waiting import until
from workers.catalog import load_catalog
from workers.models import ModelSpec
from workers.targets import TargetDirectory
from workers.wire import Targets, TierTargets

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
READER = Actor(kind="cli", id="f", label="f", role="finance")


async def test_an_admin_changes_one_figure_of_one_tier_and_takes_it_back(database: Database) -> None:
    await models.add_model(database, ADMIN, name="llama-3.3-70b")
    level = load_catalog().model("llama-3.3-70b").service_level
    before = await targets.list_targets(database, READER)
    assert [(view.tier, view.ttft_s, view.tpot_s, view.source) for view in before] == [
        (tier, level.of(tier).ttft_s, level.of(tier).tpot_s, "catalog")
        for tier in ("priority", "standard", "batch")
    ]
    after = await targets.set_targets(database, ADMIN, model="llama-3.3-70b", tier="standard", ttft_s=3.5)
    assert (after.ttft_s, after.tpot_s, after.source) == (3.5, level.tpot_s, "admin")
    again = await targets.set_targets(database, ADMIN, model="llama-3.3-70b", tier="standard", tpot_s=0.2)
    assert (again.ttft_s, again.tpot_s) == (3.5, 0.2)
    sources = [view.source for view in await targets.list_targets(database, READER, model="llama-3.3-70b")]
    assert sources == ["catalog", "admin", "catalog"]
    back = await targets.reset_targets(
        database, ADMIN, model="llama-3.3-70b", tier="standard", reason="the trial is over"
    )
    assert back == before[1]
    async with database.read() as connection:
        rows = list(
            await connection.execute(
                text("SELECT action, object_id, reason, before, after FROM audit_log ORDER BY at, id")
            )
        )
    assert [row.action for row in rows] == [
        "model.add", "model.set_targets", "model.set_targets", "model.reset_targets",
    ]  # fmt: skip
    assert (rows[1].before["ttft_s"], rows[1].after["ttft_s"]) == (level.ttft_s, 3.5)
    assert (rows[3].object_id, rows[3].reason) == ("llama-3.3-70b", "the trial is over")


async def test_wrong_targets_are_refused(database: Database) -> None:
    await models.add_model(database, ADMIN, name="llama-3.3-70b")
    await models.set_alias(database, ADMIN, name="llama", target="llama-3.3-70b")
    with pytest.raises(InvalidRequest, match="tpot_s is 0, must be between"):
        await targets.set_targets(database, ADMIN, model="llama-3.3-70b", tier="batch", tpot_s=0.0)
    with pytest.raises(InvalidRequest, match="ttft_s is nan"):
        await targets.set_targets(database, ADMIN, model="llama-3.3-70b", tier="batch", ttft_s=float("nan"))
    with pytest.raises(InvalidRequest, match="nothing to change"):
        await targets.set_targets(database, ADMIN, model="llama-3.3-70b", tier="batch")
    with pytest.raises(NotFound, match="no model 'nope' is offered"):
        await targets.set_targets(database, ADMIN, model="nope", tier="batch", ttft_s=1.0)
    with pytest.raises(Conflict, match="is an alias of"):
        await targets.list_targets(database, ADMIN, model="llama")
    with pytest.raises(PermissionDenied):
        await targets.set_targets(database, READER, model="llama-3.3-70b", tier="batch", ttft_s=1.0)
    assert {view.source for view in await targets.list_targets(database, ADMIN)} == {"catalog"}


async def test_the_model_of_an_external_engine_can_be_given_targets(database: Database) -> None:
    await models.add_model(database, ADMIN, name="org/mine", spec=ModelSpec(8192, 1024))
    [_, standard, _] = await targets.list_targets(database, ADMIN, model="org/mine")
    assert standard.source == "default"
    await targets.set_targets(database, ADMIN, model="org/mine", tier="standard", tpot_s=0.05)
    directory = TargetDirectory(database)
    await directory.refresh()
    assert directory.applied("org/mine", Targets(2.0, 60.0)) == Targets(2.0, 0.05)


async def test_the_running_scheduler_follows(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.targets.POLL_S", 0.05)
    await models.add_model(database, ADMIN, name=MODEL)
    directory = TargetDirectory(database)
    directory.start()
    try:
        async with service(targets=directory) as scheduler, agent(scheduler.port, replica()):
            replicas = scheduler.state.fleet.replicas
            known = await until(lambda: replicas.get("host/r0"))
            assert known.status.targets == Targets()
            await targets.set_targets(database, ADMIN, model=MODEL, tier="priority", ttft_s=0.5, tpot_s=0.03)
            await until(lambda: known.status.targets.priority == TierTargets(0.5, 0.03))
            await targets.reset_targets(database, ADMIN, model=MODEL, tier="priority")
            await until(lambda: known.status.targets == Targets())
    finally:
        await directory.close()


async def test_the_last_targets_stay_while_postgresql_is_away(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    await targets.set_targets(database, ADMIN, model=MODEL, tier="standard", ttft_s=9.0)
    directory = TargetDirectory(database)
    await directory.refresh()
    away = Database("postgresql://penstock@127.0.0.1:1/none", pool_size=1)
    monkeypatch.setattr(directory, "_database", away)
    await directory.refresh()
    await directory.refresh()
    assert directory.applied(MODEL, Targets()).ttft_s == 9.0
    assert caplog.text.count("targets cannot be read") == 1
    monkeypatch.setattr(directory, "_database", database)
    await targets.reset_targets(database, ADMIN, model=MODEL, tier="standard")
    await directory.refresh()
    assert directory.applied(MODEL, Targets()) == Targets()


def test_the_commands_print_what_holds(pg_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", redis_url)

    def penstock(*words: str) -> object:
        result = CliRunner().invoke(app, ["models", *words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    penstock("add", "llama-3.3-70b")
    found = penstock(
        "set-targets", "llama-3.3-70b", "--tier", "priority", "--ttft-s", "0.8", "--reason", "contract 12"
    )
    assert (found["ttft_s"], found["source"]) == (0.8, "admin")
    assert [row["source"] for row in penstock("targets", "llama-3.3-70b")] == ["admin", "catalog", "catalog"]
    assert penstock("reset-targets", "llama-3.3-70b", "--tier", "priority")["source"] == "catalog"
    wrong = CliRunner().invoke(
        app, ["models", "set-targets", "llama-3.3-70b", "--tier", "gold", "--ttft-s", "1"]
    )
    assert wrong.exit_code == 2
