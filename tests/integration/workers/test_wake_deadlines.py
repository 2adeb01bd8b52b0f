"""How long requests for a model wait while a replica wakes: set by an admin, by the catalog, or by the settings."""

import json

import msgspec
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from admin import models
from admin.actor import Actor
from admin.wake_deadlines import WakeDeadlineView, list_wake_deadlines, set_wake_deadline
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from workers.catalog import load_catalog
from workers.models import ModelDirectory, ModelSpec

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
READER = Actor(kind="cli", id="f", label="f", role="finance")
MODEL = "llama-3.3-70b"


async def test_an_admins_deadline_comes_before_the_catalogs_and_that_before_the_settings(
    database: Database,
) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    packaged = load_catalog()
    entry = msgspec.structs.replace(packaged.models[MODEL], wake_deadline_s=240.0)
    described = msgspec.structs.replace(packaged, models=packaged.models | {MODEL: entry})
    plain, of_catalog = ModelDirectory(database, packaged), ModelDirectory(database, described)
    for directory in (plain, of_catalog):
        await directory.refresh()
    assert (plain.wake_deadline_s(MODEL), of_catalog.wake_deadline_s(MODEL)) == (None, 240.0)
    [before] = await list_wake_deadlines(database, READER)
    after = await set_wake_deadline(database, ADMIN, model=MODEL, wake_deadline_s=300.0, reason="slow disks")
    assert (before, after) == (
        WakeDeadlineView(MODEL, None, "setting"),
        WakeDeadlineView(MODEL, 300.0, "admin"),
    )
    await of_catalog.refresh()
    assert of_catalog.resolve(MODEL).wake_deadline_s == 300.0
    assert await set_wake_deadline(database, ADMIN, model=MODEL, wake_deadline_s=None) == before
    await of_catalog.refresh()
    assert of_catalog.wake_deadline_s(MODEL) == 240.0
    assert of_catalog.wake_deadline_s("unknown") is None
    async with database.read() as connection:
        rows = list(
            await connection.execute(
                text("SELECT before, after, reason FROM audit_log WHERE action = 'model.set_wake_deadline'")
            )
        )
    assert {(row.before["wake_deadline_s"], row.after["wake_deadline_s"], row.reason) for row in rows} == {
        (None, 300.0, "slow disks"),
        (300.0, None, None),
    }


@pytest.mark.parametrize("seconds", [-1.0, 601.0, float("nan")])
async def test_a_deadline_out_of_range_is_refused(database: Database, seconds: float) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    with pytest.raises(InvalidRequest, match="must be between 0 and 600 seconds"):
        await set_wake_deadline(database, ADMIN, model=MODEL, wake_deadline_s=seconds)


async def test_only_a_model_that_penstock_scales_has_one(database: Database) -> None:
    await models.add_model(database, ADMIN, name="elsewhere", spec=ModelSpec(8192, 4096))
    with pytest.raises(Conflict, match="external engines"):
        await set_wake_deadline(database, ADMIN, model="elsewhere", wake_deadline_s=1.0)
    with pytest.raises(NotFound):
        await list_wake_deadlines(database, ADMIN, model="unknown")
    with pytest.raises(PermissionDenied):
        await set_wake_deadline(database, READER, model="elsewhere", wake_deadline_s=1.0)
    assert await list_wake_deadlines(database, ADMIN) == []


def test_the_commands_print_what_holds(pg_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", redis_url)

    def penstock(*words: str) -> str:
        result = CliRunner().invoke(app, ["models", *words, "--json"])
        assert result.exit_code == 0, result.output
        return result.stdout

    penstock("add", MODEL)
    found = json.loads(penstock("set-wake-deadline", MODEL, "45"))
    assert found == {"model": MODEL, "wake_deadline_s": 45.0, "source": "admin"}
    assert json.loads(penstock("wake-deadlines", MODEL)) == [found]
    assert json.loads(penstock("set-wake-deadline", MODEL, "default"))["source"] == "setting"
    wrong = CliRunner().invoke(app, ["models", "set-wake-deadline", MODEL, "soon"])
    assert isinstance(wrong.exception, InvalidRequest)
    assert "neither seconds nor" in str(wrong.exception)
