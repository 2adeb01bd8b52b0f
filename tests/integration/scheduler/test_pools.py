"""Pools through admin/, REST and the command line, with a real scheduler and audit rows in the real database."""

import asyncio
import json
import os
import sys

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from admin import pools
from admin.actor import Actor
from admin.audit import list_audit
from admin.users import create_admin_token, create_user
from api import app as api_app
from api.admin.deps import AdminDeps
from api.admin.routers import admin_routers
from core.db import Database
from core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied, Unavailable
from scheduler.host_acceptances import HostAcceptances
from tests.support.ports import free_port
from tests.support.scheduling import TOKEN, agent, client, replica, service
from tests.support.tenancy import ADMIN, PEPPER
from tests.support.waiting import until
from workers.host_acceptances import store_acceptance
from workers.wire import AcceptanceFinding, AcceptanceReport

FINANCE = Actor(kind="user", id="someone", label="finance", role="finance")


async def test_a_command_is_audited_before_it_is_done(database: Database) -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        done = await pools.command_replica(
            database, ADMIN, client=api, replica_id="host/r0", action="drain", reason=" new driver "
        )
        assert done == pools.CommandOutcome("host/r0", "drain", "drain done")
        entry = (await list_audit(database, ADMIN))[0]
        assert (entry.action, entry.object_id, entry.reason) == ("replica.drain", "host/r0", "new driver")
        assert entry.before["state"] == "ready"
        host.answers = False
        failing = asyncio.create_task(
            pools.command_replica(
                database, ADMIN, client=api, replica_id="host/r0", action="wake", reason="because"
            )
        )
        await until(lambda: len(host.commands) == 2)
        await host.close()
        with pytest.raises(Conflict, match="could not wake"):
            await failing
        actions = [entry.action for entry in await list_audit(database, ADMIN)]
        assert actions == ["replica.wake_failed", "replica.wake", "replica.drain"]


async def test_what_is_not_allowed_is_neither_done_nor_audited(database: Database) -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        wrong = [
            (FINANCE, {}, PermissionDenied),
            (ADMIN, {"action": "explode"}, InvalidRequest),
            (ADMIN, {"reason": " "}, InvalidRequest),
            (ADMIN, {"deadline_s": 0.0}, InvalidRequest),
            (ADMIN, {"action": "sleep", "level": 3}, InvalidRequest),
            (ADMIN, {"action": "drain", "level": 1}, InvalidRequest),
            (ADMIN, {"action": "wake", "level": 2}, InvalidRequest),
            (ADMIN, {"replica_id": "host/none"}, NotFound),
        ]
        for who, change, error in wrong:
            arguments = {"replica_id": "host/r0", "action": "drain", "reason": "because"} | change
            with pytest.raises(error):
                await pools.command_replica(database, who, client=api, **arguments)
        assert host.commands == []
        assert await list_audit(database, ADMIN) == []
        assert (await pools.get_pools(FINANCE, client=api)).replicas[0].replica_id == "host/r0"


async def test_without_a_scheduler_pools_are_unavailable() -> None:
    async with client(free_port()) as api:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await pools.get_pools(ADMIN, client=api)


async def test_the_admin_rest_shows_and_commands(database: Database, redis_client: Redis) -> None:
    user = await create_user(
        database, ADMIN, email="ops@example.com", password="correct horse", role="platform_admin"
    )
    token = (await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")).secret
    headers = {"authorization": f"Bearer {token}"}
    async with (
        service() as scheduler,
        agent(
            scheduler.port, replica(phase="prefetching", weights_done_bytes=3, weights_total_bytes=4)
        ) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        app = FastAPI()
        for router in admin_routers(AdminDeps(database, redis_client, PEPPER, api)):
            app.include_router(router)
        api_app._install_error_handlers(app)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=headers) as http:
            shown = (await http.get("/admin/v1/pools")).json()
            assert shown["replicas"][0]["replica_id"] == "host/r0"
            progress = [
                shown["replicas"][0][name] for name in ("phase", "weights_done_bytes", "weights_total_bytes")
            ]
            assert progress == ["prefetching", 3, 4]
            assert shown["hosts"][0]["host_kind"] == "local-cpu"
            path = "/admin/v1/pools/replicas/host/r0/drain"
            done = await http.post(path, json={"reason": "new driver"})
            assert done.json() == {"replica_id": "host/r0", "action": "drain", "message": "drain done"}
            assert (await http.post(path, json={})).status_code == 400
            asleep = path.replace("drain", "sleep")
            await http.post(asleep, json={"reason": "night", "level": 2})
            assert [(each.action, each.level) for each in host.commands] == [("drain", 1), ("sleep", 2)]
            assert (await http.post(asleep, json={"reason": "night", "level": 3})).status_code == 400
            stray = await http.post(path, json={"reason": "night", "level": 2})
            assert stray.status_code == 400
            assert "level is that of a sleep" in stray.json()["error"]["message"]
            missing = await http.post("/admin/v1/pools/replicas/host/r9/drain", json={"reason": "x"})
            assert missing.status_code == 404
            assert "host/r0" in missing.json()["error"]["message"]
            anonymous = await http.post(path, json={"reason": "x"}, headers={"authorization": ""})
            assert anonymous.status_code == 401


REFUSED = AcceptanceReport(
    "refused",
    1_800_000_000_000,
    [AcceptanceFinding("refused", "memory", "GPU 3 could not remap a memory row; replace the host")],
    {"all_reduce_gb_per_s": 474.0},
)


async def test_what_the_checks_of_a_host_found_is_stored_once_and_shown(
    database: Database, redis_client: Redis, pg_url: str
) -> None:
    stored = HostAcceptances(database, store_acceptance, every_s=0.02)
    await stored.start()
    async with (
        service(listeners=[stored]) as scheduler,
        agent(scheduler.port) as host,
        client(scheduler.port) as api,
    ):
        host.acceptance = REFUSED
        (first,) = await until(lambda: pools.list_acceptances(database, FINANCE))
        assert (first.verdict, first.figures) == ("refused", REFUSED.figures)
        assert first.findings[0]["check"] == "memory"
        host.acceptance = msgspec.structs.replace(REFUSED, verdict="degraded")

        async def changed() -> bool:
            return [one.verdict for one in await pools.list_acceptances(database, FINANCE)] == ["degraded"]

        await until(changed)  # the same check, with a verdict that an engine's speed has changed
        user = await create_user(
            database, ADMIN, email="ops@example.com", password="correct horse", role="platform_admin"
        )
        token = (await create_admin_token(database, ADMIN, pepper=PEPPER, user_id=user.id, name="t")).secret
        app = FastAPI()
        for router in admin_routers(AdminDeps(database, redis_client, PEPPER, api)):
            app.include_router(router)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://t/admin/v1", headers=headers
        ) as http:

            async def shown() -> bool:  # the snapshot of the API follows the store
                live = (await http.get("/pools")).json()["hosts"][0]["acceptance"]
                return (live["verdict"], live["findings"][0]["check"]) == ("degraded", "memory")

            await until(shown)
            (row,) = (await http.get("/pools/acceptances", params={"host_id": first.host_id})).json()
            assert (row["host_id"], row["verdict"]) == (first.host_id, "degraded")
            assert (await http.get("/pools/acceptances", params={"host_id": "other"})).json() == []
        env = {
            "DATABASE_URL": pg_url,
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_SCHEDULER_PORT": str(scheduler.port),
        }
        code, out, err = await _penstock("acceptances", "--host", first.host_id, "--json", **env)
        assert (code, err) == (0, "")
        assert json.loads(out)[0]["findings"][0]["text"] == REFUSED.findings[0].text
        code, out, _ = await _penstock("acceptances", **env)
        assert code == 0
        assert "degraded" in out
    await stored.close()


async def _penstock(*arguments: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "cli.main", "pools", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_command_line(pg_url: str) -> None:
    async with (
        service() as scheduler,
        agent(scheduler.port, replica()) as host,
        client(scheduler.port) as api,
    ):
        await until(lambda: api.snapshot().replicas)
        env = {
            "DATABASE_URL": pg_url,
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_SCHEDULER_PORT": str(scheduler.port),
        }
        code, out, err = await _penstock("list", "--json", **env)
        assert (code, err) == (0, "")
        assert json.loads(out)["replicas"][0]["state"] == "ready"
        code, out, _ = await _penstock("list", **env)
        assert code == 0
        assert "host/r0" in out
        code, out, _ = await _penstock("drain", "host/r0", "--reason", "new driver", "--json", **env)
        assert code == 0
        assert json.loads(out)["message"] == "drain done"
        assert host.commands[0].action == "drain"
        code, _, err = await _penstock("wake", "host/none", "--reason", "x", **env)
        assert code == 2
        assert err.count("\n") == 1
        assert "host/r0" in err
