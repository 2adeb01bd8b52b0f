"""The platform of `penstock up` on one machine: its processes, and the order of start and stop."""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from admin.actor import system_actor
from admin.logins import TokenLives
from cli import stripe_setup
from cli.backup.wal import server_settings
from cli.bootstrap import bootstrap, store_rules
from cli.display import Display, Step
from cli.external import ExternalOptions, discover, offer
from cli.ports import choose_port, serve_metrics_on
from cli.rundir import RunDir
from cli.runtime_info import credentials, engine_endpoints, engine_key, replica_progress, show_panel
from cli.supervisor import RoleSpec, Supervisor, last_line
from core.addresses import Address
from core.child import free_port, service_account
from core.clock import SystemClock
from core.db import Database
from core.embedded import EmbeddedPostgres, EmbeddedRedis
from core.errors import InvalidRequest, PenstockError, Unavailable
from core.services import migrate
from core.settings import Settings
from core.supervise import supervise
from scheduler.client import SchedulerClient
from tenants.principal import default_limits
from workers.catalog import load_catalog
from workers.engine_models import ServedModel
from workers.wire import ReplicaState, ReplicaStatus

log = logging.getLogger(__name__)

CHECKOUT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
_TICK_S = 0.25
_DRAIN_ORDER = ("api", "jobs", "scheduler", "agent", "console", stripe_setup.ROLE)
_API_GRACE_S = 20.0
"""Seconds that an API process may take after its drain, to end what was cut and to settle."""
_GRACE_S = {"jobs": 30.0, "scheduler": 10.0, "agent": 60.0, "console": 10.0}
_MAX_RESTARTS = 3


def _without_cloud(role: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a role: only `jobs` creates hosts, and has the token that pays for them."""
    return env if role == "jobs" else {k: v for k, v in env.items() if not k.startswith("DIGITALOCEAN_")}


class Options(msgspec.Struct, frozen=True):
    """Options of `penstock up`. For a port, None means the default or, if taken, a free one; 0 means any free one."""

    data_dir: Path
    port: int | None = None
    console_port: int | None = None
    engine: str = "auto"
    external: ExternalOptions = ExternalOptions()
    model: str = ""
    profile: str = ""
    replicas: int = 1
    api_workers: int = 1
    schedulers: int = 1
    drain_s: int = 10
    wal_archive: Path | None = None
    """Where the embedded PostgreSQL archives its write-ahead log; None = nowhere."""
    ready_file: Path | None = None
    demo: bool = True


class Platform:
    """Starts all processes, keeps them running, and stops them in order."""

    def __init__(self, options: Options, run_dir: RunDir, display: Display) -> None:
        self._options = options
        self._dir = run_dir
        self._display = display
        lock = run_dir.lock_descriptor
        self._supervisor = Supervisor(run_dir.logs, inherit=(lock,) if lock >= 0 else ())
        self._servers: dict[str, EmbeddedPostgres | EmbeddedRedis] = {}
        self._secrets = run_dir.load_secrets()
        self._stripe = stripe_setup.StripeSetup(HOST, self._secrets)
        self._notes: list[str] = self._stripe.notes()
        self._urls = {"database_url": "", "redis_url": ""}
        self._ports: dict[str, int] = {}
        self._schedulers: dict[str, Address] = {}
        self._served: list[ServedModel] = []
        """Models that external engines list."""
        self._replicas: list[ReplicaStatus] = []
        self._client: SchedulerClient | None = None
        self._published: dict[str, Any] = {}
        self._stop = asyncio.Event()
        self._restarts: dict[str, asyncio.Task[None]] = {}
        """Starts of embedded servers that had died, which may take as long as PostgreSQL's recovery."""

    async def run(self) -> None:
        """Start, serve until SIGINT, SIGTERM or SIGHUP, stop. A second signal shortens the drain.

        Raises PenstockError when a part does not start, after the started parts have been stopped.
        """
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(sig, self._on_signal)
        stopping = asyncio.create_task(self._stop.wait())
        watching = supervise("watch", self._watch)
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait({starting, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            tasks = (starting, watching, stopping, *self._restarts.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._supervisor.stop_watching(), return_exceptions=True)
            await self._shut_down()

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._supervisor.hurry.set()
        self._stop.set()

    async def _watch(self) -> None:
        """Restart processes that died, and keep runtime.json up to date. No restart of a server holds up the roles'."""
        while True:
            self._supervisor.tick()
            for name, server in self._servers.items():
                if server.url:
                    server.rotate_log()
                running = self._restarts.get(name)
                if server.url and not server.pid and (running is None or running.done()):
                    self._restarts[name] = asyncio.create_task(self._restart(name, server))
            if self._published:
                self._publish()
            await asyncio.sleep(_TICK_S)

    async def _restart(self, name: str, server: EmbeddedPostgres | EmbeddedRedis) -> None:
        log.warning("embedded %s has died and is started again", name)
        try:
            await server.start()
        except (PenstockError, OSError) as error:
            log.error("embedded %s: %s", name, error)
        self._supervisor.exclude_from_reaping(server.pid)

    # Start

    async def _start(self) -> None:
        with self._display:
            self._choose_ports()
            if self._external:
                with self._display.step("External engine") as step:
                    self._served = await discover(
                        self._options.external, self._options.model, SystemClock(), step.note
                    )
            await self._start_stores()
            with self._display.step("Database"):
                await migrate(self._urls["database_url"])
                await self._bootstrap()
            async with aiohttp.ClientSession() as session:
                await self._start_roles(session)
            with self._display.step("Engine") as step:
                await self._wait_for_replicas(step)
        self._publish()
        show_panel(self._display, self._published, self._replicas, self._notes)

    async def _start_stores(self) -> None:
        if self._options.wal_archive is not None and os.environ.get("DATABASE_URL"):
            raise InvalidRequest(
                "--wal-archive is for the embedded PostgreSQL, and DATABASE_URL names another: archive its log there"
            )
        for name, variable, kind in (
            ("PostgreSQL", "DATABASE_URL", self._postgres),
            ("Redis", "REDIS_URL", EmbeddedRedis),
        ):
            key = variable.lower()
            with self._display.step(name) as step:
                if os.environ.get(variable):
                    self._urls[key] = os.environ[variable]
                    step.note(f"from {variable}")
                    continue
                server = kind(self._dir.path)
                self._servers[server.name] = server
                self._urls[key] = await server.start()
                self._supervisor.exclude_from_reaping(server.pid)

    def _postgres(self, data_dir: Path) -> EmbeddedPostgres:
        settings = server_settings(data_dir, self._options.wal_archive, service_account())
        return EmbeddedPostgres(data_dir, settings=settings)

    @property
    def _external(self) -> bool:
        return self._options.engine == "external"

    async def _bootstrap(self) -> None:
        database = Database(self._urls["database_url"], name="penstock-up", pool_size=2)
        catalog = load_catalog()
        try:
            settings = Settings()
            limits = default_limits(settings)
            self._notes += await bootstrap(
                database,
                self._secrets,
                catalog,
                demo=self._options.demo,
                limits=limits,
                lives=TokenLives.of(settings),
            )
            self._notes += await store_rules(database, system_actor("penstock up"), settings)
            if self._external:
                self._notes += await offer(
                    database,
                    system_actor("penstock up"),
                    catalog,
                    self._served,
                    self._options.external,
                    demo=self._options.demo,
                )
        finally:
            await database.close()
            self._dir.save_secrets(self._secrets)

    def _choose_ports(self) -> None:
        for name, wanted, default in (
            ("port", self._options.port, 8000),
            ("console-port", self._options.console_port, 8001),
        ):
            port, note = choose_port(HOST, wanted, default, f"--{name}", avoid=set(self._ports.values()))
            self._ports[name] = port
            if note:
                self._notes.append(note)
                self._display.print_line(note)
        self._schedulers = {name: Address(HOST, free_port(HOST)) for name in self._scheduler_names()}

    def _scheduler_names(self) -> list[str]:
        """The first has the name of its role, as the logs of a platform with one scheduler have it."""
        return ["scheduler", *(f"scheduler-{number}" for number in range(2, self._options.schedulers + 1))]

    async def _start_roles(self, session: aiohttp.ClientSession) -> None:
        with self._display.step("Scheduler"):
            specs = [self._scheduler_spec(name, address) for name, address in self._schedulers.items()]
            await asyncio.gather(*(self._supervisor.add(spec).wait_healthy(session) for spec in specs))
        if await self._engine_is_installed():
            with self._display.step("Agent"):
                await self._supervisor.add(self._spec("agent", "agent")).wait_healthy(session)
        names = [f"api-{number}" for number in range(1, self._options.api_workers + 1)]
        with self._display.step("API, jobs and console"):
            specs = [self._spec(name, "api") for name in names]
            specs += [self._spec("jobs", "jobs"), self._spec("console", "console")]
            if self._stripe.simulated:
                specs.append(self._stripe.spec(self._ports["port"], self._dir.path, CHECKOUT, self._env()))
            await asyncio.gather(*(self._supervisor.add(spec).wait_healthy(session) for spec in specs))

    async def _engine_is_installed(self) -> bool:
        """Install vLLM if the options need it. False when `auto` cannot install it; with `vllm` raises Unavailable."""
        if self._options.engine not in ("auto", "vllm"):
            return True
        env = self._env()
        install_flags = ["--engine-env", env["PENSTOCK_ENGINE_ENV"]]
        command = [sys.executable, "-m", "cli.main", "engine", "install", *install_flags]
        with self._display.step("Engine package") as step:
            install = asyncio.create_task(self._supervisor.run_once("engine-install", command, env, CHECKOUT))
            log_file = self._dir.logs / "engine-install.log"
            try:
                while not install.done():
                    step.note(last_line(log_file))
                    await asyncio.wait({install}, timeout=0.5)
                code = install.result()
            finally:
                install.cancel()
        if code == 0:
            return True
        why = last_line(log_file).removeprefix("penstock: ")
        if self._options.engine == "vllm":
            raise Unavailable(f"{why} (log: {log_file}); `--engine sim` runs without an engine package")
        self._notes.append(f"No engine could be installed: {why}")
        self._notes.append("Requests will be refused until there is one; try `penstock up --engine sim`.")
        return False

    def _spec(self, name: str, role: str) -> RoleSpec:
        spec = RoleSpec(
            name=name,
            role=role,
            command=[sys.executable, "-m", "cli.main", role],
            env=_without_cloud(role, self._stripe.env(role, self._env())),
            cwd=CHECKOUT,
            health_url="",
            grace_s=self._options.drain_s + _API_GRACE_S if role == "api" else _GRACE_S[role],
            keeps_children=role == "agent",
        )
        return serve_metrics_on(spec, HOST, free_port(HOST))

    def _scheduler_spec(self, name: str, address: Address) -> RoleSpec:
        spec = self._spec(name, "scheduler")
        return replace(spec, env={**spec.env, "PENSTOCK_SCHEDULER_PORT": str(address.port)})

    def _env(self) -> dict[str, str]:
        """The environment of every role: the caller's, overridden by the platform's settings."""
        options, secrets = self._options, self._secrets
        engine_env = os.environ.get("PENSTOCK_ENGINE_ENV") or CHECKOUT / ".engine"
        return {
            **os.environ,
            "DATABASE_URL": self._urls["database_url"],
            "REDIS_URL": self._urls["redis_url"],
            "PENSTOCK_DATA_DIR": str(self._dir.path),
            "PENSTOCK_SUPERVISOR_PID": str(os.getpid()),
            "PENSTOCK_SUPERVISOR_LOCK": str(self._dir.lock_descriptor),
            "PENSTOCK_HOST": HOST,
            "PENSTOCK_PORT": str(self._ports.get("port", 0)),
            "PENSTOCK_CONSOLE_PORT": str(self._ports.get("console-port", 0)),
            "PENSTOCK_DRAIN_S": str(options.drain_s),
            "PENSTOCK_API_WORKERS": str(options.api_workers),
            "PENSTOCK_SCHEDULER_HOST": HOST,
            "PENSTOCK_SCHEDULERS": ",".join(map(str, self._schedulers.values())),
            "PENSTOCK_INTERNAL_TOKEN": secrets.internal_token,
            "PENSTOCK_KEY_PEPPER": secrets.key_pepper,
            "PENSTOCK_ENGINE_KEY": options.external.key if self._external else engine_key(secrets),
            "PENSTOCK_CONSOLE_SECRET": secrets.console_secret,
            "PENSTOCK_ENGINE": options.engine,
            "PENSTOCK_ENGINE_URL": ",".join(options.external.urls),
            "PENSTOCK_MAX_NUM_SEQS": str(options.external.max_num_seqs),
            "PENSTOCK_ENGINE_FLEET": str(options.external.fleet),
            "PENSTOCK_CONTEXT_LEN": str(options.external.context_len),
            "PENSTOCK_ENGINE_ENV": str(Path(engine_env).resolve()),
            "PENSTOCK_MODEL": options.model,
            "PENSTOCK_PROFILE": options.profile,
            "PENSTOCK_REPLICAS": str(options.replicas),
            "PENSTOCK_LOCAL_HOSTS": "true",
            "PENSTOCK_HOST_PLACES": os.environ.get("PENSTOCK_HOST_PLACES") or "*=local/here",
        }

    async def _wait_for_replicas(self, step: Step) -> None:
        """Wait for the requested replicas. Raises Unavailable when one fails after _MAX_RESTARTS restarts."""
        if "agent" not in self._supervisor.pids():
            step.note("none")
            return
        self._client = SchedulerClient(
            tuple(self._schedulers.values()),
            self._secrets.internal_token,
            name="supervisor",
            clock=SystemClock(),
            rng=random.Random(),  # noqa: S311 - jitter
        )
        await self._client.start()
        served = {model.name for model in self._served}
        while True:
            self._replicas = self._client.snapshot().replicas
            ready = [replica.model for replica in self._replicas if replica.state is ReplicaState.READY]
            if served <= set(ready) if self._external else len(ready) >= self._options.replicas:
                return
            for replica in self._replicas:
                if replica.state is ReplicaState.FAILED and replica.restarts >= _MAX_RESTARTS:
                    raise Unavailable(f"{replica.replica_id} does not start: {replica.detail}")
            step.note(replica_progress(self._replicas) or last_line(self._dir.logs / "agent.log"))
            await asyncio.sleep(0.2)

    # What is running

    def _runtime_info(self) -> dict[str, Any]:
        if self._client is not None:
            self._replicas = self._client.snapshot().replicas or self._replicas
        pids = {"supervisor": [os.getpid()], **self._supervisor.pids()}
        pids |= {name: [server.pid] if server.pid else [] for name, server in self._servers.items()}
        pids["engine"] = [replica.pid for replica in self._replicas if replica.pid]
        return {
            "base_url": f"http://{HOST}:{self._ports['port']}/v1",
            "console_url": f"http://{HOST}:{self._ports['console-port']}",
            "model": self._first_model(),
            **credentials(self._secrets, demo=self._options.demo, external=self._external),
            **self._urls,
            **self._stripe.runtime_info(),
            "data_dir": str(self._dir.path),
            "pids": pids,
            "engines": engine_endpoints(self._replicas),
            "schedulers": ",".join(map(str, self._schedulers.values())),
        }

    def _first_model(self) -> str | None:
        served = [model.name for model in self._served]
        served.sort(key=set(self._options.external.embeddings).__contains__)  # a curl line shows a chat
        names = served or [replica.model for replica in self._replicas]
        return names[0] if names else self._options.model or None

    def _publish(self) -> None:
        info = self._runtime_info()
        if info != self._published:
            self._dir.publish(info, self._options.ready_file)
            self._published = info

    # Stop

    async def _shut_down(self) -> None:
        """Stop the roles from the API inwards, so that running requests can finish."""
        self._published = {}
        started = time.monotonic()
        if self._supervisor.pids() or self._servers:
            self._display.print_line("stopping ... (Ctrl-C again to hurry)")
        if self._client is not None:
            await self._client.close()
        for role in _DRAIN_ORDER:
            if not await self._supervisor.drain(role):
                self._display.print_line(f"{role} did not drain in time and was killed")
        spare = frozenset(server.pid for server in self._servers.values())
        for pid in await self._supervisor.end_descendants(spare):
            log.warning("process %s was left behind and has been ended", pid)
        for server in reversed(self._servers.values()):
            await server.stop()
        await self._supervisor.end_descendants(frozenset())
        self._dir.unpublish()
        if self._servers:
            self._display.print_line(f"stopped in {time.monotonic() - started:.1f} s")
