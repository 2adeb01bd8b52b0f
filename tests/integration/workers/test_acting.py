"""The autoscaler's plan through PostgreSQL: stored by the scheduler, turned into hosts by jobs, and shown."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from admin import acting, host_contracts, hosts, models, scaling
from admin.actor import Actor
from cli.main import app
from core.db import Database
from core.errors import InvalidRequest, NotFound, PermissionDenied
from core.ids import uuid7
from core.settings import Settings
from jobs import retention
from jobs.acting import act_on_plan
from jobs.hosts import reconcile_hosts
from scheduler.plan_store import PlanStore
from sim.digitalocean.cloud import FakeCloud
from sim.digitalocean.faults import Fault
from tests.support.host_cloud import cloud_settings
from workers.acting.plan import Mode, PlannedCreation, PlannedModel, PlannedRemoval, PoolAct, StoredPlan
from workers.acting.store import add_acts, read_now, write_plan
from workers.providers.intents import Intent, Overtaken, host_name
from workers.providers.interface import DesiredHosts, HostGroup
from workers.providers.store import DatabaseIntents, read_desired, read_recent, set_desired
from workers.scaling import ScalingDirectory, read_effective_limits

ADMIN = Actor(kind="cli", id="test", label="test", role="platform_admin")
FINANCE = Actor(kind="cli", id="f", label="f", role="finance")
MODEL, KIND = "llama-3.3-70b", "gpu-h100x8-640gb"
PROVIDERS = frozenset({"digitalocean"})
TERM = 7


@pytest.fixture
async def acted(database: Database) -> Database:
    """A database whose model may have hosts, with acting on, and a scheduler that has the lease."""
    await models.add_model(database, ADMIN, name=MODEL)
    await scaling.set_scaling(database, ADMIN, model=MODEL, host_kinds=[KIND])
    await acting.set_acting(database, ADMIN, acting="on", reason="test")
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE scheduler_lease SET term = :term"), {"term": TERM})
    return database


def settings(url: str, **fields: object) -> Settings:
    places = "*=digitalocean/nyc2,digitalocean/tor1"
    return cloud_settings(url, host_places=places, hosts_max_usd_per_hour=1_000, **fields)


async def store(database: Database, plan: StoredPlan, *, term: int = TERM, age_s: float = 0.0) -> None:
    async with database.system() as connection:
        await write_plan(connection, term, plan, age_s)


def more(count: int, known: Sequence[str] = ()) -> StoredPlan:
    return StoredPlan(create=(PlannedCreation(KIND, MODEL, count, "more load"),), known=tuple(known))


def fewer(name: str, known: Sequence[str]) -> StoredPlan:
    return StoredPlan(
        models=(PlannedModel(MODEL, 1),),
        destroy=(PlannedRemoval(name, "nothing was awake on it", drained=True),),
        known=tuple(known),
    )


async def intents(database: Database) -> list[Intent]:
    async with database.read() as connection:
        return await read_recent(connection)


async def timeline(database: Database) -> list[tuple[str, str]]:
    return [(row.act, row.result) for row in reversed(await acting.timeline(database, FINANCE))]


async def test_the_plan_creates_hosts_once_and_destroys_the_one_that_it_names(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    await store(acted, more(2))
    for _ in range(4):
        await reconcile_hosts(acted, here)
    names = [one.name for one in await intents(acted)]
    assert sorted(droplet.name for droplet in fake.alive()) == sorted(names)
    assert len(names) == 2
    [row] = await hosts.list_desired(acted, FINANCE)
    assert (row.region, row.model, row.desired, row.owner) == ("nyc2", MODEL, 2, "plan")
    await store(acted, fewer(names[0], names))
    for _ in range(4):
        await reconcile_hosts(acted, here)
    assert [droplet.name for droplet in fake.alive()] == names[1:]
    assert await timeline(acted) == [("create", "done")] * 2 + [("destroy", "done")]
    [gone] = [one for one in await hosts.list_intents(acted, FINANCE, ended=True) if one.name == names[0]]
    assert gone.why == "the autoscaler's plan: nothing was awake on it"


async def test_a_host_under_a_contract_stays_until_it_ends_and_takes_no_budget(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    _, url = cloud
    here = settings(url)
    contract = await host_contracts.add_contract(
        acted, ADMIN, kind=KIND, count=1, usd_per_hour="30.00", region="NYC2", source="17", reason="signed"
    )
    # The budget has no room for a host: the covered one is created all the same, another one is not.
    await acting.set_acting(acted, ADMIN, budget_usd_per_month="0.01", reason="test")
    await store(acted, more(2))
    for _ in range(4):
        await reconcile_hosts(acted, here)
    [intent] = await intents(acted)
    [host] = await hosts.list_hosts(acted, FINANCE)
    assert (host.name, host.contract_id) == (intent.name, contract.contract_id)
    [shown] = await host_contracts.list_contracts(acted, FINANCE)
    assert (shown.hosts, shown.region, shown.state) == ([intent.name], "nyc2", "running")
    await store(acted, fewer(intent.name, [intent.name]))
    await act_on_plan(acted, here, PROVIDERS)
    first = (await acting.timeline(acted, FINANCE))[0]
    assert (first.act, first.result) == ("destroy", "refused")
    assert str(contract.contract_id) in first.detail
    directory = ScalingDirectory(acted)
    await directory.refresh()
    assert list(directory.contracts.assigned) == [intent.name]
    await host_contracts.end_contract(
        acted, ADMIN, contract_id=contract.contract_id, ends_at=contract.starts_at, reason="over"
    )
    await act_on_plan(acted, here, PROVIDERS)
    assert [one.wanted for one in await intents(acted)] == [False]


async def test_the_plan_never_replaces_what_a_person_has_desired_meanwhile(acted: Database) -> None:
    group = HostGroup("digitalocean", "nyc2", KIND, MODEL)
    async with acted.system() as connection:
        await set_desired(connection, DesiredHosts(group, 1, "plan"))
        await set_desired(connection, DesiredHosts(group, 2, "plan"), unless_persons=True)
        [read] = await read_desired(connection)
    assert read.owner == "plan"
    await hosts.set_desired(acted, ADMIN, **msgspec.structs.asdict(group), count=3, reason="test")
    async with acted.system() as connection:
        with pytest.raises(Overtaken, match=f"digitalocean/nyc2/{KIND}/{MODEL}"):
            await set_desired(connection, DesiredHosts(group, 1, "plan"), unless_persons=True)
        [kept] = await read_desired(connection)
        assert (kept.count, kept.owner) == (3, "person")
        await set_desired(connection, msgspec.structs.replace(kept, expires_at=await read_now(connection)))
        await set_desired(connection, DesiredHosts(group, 3, "plan"), unless_persons=True)
        assert await read_desired(connection) == [DesiredHosts(group, 3, "plan")]


async def test_a_refused_creation_goes_to_the_next_region(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    fake.faults.add(Fault.CREATE_NO_SIZE)
    await store(acted, more(1))
    for _ in range(6):
        await reconcile_hosts(acted, here)
    assert [droplet.region for droplet in fake.alive()] == ["tor1"]
    assert {row.region: row.desired for row in await hosts.list_desired(acted, FINANCE)} == {
        "nyc2": 0,
        "tor1": 1,
    }


async def test_hosts_for_a_region_are_created_there_and_nowhere_else_when_it_fails(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url)
    there = PlannedCreation(KIND, MODEL, 1, "1 more in tor1", ("tor1",))
    await store(acted, StoredPlan(create=(there, PlannedCreation(KIND, MODEL, 1, "more load"))))
    for _ in range(4):
        await reconcile_hosts(acted, here)
    assert sorted(droplet.region for droplet in fake.alive()) == ["nyc2", "tor1"]
    known = [one.name for one in await intents(acted)]
    fake.faults.add(Fault.CREATE_NO_SIZE)
    await store(acted, StoredPlan(create=(there,), known=tuple(known)))
    for _ in range(4):
        await reconcile_hosts(acted, here)
    assert sorted(droplet.region for droplet in fake.alive()) == ["nyc2", "tor1"]
    [refused] = [row for row in await acting.timeline(acted, FINANCE) if row.result == "refused"]
    assert "tor1: 1 creations failed" in refused.detail
    assert "nyc2" not in refused.detail


async def test_a_host_that_models_share_is_created_once_and_serves_them_all(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    fake, url = cloud
    here = settings(url, host_schedulers="10.0.0.2:8010")
    other, shares = "minimax-m2.5", f"{MODEL},minimax-m2.5[0-3]"
    await models.add_model(acted, ADMIN, name=other)
    view = await scaling.set_scaling(acted, ADMIN, model=MODEL, shares=shares)
    assert (view.shares, view.host_kinds) == (shares, [KIND])
    await store(acted, StoredPlan(create_shared=(PlannedCreation(KIND, MODEL, 1, "load", shares=shares),)))
    for _ in range(3):
        await reconcile_hosts(acted, here)
    [droplet] = fake.alive()
    assert f'PENSTOCK_MODEL="{shares}"' in droplet.user_data
    assert 'PENSTOCK_REPLICAS="0"' in droplet.user_data
    [one] = await intents(acted)
    assert (one.models, one.model) == ((MODEL, other), shares)
    gone = fewer(one.name, [one.name])
    await store(acted, gone)
    for _ in range(3):
        await reconcile_hosts(acted, here)
    assert fake.alive() == []
    acts = {model: await acting.timeline(acted, FINANCE, model=model) for model in (MODEL, other, "b")}
    assert [row.act for row in acts[MODEL]] == ["destroy", "create"]
    assert [row.act for row in acts[other]] == ["destroy"], "the creation was for the first"
    assert acts["b"] == []
    group = {"provider": "digitalocean", "region": "nyc2", "kind": "gpu-h100x1-80gb", "model": shares}
    with pytest.raises(InvalidRequest, match=f"{MODEL}.* does not run on hosts of kind"):
        await hosts.set_desired(acted, ADMIN, **group, count=1, reason="test")  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"term": TERM - 1}, {"age_s": 61.0}])
async def test_a_plan_that_is_old_or_of_an_earlier_scheduler_changes_nothing(
    acted: Database, fields: dict[str, float]
) -> None:
    here = settings("http://127.0.0.1:1")
    await store(acted, more(1), **fields)  # type: ignore[arg-type]
    assert await act_on_plan(acted, here, PROVIDERS) == 0
    assert await hosts.list_desired(acted, ADMIN) == []
    await store(acted, more(1))
    assert await act_on_plan(acted, here, PROVIDERS) == 1


async def test_a_scheduler_of_a_lower_term_replaces_no_plan(acted: Database) -> None:
    await store(acted, more(1))
    await store(acted, StoredPlan(), term=TERM - 1)
    assert await act_on_plan(acted, settings("http://127.0.0.1:1"), PROVIDERS) == 1


async def test_dry_runs_and_refusals_are_said_once_an_hour(acted: Database) -> None:
    here = settings("http://127.0.0.1:1")
    await acting.set_acting(acted, ADMIN, acting="dry-run", reason="look first")
    await store(acted, more(1))
    for _ in range(3):
        assert await act_on_plan(acted, here, PROVIDERS) == 0
    await acting.set_acting(acted, ADMIN, acting="on", budget_usd_per_month="10", reason="little money")
    for _ in range(3):
        assert await act_on_plan(acted, here, PROVIDERS) == 0
    assert await timeline(acted) == [("create", "dry-run"), ("create", "refused")]
    assert (
        "the month's budget of the platform is 10.00 USD" in (await acting.timeline(acted, ADMIN))[0].detail
    )
    await acting.set_acting(acted, ADMIN, budget_usd_per_month="none", reason="go")
    assert await act_on_plan(acted, settings("", hosts_dry_run=True), PROVIDERS) == 0
    assert await act_on_plan(acted, here, PROVIDERS) == 1
    async with acted.system() as connection:
        await connection.execute(
            text("INSERT INTO pool_acts (at, model, target, act, reason, mode, result, detail) "
                 "VALUES (now() - interval '91 days', 'm', 't', 'create', 'r', 'on', 'done', '')")
        )  # fmt: skip
    async with acted.system() as connection:
        assert await retention.prune(connection) == 1


async def test_a_persons_hosts_are_left_alone_until_released(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    _, url = cloud
    here = settings(url)
    group = {"provider": "digitalocean", "region": "nyc2", "kind": KIND, "model": MODEL}
    held = await hosts.set_desired(
        acted, ADMIN, **group, count=1, hold_for=timedelta(hours=2), reason="launch"
    )
    assert held.owner == "person"
    assert held.expires_at is not None
    for _ in range(3):
        await reconcile_hosts(acted, here)
    [name] = [one.name for one in await intents(acted)]
    await store(acted, fewer(name, [name]))
    assert await act_on_plan(acted, here, PROVIDERS) == 0
    released = await hosts.release_desired(acted, ADMIN, **group, reason="over")
    assert (released.owner, released.desired, released.expires_at) == ("plan", 1, None)
    with pytest.raises(NotFound, match="no person decides"):
        await hosts.release_desired(acted, ADMIN, **group, reason="again")
    assert await act_on_plan(acted, here, PROVIDERS) == 2
    assert await timeline(acted) == [("destroy", "refused"), ("destroy", "done")]
    with pytest.raises(InvalidRequest, match="at most 31 days"):
        await hosts.set_desired(acted, ADMIN, **group, count=1, hold_for=timedelta(days=32), reason="x")


async def test_what_a_notice_stopped_outlives_the_scheduler_that_stopped_it(acted: Database) -> None:
    first = PlanStore(acted, TERM, now=lambda: 0.0)
    assert first.left is None
    first.put(StoredPlan(left={"a/r0": "a", "b/r0": "b"}), 0.0)
    await first.write()
    idle, hasty = (PlanStore(acted, TERM + 1, now=lambda: 0.0) for _ in range(2))
    await idle.write()
    assert idle.left == {"a/r0": "a", "b/r0": "b"}
    hasty.put(StoredPlan(left={"c/r0": "c"}), 0.0)  # before it has read anything
    await hasty.write()
    again = PlanStore(acted, TERM + 2, now=lambda: 0.0)
    await again.write()
    assert again.left == {"a/r0": "a", "b/r0": "b", "c/r0": "c"}


async def test_nothing_is_started_on_a_host_whose_destruction_is_stored(acted: Database) -> None:
    """Between the stored plan and the destroy, only what PostgreSQL says afterwards makes the host usable again."""
    here = settings("http://127.0.0.1:1")
    await store(acted, more(1))
    await act_on_plan(acted, here, PROVIDERS)
    await add_intent(acted, here)
    [host] = await intents(acted)
    plans = PlanStore(acted, TERM, now=lambda: 0.0)
    assert plans.hosts is None
    plans.put(fewer(host.name, [host.name]), 0.0)
    plans.record(PoolAct(MODEL, "host/r0", "stop", "it is idle", Mode.ON, "failed", "the agent said \0 no"))
    await plans.write()
    assert plans.stored
    assert plans.mode is Mode.ON
    assert plans.is_condemned(host.name)
    assert plans.is_condemned(f"sim-{host.name}")
    assert not plans.is_condemned("another")
    away = PlanStore(Database("postgresql://penstock@127.0.0.1:1/none", pool_size=1), TERM, now=lambda: 0.0)
    away.hosts, away._condemned = plans.hosts, plans._condemned
    away.put(StoredPlan(known=(host.name,)), 0.0)
    await away.store()
    assert away.is_condemned(host.name)  # the plan without it is not stored
    plans.put(StoredPlan(known=(host.name,)), 0.0)
    await plans.write()
    assert not plans.is_condemned(host.name)
    plans.put(fewer(host.name, [host.name]), 0.0)
    await plans.write()
    await act_on_plan(acted, here, PROVIDERS)
    plans.put(StoredPlan(), 0.0)
    await plans.write()
    assert plans.is_condemned(host.name)  # jobs were faster
    assert ("stop", "failed") in await timeline(acted)


async def test_a_host_that_is_too_many_is_destroyed_when_the_scheduler_has_emptied_it(
    acted: Database, cloud: tuple[FakeCloud, str]
) -> None:
    """Whatever the switch says."""
    fake, url = cloud
    here = settings(url)
    group = {"provider": "digitalocean", "region": "nyc2", "kind": KIND, "model": MODEL}
    await hosts.set_desired(acted, ADMIN, **group, count=1, reason="launch")
    for _ in range(3):
        await reconcile_hosts(acted, here)
    [host] = await intents(acted)
    async with acted.system() as connection:
        await connection.execute(
            text(
                "INSERT INTO hosts (host_id, host_kind, region, gpus, first_seen, last_seen) "
                "VALUES (:name, 'k', 'r', 1, now(), now())"
            ),
            {"name": host.name},
        )
    await acting.set_acting(acted, ADMIN, acting="off", reason="test")
    await hosts.set_desired(acted, ADMIN, **group, count=0, reason="over")
    await reconcile_hosts(acted, here)
    [host] = await intents(acted)
    assert not host.wanted
    for emptied, alive in (("another", 1), (host.name, 0)):
        await store(acted, StoredPlan(emptied=(emptied,)))
        await reconcile_hosts(acted, here)
        assert len([one for one in fake.alive() if one.gone_at is None]) == alive


async def add_intent(database: Database, here: Settings) -> None:
    """Write the intent of a desired host, as a pass does."""
    intent_id = uuid7()
    group = HostGroup("digitalocean", "nyc2", KIND, MODEL)
    intents = DatabaseIntents(database)
    await intents.add(
        Intent(
            intent_id=intent_id,
            provider=group.provider,
            region=group.region,
            kind=group.kind,
            model=group.model,
            name=host_name(here.fleet, intent_id),
            requested_at=await intents.now(),
        )
    )


async def test_held_replicas_are_the_limits_until_the_hold_ends(acted: Database) -> None:
    hold = await acting.hold_replicas(
        acted, ADMIN, model=MODEL, awake=4, hold_for=timedelta(hours=2), reason="launch"
    )
    directory = ScalingDirectory(acted)
    await directory.refresh()
    limits = directory.limits[MODEL]
    assert (limits.min_awake, limits.max_awake, limits.host_kinds) == (4, 4, (KIND,))
    assert await acting.list_holds(acted, FINANCE) == [hold]
    async with acted.engine.begin() as connection:
        await connection.execute(text("UPDATE replica_holds SET until = now()"))
    async with acted.read() as connection:
        assert (await read_effective_limits(connection))[MODEL].min_awake == 0
    with pytest.raises(NotFound, match="are held"):
        await acting.release_replicas(acted, ADMIN, model=MODEL, reason="over")
    await acting.hold_replicas(acted, ADMIN, model=MODEL, awake=0, hold_for=timedelta(hours=2), reason="x")
    assert (await acting.release_replicas(acted, ADMIN, model=MODEL, reason="over")).awake == 0
    for wrong in ({"awake": 2_000}, {"hold_for": timedelta()}, {"hold_for": timedelta(days=40)}):
        given = {"model": MODEL, "awake": 1, "hold_for": timedelta(hours=1), "reason": "x"} | wrong
        with pytest.raises(InvalidRequest):
            await acting.hold_replicas(acted, ADMIN, **given)  # type: ignore[arg-type]
    with pytest.raises(PermissionDenied):
        await acting.set_acting(acted, FINANCE, acting="on", reason="x")
    with pytest.raises(InvalidRequest, match="must be one of off, dry-run, on"):
        await acting.set_acting(acted, ADMIN, acting="maybe", reason="x")
    with pytest.raises(InvalidRequest, match="nothing to change"):
        await acting.set_acting(acted, ADMIN, reason="x")


async def test_the_commands(acted: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", acted.url)
    async with acted.system() as connection:
        await add_acts(connection, [PoolAct(MODEL, "h", "create", "more load", Mode.ON, "done")])

    async def ask(*words: str) -> object:
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    off = await ask("pools", "set-acting", "off", "--month-budget", "20000", "--reason", "x")
    assert off == {"acting": "off", "budget_usd_per_month": "20000.00"}
    assert await ask("pools", "acting") == off
    [act] = await ask("pools", "timeline", "--model", MODEL)  # type: ignore[misc]
    assert (act["act"], act["target"], act["reason"]) == ("create", "h", "more load")
    held = await ask("models", "hold-replicas", MODEL, "--awake", "2", "--for", "90m", "--reason", "x")
    assert held["awake"] == 2  # type: ignore[index]
    assert await ask("models", "holds") == [held]
    await ask("models", "release-replicas", MODEL, "--reason", "x")
    limits = await ask("models", "set-scaling", MODEL, "--acting", "dry-run", "--month-budget", "9.5")
    assert (limits["acting"], limits["budget_usd_per_month"]) == ("dry-run", "9.50")  # type: ignore[index]
    limits = await ask("models", "set-scaling", MODEL, "--kind", f"{KIND}=0-3", "--region", "tor1=1-2")
    assert (limits["kinds"], limits["regions"]) == ([f"{KIND}=0-3"], ["tor1=1-2"])  # type: ignore[index]
    limits = await ask("models", "set-scaling", MODEL, "--kind", "none")
    assert (limits["kinds"], limits["regions"]) == ([], ["tor1=1-2"])  # type: ignore[index]
    group = ("digitalocean", "nyc2", KIND)
    person = await ask("hosts", "set-desired", *group, "0", "--for", "2h", "--reason", "x")
    assert person["owner"] == "person"  # type: ignore[index]
    assert (await ask("hosts", "release", *group, "--reason", "x"))["owner"] == "plan"  # type: ignore[index]
    wrong = await asyncio.to_thread(
        CliRunner().invoke, app, ["models", "hold-replicas", MODEL, "--awake", "1", "--for", "2w", "--reason", "x"]
    )  # fmt: skip
    assert wrong.exit_code != 0
