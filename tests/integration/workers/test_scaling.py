"""Limits of the autoscaler that an admin sets: checked, stored, recorded, and read by the scheduler while it runs."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.event import listen
from typer.testing import CliRunner

from admin import acting, economics, model_life, models, scaling
from admin.actor import Actor
from cli.main import app
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from scheduler.autoscaling import LivePlanner, place_limits
from tests.support.waiting import until
from workers.acting.plan import Mode
from workers.catalog import load_catalog
from workers.models import ModelSpec
from workers.scaling import (
    RETIRED,
    KindReplicas,
    RegionReplicas,
    ScalingDirectory,
    ScalingLimits,
    read_effective_limits,
)

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
READER = Actor(kind="cli", id="f", label="f", role="finance")
MODEL, KIND = "llama-3.3-70b", "gpu-h100x8-640gb"


async def test_an_admin_changes_one_limit_at_a_time_and_takes_all_back(database: Database) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    [before] = await scaling.list_scaling(database, READER)
    assert before == scaling.ScalingView(MODEL, 0, 64, None, [], "default")
    await scaling.set_scaling(database, ADMIN, model=MODEL, min_awake=2, max_awake=6)
    after = await scaling.set_scaling(
        database, ADMIN, model=MODEL, budget_usd_per_hour="128.5", host_kinds=[KIND], reason="the launch"
    )
    assert after == scaling.ScalingView(MODEL, 2, 6, "128.50", [KIND], "admin")
    assert await scaling.list_scaling(database, READER, model=MODEL) == [after]
    free = await scaling.set_scaling(database, ADMIN, model=MODEL, budget_usd_per_hour="none", host_kinds=[])
    assert (free.budget_usd_per_hour, free.host_kinds, free.min_awake) == (None, [], 2)
    assert await scaling.reset_scaling(database, ADMIN, model=MODEL, reason="it is over") == before
    async with database.read() as connection:
        rows = list(
            await connection.execute(
                text("SELECT action, object_id, reason, before, after FROM audit_log ORDER BY at, id")
            )
        )
    assert [row.action for row in rows[1:]] == ["model.set_scaling"] * 3 + ["model.reset_scaling"]
    assert (rows[2].before["min_awake"], rows[2].after["budget_usd_per_hour"]) == (2, "128.50")
    assert (rows[4].object_id, rows[4].reason, rows[4].after["source"]) == (MODEL, "it is over", "default")


async def test_limits_of_regions_are_set_read_and_replaced(database: Database) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    after = await scaling.set_scaling(database, ADMIN, model=MODEL, regions=["TOR1=1-4", "nyc2=0-2"])
    assert after.regions == ["tor1=1-4", "nyc2=0-2"]
    kept = await scaling.set_scaling(database, ADMIN, model=MODEL, max_awake=6)
    assert (kept.max_awake, kept.regions) == (6, after.regions)
    async with database.read() as connection:
        limits = (await read_effective_limits(connection))[MODEL]
    assert limits.regions == (RegionReplicas("tor1", 1, 4), RegionReplicas("nyc2", 0, 2))
    until_then = await acting.hold_replicas(
        database, ADMIN, model=MODEL, awake=2, hold_for=timedelta(hours=1), reason="launch"
    )
    assert until_then.awake == 2
    async with database.read() as connection:
        assert (await read_effective_limits(connection))[MODEL].regions == ()
    assert (await scaling.set_scaling(database, ADMIN, model=MODEL, regions=[])).regions == []


async def test_limits_of_kinds_are_set_read_and_replaced(database: Database) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    after = await scaling.set_scaling(database, ADMIN, model=MODEL, kinds=[f"{KIND}=1-4"])
    assert after.kinds == [f"{KIND}=1-4"]
    kept = await scaling.set_scaling(database, ADMIN, model=MODEL, regions=["tor1=1-1"], max_awake=6)
    assert (kept.kinds, kept.regions) == (after.kinds, ["tor1=1-1"])
    async with database.read() as connection:
        limits = (await read_effective_limits(connection))[MODEL]
    assert limits.kinds == (KindReplicas(KIND, 1, 4),)
    assert [(each.where.words, each.least, each.most) for each in place_limits(limits)] == [
        ("in tor1", 1, 1),
        (f"on hosts of kind {KIND}", 1, 4),
    ]
    await acting.hold_replicas(
        database, ADMIN, model=MODEL, awake=2, hold_for=timedelta(hours=1), reason="launch"
    )
    async with database.read() as connection:
        assert (await read_effective_limits(connection))[MODEL].kinds == ()
    assert (await scaling.set_scaling(database, ADMIN, model=MODEL, kinds=[])).kinds == []


async def test_wrong_limits_are_refused(database: Database) -> None:
    await models.add_model(database, ADMIN, name=MODEL)
    await models.add_model(database, ADMIN, name="deepseek-v3.2")
    await models.add_model(database, ADMIN, name="org/mine", spec=ModelSpec(8192, 1024))
    await models.set_alias(database, ADMIN, name="llama", target=MODEL)

    async def refused(error: type[Exception], words: str, **given: object) -> None:
        with pytest.raises(error, match=words):
            await scaling.set_scaling(database, ADMIN, **{"model": MODEL} | given)  # type: ignore[arg-type]

    await refused(InvalidRequest, "nothing to change")
    await refused(
        InvalidRequest, r"min_awake is 3, must be between 0 and max_awake \(2\)", min_awake=3, max_awake=2
    )
    await refused(InvalidRequest, "min_awake is -1", min_awake=-1)
    await refused(InvalidRequest, "must be at most 1024", max_awake=5_000)
    await refused(
        InvalidRequest, "not a decimal amount of dollars: 'much', or `none`", budget_usd_per_hour="much"
    )
    await refused(InvalidRequest, "must not be negative", budget_usd_per_hour="-1")
    await refused(
        InvalidRequest, "does not run on hosts of kind 'gpu-x'; it runs on: gpu-h100x8", host_kinds=["gpu-x"]
    )
    await refused(InvalidRequest, "names a kind twice", host_kinds=[KIND, KIND])
    await refused(
        InvalidRequest, "'gb200-nvl4' have no price", model="deepseek-v3.2", host_kinds=["gb200-nvl4"]
    )
    await refused(InvalidRequest, "has no profile 'dp9'", profile="dp9")
    for wrong in ("tor1", "tor1=1", "tor1=a-b", "tor1=-1-2", "tor1=1-9999999"):
        await refused(InvalidRequest, f"regions has '{wrong}'; write REGION=MIN-MAX", regions=[wrong])
    await refused(InvalidRequest, "regions contains 'to r'", regions=["to r=0-1"])
    await refused(InvalidRequest, "3 to 2 replicas for tor1", regions=["tor1=3-2"])
    await refused(InvalidRequest, "at most 1024", regions=["tor1=0-2000"])
    await refused(InvalidRequest, "regions names tor1 twice", regions=["tor1=0-1", "TOR1=0-2"])
    await refused(InvalidRequest, f"kinds has '{KIND}'; write KIND=MIN-MAX", kinds=[KIND])
    await refused(InvalidRequest, "does not run on hosts of kind 'gpu-x'", kinds=["gpu-x=0-1"])
    await refused(InvalidRequest, f"kinds names {KIND} twice", kinds=[f"{KIND}=0-1", f"{KIND}=0-2"])
    await refused(InvalidRequest, "kinds wants 3 replicas awake", kinds=[f"{KIND}=3-4"], max_awake=2)
    await refused(InvalidRequest, "wants 5 replicas awake", regions=["tor1=3-4", "nyc2=2-2"], max_awake=4)
    await scaling.set_scaling(database, ADMIN, model="deepseek-v3.2", host_kinds=["gpu-h200x8-1128gb"])
    await refused(
        InvalidRequest, "'dp8' of 'deepseek-v3.2' does not run on hosts", model="deepseek-v3.2", profile="dp8"
    )
    await scaling.reset_scaling(database, ADMIN, model="deepseek-v3.2")
    await refused(NotFound, "no model 'nope' is offered", model="nope", min_awake=1)
    await refused(Conflict, "is an alias of", model="llama", min_awake=1)
    await refused(Conflict, "served by external engines", model="org/mine", min_awake=1)
    with pytest.raises(PermissionDenied):
        await scaling.set_scaling(database, READER, model=MODEL, min_awake=1)
    assert {view.source for view in await scaling.list_scaling(database, ADMIN)} == {"default"}


async def test_the_running_planner_follows_limits_and_prices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.scaling.POLL_S", 0.05)
    await models.add_model(database, ADMIN, name=MODEL)
    directory = ScalingDirectory(database)
    planner = LivePlanner(load_catalog(), directory)
    await directory.start()
    try:
        await scaling.set_scaling(
            database, ADMIN, model=MODEL, min_awake=3, budget_usd_per_hour="100", host_kinds=[KIND]
        )
        await until(lambda: directory.limits.get(MODEL))
        assert directory.limits == {MODEL: ScalingLimits(3, 64, 100 * 10**12, (KIND,))}
        plan = planner.plan({}, [], [], 2.0)
        assert plan is not None
        assert [(row.kind, row.count) for row in plan.create] == [(KIND, 1)], "a host runs four replicas"
        await economics.set_host_price(
            database, ADMIN, host_kind=KIND, usd_per_hour="31.25", source="contract 7"
        )
        await until(lambda: directory.usd_per_hour(KIND) == 31.25)
        await acting.hold_replicas(
            database, ADMIN, model=MODEL, awake=2, hold_for=timedelta(hours=1), reason="launch"
        )
        await model_life.deprecate_model(database, ADMIN, name=MODEL, retires_at="2999-01-01")
        async with database.system() as connection:
            await connection.execute(text("UPDATE models SET retires_at = clock_timestamp()"))
        # Whoever holds its replicas; whether the plan is acted on for it stays as it was.
        await until(lambda: directory.limits == {MODEL: ScalingLimits(0, 0, 100 * 10**12, (KIND,))})
    finally:
        await directory.close()


async def test_a_retired_name_is_planned_for_no_replica_as_an_alias_either(database: Database) -> None:
    for name in (MODEL, "minimax-m2.5", "penstock/tiny"):
        await models.add_model(database, ADMIN, name=name)
    await scaling.set_scaling(database, ADMIN, model=MODEL, min_awake=2)
    for name in (MODEL, "minimax-m2.5"):
        await model_life.retire_model(database, ADMIN, name=name)
    await models.set_alias(database, ADMIN, name=MODEL, target="penstock/tiny")
    directory = ScalingDirectory(database)
    await directory.refresh()
    assert directory.limits == {MODEL: ScalingLimits(0, 0), "minimax-m2.5": RETIRED}
    assert RETIRED.acting is Mode.OFF, "nothing was decided about it, so its engines go on"


async def test_the_limits_that_hold_are_read_in_two_statements(database: Database) -> None:
    """Every scheduler reads them every two seconds."""
    await models.add_model(database, ADMIN, name=MODEL)
    statements: list[str] = []
    async with database.read() as connection:
        listen(connection.sync_connection, "before_cursor_execute", lambda *call: statements.append(call[2]))
        await read_effective_limits(connection)
    assert len(statements) == 2


async def test_the_last_limits_stay_while_postgresql_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.scaling.POLL_S", 0.05)
    await models.add_model(database, ADMIN, name=MODEL)
    await scaling.set_scaling(database, ADMIN, model=MODEL, max_awake=3)
    directory = ScalingDirectory(database)
    await directory.refresh()
    away = Database("postgresql://penstock@127.0.0.1:1/none", pool_size=1)
    monkeypatch.setattr(directory, "_database", away)
    with pytest.raises(OSError, match="Connect"):
        await directory.refresh()
    assert directory.limits[MODEL].max_awake == 3


def test_the_commands_print_what_holds(pg_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", pg_url)
    monkeypatch.setenv("REDIS_URL", redis_url)

    def penstock(*words: str) -> object:
        result = CliRunner().invoke(app, ["models", *words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    penstock("add", MODEL)
    found = penstock("set-scaling", MODEL, "--min", "1", "--max", "8", "--budget", "128", "--host-kind", KIND)
    assert found == {
        "model": MODEL, "min_awake": 1, "max_awake": 8, "budget_usd_per_hour": "128.00", "host_kinds": [KIND],
        "source": "admin", "budget_usd_per_month": None, "profile": "", "acting": "platform",
        "regions": [], "kinds": [], "shares": "",
    }  # fmt: skip
    assert penstock("scaling", MODEL) == [found]
    found = penstock("set-scaling", MODEL, "--budget", "none", "--host-kind", "none")
    assert (found["budget_usd_per_hour"], found["host_kinds"], found["max_awake"]) == (None, [], 8)
    tp2 = penstock("set-scaling", MODEL, "--profile", next(iter(load_catalog().model(MODEL).profiles)))
    assert tp2["profile"] == next(iter(load_catalog().model(MODEL).profiles))
    assert penstock("set-scaling", MODEL, "--profile", "first-fit")["profile"] == ""
    assert penstock("reset-scaling", MODEL)["source"] == "default"


async def test_models_share_hosts_until_that_is_ended_for_one_of_them(database: Database) -> None:
    other, third = "minimax-m2.5", "qwen3.5-397b"
    for name in (MODEL, other, third):
        await models.add_model(database, ADMIN, name=name)
    shares = f"{MODEL}[0-3],{other}"

    async def shared() -> list[str]:
        return [row.shares for row in await scaling.list_scaling(database, READER) if row.shares]

    async def refused(match: str, model: str = MODEL, **change: object) -> None:
        with pytest.raises((InvalidRequest, NotFound), match=match):
            await scaling.set_scaling(database, ADMIN, model=model, **change)  # type: ignore[arg-type]

    await refused("it must name 'llama-3.3-70b' and the models with which", shares=f"{other},{third}")
    await refused("it must name", shares=f"{MODEL}[0-3]")
    await refused("nope", shares=f"{MODEL},nope")
    await refused("names a model twice", shares=f"{MODEL},{MODEL}")
    await refused("at most 200", shares=f"{MODEL},{'x' * 200}")
    await scaling.set_scaling(database, ADMIN, model=other, host_kinds=[KIND])
    await scaling.set_scaling(database, ADMIN, model=MODEL, shares=shares, reason="small ones")
    assert await shared() == [shares, shares]
    async with database.read() as connection:
        limits = await read_effective_limits(connection)
        rows = list(
            await connection.scalars(
                text("SELECT object_id FROM audit_log WHERE reason = 'small ones' ORDER BY object_id")
            )
        )
    assert (limits[MODEL].shares, limits[other].shares, limits[other].host_kinds) == (shares, shares, (KIND,))
    assert rows == [MODEL, other]
    await refused("takes the first that fits", profile="tp2")
    await refused("does not run on hosts of kind", host_kinds=["gpu-h100x1-80gb"])
    await refused("end that first", model=third, shares=f"{third},{other}")
    await scaling.set_scaling(database, ADMIN, model=other, max_awake=3)
    assert await shared() == [shares, shares], "what is not given stays"
    await scaling.set_scaling(database, ADMIN, model=MODEL, shares="none")
    assert await shared() == []
    await scaling.set_scaling(database, ADMIN, model=MODEL, shares=shares)
    await scaling.reset_scaling(database, ADMIN, model=other)
    assert await shared() == []
