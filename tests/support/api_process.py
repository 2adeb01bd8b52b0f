"""A whole API process on the test's own loop: real PostgreSQL, Redis and scheduler, the simulated engine behind it."""

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from sqlalchemy import text

from admin import credits as admin_credits
from admin import models as admin_models
from admin import prices as admin_prices
from api.app import create_app
from api.customer.protocol import HeadLimitProtocol
from api.deps import Deps
from api.serve import _admin_routers, bind
from core.db import Database
from core.settings import Settings
from gateway.tokenization.model_tokenizer import PromptTokenizer
from sim.engine.__main__ import build, parse_arguments
from sim.engine.failpoints import Failpoints
from tests.support import scheduling
from tests.support.ports import free_port
from tests.support.tenancy import ADMIN, PEPPER, Organisation, make_organisation
from tests.support.waiting import until

MAIN = (
    "import sys; from api.serve import main; from core.settings import Settings; sys.exit(main(Settings()))"
)
MODEL = "penstock/tiny"
ENGINE_KEY = "engine-key"


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers, on a port of its own."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """`app` on a free port; yields its base URL."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app,
        loop="none",
        http=HeadLimitProtocol,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or task.done(), what="server starts")
        if task.done():
            task.result()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@dataclass
class Engine:
    """One simulated engine: where it is, its failpoints and counters."""

    url: str
    server: Any

    @property
    def failpoints(self) -> Failpoints:
        return self.server._loop.failpoints


@dataclass
class Api:
    """What a test talks to."""

    url: str
    deps: Deps
    database: Database
    organisation: Organisation
    engines: list[Engine]
    session: aiohttp.ClientSession
    clients: list[AsyncOpenAI | AsyncAnthropic] = field(default_factory=list)

    def openai(self, key: str | None = None, **options: Any) -> AsyncOpenAI:
        """The official client."""
        made = AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key or self.organisation.key, max_retries=0, **options
        )
        self.clients.append(made)
        return made

    def anthropic(self, key: str | None = None, **options: Any) -> AsyncAnthropic:
        """Anthropic's official client, with its key in x-api-key."""
        made = AsyncAnthropic(
            base_url=self.url, api_key=key or self.organisation.key, auth_token=None, max_retries=0, **options
        )
        self.clients.append(made)
        return made

    async def post(
        self, body: bytes | dict[str, Any], *, key: str | None = None, path: str = "/v1/chat/completions"
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Status, JSON and headers."""
        headers = {"Authorization": f"Bearer {key if key is not None else self.organisation.key}"}
        data = {"data": io.BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(self.url + path, headers=headers, **data) as answer:
            return answer.status, await answer.json(), answer.headers

    async def usage_rows(self, count: int) -> list[Any]:
        """The usage rows in PostgreSQL, once there are `count`."""

        async def rows() -> list[Any]:
            async with self.database.read() as connection:
                return list((await connection.execute(text("SELECT * FROM usage ORDER BY request_id"))).all())

        async def enough() -> bool:
            return len(await rows()) >= count

        await until(enough, what=f"{count} usage rows")
        return await rows()


@asynccontextmanager
async def engine(
    speedup: float, model: str = MODEL, profile: str = "", max_adapters: int = 0, **failpoints: Any
) -> AsyncIterator[Engine]:
    """A simulated engine on the test's loop."""
    options = ["--speedup", str(speedup), "--api-key", ENGINE_KEY, "--model", model, "--profile", profile]
    options += ["--max-adapters", str(max_adapters)]
    server = build(parse_arguments(options))
    server._loop.failpoints = Failpoints(**failpoints)
    async with serving(server) as url:
        yield Engine(url, server)


@asynccontextmanager
async def api_process(
    pg_url: str, redis_url: str, data_dir: Path, *, credit: str = "10", engines: int = 1, speedup: float = 20.0,
    model: str = MODEL, profile: str = "", tokenizer: PromptTokenizer | None = None, max_adapters: int = 0,
    **settings: Any,
) -> AsyncIterator[Api]:  # fmt: skip
    """Everything up: an organisation with credit, a priced model, engines known to a real scheduler."""
    async with contextlib.AsyncExitStack() as stack:
        database = Database(pg_url)
        stack.push_async_callback(database.close)
        organisation = await make_organisation(database)
        await admin_models.add_model(database, ADMIN, name=model)
        await admin_prices.set_price(database, ADMIN, model=model, input="1", cached_input="0.5", output="2")
        await admin_credits.grant_credit(
            database, ADMIN, tenant_id=organisation.tenant_id, amount_usd=credit, reason="test"
        )
        running = [
            await stack.enter_async_context(engine(speedup, model, profile, max_adapters))
            for _ in range(engines)
        ]
        service = await stack.enter_async_context(scheduling.service())
        replicas = [
            scheduling.replica(
                f"host/r{index}",
                slots=64,
                url=one.url,
                simulated=True,
                model=model,
                region="local",
                max_adapters=max_adapters,
                **scheduling.ranked(len(one.server._loop.model.ranks)),
            )
            for index, one in enumerate(running)
        ]
        await stack.enter_async_context(scheduling.agent(service.port, *replicas))
        made = Settings(
            database_url=pg_url,
            redis_url=redis_url,
            data_dir=data_dir,
            internal_token=SecretStr(scheduling.TOKEN),
            key_pepper=SecretStr(PEPPER.decode()),
            engine_key=SecretStr(ENGINE_KEY),
            scheduler_port=service.port,
            **settings,
        )
        deps = Deps(made, CollectorRegistry(), tokenizer)
        url = await stack.enter_async_context(serving(create_app(deps, _admin_routers(deps))))
        await until(lambda: len(deps.scheduler.snapshot().replicas) == engines, what="replicas known")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        api = Api(url, deps, database, organisation, running, session)
        try:
            yield api
        finally:
            for client in api.clients:
                await client.close()


@asynccontextmanager
async def another_process(
    api: Api, data_dir: Path, **settings: object
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A second API process beside `api`, with its URL. `settings`: names of Settings with their values."""
    port, common = free_port(), api.deps.settings
    env = {
        **os.environ,
        "DATABASE_URL": common.database_url,
        "REDIS_URL": common.redis_url,
        "PENSTOCK_DATA_DIR": str(data_dir),
        "PENSTOCK_PORT": str(port),
        "PENSTOCK_INTERNAL_TOKEN": scheduling.TOKEN,
        "PENSTOCK_KEY_PEPPER": PEPPER.decode(),
        "PENSTOCK_ENGINE_KEY": common.engine_key.get_secret_value(),
        "PENSTOCK_SCHEDULER_PORT": str(common.scheduler_port),
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()},
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MAIN, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        await until(lambda: answers(api.session, f"{url}/readyz"), timeout_s=120)
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
