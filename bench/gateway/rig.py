"""The environment of the measured process: PostgreSQL, Redis, scheduler, a substitute agent, mock engine, targets."""

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from admin import billing as admin_billing
from admin import keys as admin_keys
from admin import models as admin_models
from admin import projects as admin_projects
from admin import tenants as admin_tenants
from admin.actor import system_actor
from bench.gateway.load import Target
from core.child import free_port
from core.db import Database
from core.embedded import EmbeddedPostgres, EmbeddedRedis
from core.framing import pack
from core.services import migrate
from workers.wire import AgentHello, Capacity, Heartbeat, ReplicaState, ReplicaStatus

ROOT = Path(__file__).resolve().parents[2]
MODEL = "qwen3.5-397b"
"""Name of the model, used for its context length only; the model itself does not run."""
ACTOR = system_actor("bench")
_ROLE = (
    "import os,sys; os.sched_setaffinity(0, {{{core}}}); from {module} import main; "
    "from core.settings import Settings; sys.exit(main(Settings()))"
)
_MODULE = (
    "import os,runpy,sys; os.sched_setaffinity(0, {{{core}}}); sys.argv = {argv!r}; "
    "runpy.run_module({module!r}, run_name='__main__')"
)


def spawn(code: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a child process that runs `code` in the checkout."""
    return subprocess.Popen([sys.executable, "-c", code], env=env, cwd=ROOT)


@asynccontextmanager
async def rig(api_core: int, other_core: int) -> AsyncIterator[dict[str, Target]]:
    """Start all parts, and yield the targets: direct, bare, penstock."""
    os.sched_setaffinity(0, {other_core})
    async with AsyncExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        os.chmod(name, 0o755)
        data_dir = Path(name)
        postgres, redis = EmbeddedPostgres(data_dir), EmbeddedRedis(data_dir)
        database_url = await postgres.start()
        stack.push_async_callback(postgres.stop)
        redis_url = await redis.start()
        stack.push_async_callback(redis.stop)
        await migrate(database_url)
        pepper, token = secrets.token_hex(16), secrets.token_hex(16)
        key = await _seed(database_url, pepper.encode())
        ports = {name: free_port() for name in ("engine", "bare", "api", "scheduler")}
        env = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "PENSTOCK_DATA_DIR": str(data_dir),
            "PENSTOCK_PORT": str(ports["api"]),
            "PENSTOCK_SCHEDULER_PORT": str(ports["scheduler"]),
            "PENSTOCK_INTERNAL_TOKEN": token,
            "PENSTOCK_KEY_PEPPER": pepper,
        }

        def module(name: str, core: int, *argv: str) -> subprocess.Popen[bytes]:
            process = spawn(_MODULE.format(core=core, argv=[name, *argv], module=name), env)
            stack.callback(_end, process)
            return process

        def role(name: str, core: int) -> subprocess.Popen[bytes]:
            process = spawn(_ROLE.format(core=core, module=name), env)
            stack.callback(_end, process)
            return process

        engine_url = f"http://127.0.0.1:{ports['engine']}"
        engine = module("bench.gateway.mock_engine", other_core, "--port", str(ports["engine"]))
        bare = module(
            "bench.gateway.passthrough", api_core, "--port", str(ports["bare"]), "--engine", engine_url
        )
        role("scheduler.serve", other_core)
        beating = asyncio.create_task(_agent(ports["scheduler"], token, engine_url))
        stack.callback(beating.cancel)
        api = role("api.serve", api_core)
        targets = {
            "direct": Target("direct", ports["engine"], "", engine.pid),
            "bare": Target("bare", ports["bare"], "", bare.pid),
            "penstock": Target("penstock", ports["api"], key, api.pid),
        }
        for target in targets.values():
            await _answers(target)
        yield targets


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _answers(target: Target) -> None:
    """Wait until a target answers with success."""
    raw = target.raw(max_tokens=1)
    for attempt in range(200):
        try:
            await target.ask(raw, False)
            return
        except (OSError, AssertionError):
            if attempt == 199:
                raise
            await asyncio.sleep(0.2)


async def _seed(database_url: str, pepper: bytes) -> str:
    """Create an organisation with credit and a key, and a priced model; return the key."""
    database = Database(database_url)
    try:
        tenant = await admin_tenants.create_tenant(database, ACTOR, name="Bench")
        (project,) = await admin_projects.list_projects(database, ACTOR, tenant_id=tenant.id)
        created = await admin_keys.create_key(
            database, ACTOR, pepper=pepper, tenant_id=tenant.id, project_id=project.id, name="bench"
        )
        await admin_models.add_model(database, ACTOR, name=MODEL)
        await admin_billing.set_price(database, ACTOR, model=MODEL, input="1", cached_input="0.5", output="2")
        await admin_billing.grant_credit(
            database, ACTOR, tenant_id=tenant.id, amount_usd="100000", reason="bench"
        )
        await _limits(database, tenant.id)
        return created.secret
    finally:
        await database.close()


async def _limits(database: Database, tenant_id: object) -> None:
    """Set limits that never apply, so that every request consults Redis."""
    from admin import limits as admin_limits
    from tenants.principal import Limits

    limits = Limits(10**8, 10**12, 10**12, 10**6, 10**13)
    await admin_limits.set_limits(
        database, ACTOR, tenant_id=tenant_id, scope_kind="tenant", scope_id=tenant_id, limits=limits
    )


async def _agent(port: int, token: str, engine_url: str) -> None:
    """Send heartbeats of one replica with unlimited capacity."""
    replica = ReplicaStatus(
        replica_id="bench/r0", model=MODEL, url=engine_url, engine="external", boot_id="b1", state=ReplicaState.READY,
        capacity=Capacity(
            prefill_tokens_per_s=1e9, step_base_s=1e-4, step_per_seq_s=0.0, max_num_seqs=100_000, kv_cache_tokens=10**9
        ),
    )  # fmt: skip
    seq = 0
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(pack(msgspec.msgpack.encode(AgentHello(token, "bench"))))
            while not writer.is_closing():
                seq += 1
                beat = Heartbeat(
                    "bench", "bench", "a1", seq, "local", "local-cpu", 0, [replica], {"serving": seq}
                )
                writer.write(pack(msgspec.msgpack.encode(beat)))
                await writer.drain()
                await asyncio.sleep(0.5)
        except OSError:
            await asyncio.sleep(0.2)
