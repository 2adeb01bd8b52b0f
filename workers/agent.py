"""The agent, one per GPU host: runs the host's replicas and reports them to the scheduler every 500 ms."""

import asyncio
import logging
import secrets
import signal
import socket
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec
import uvloop
import zmq.asyncio
from prometheus_client import Gauge

from core.child import free_port
from core.clock import Clock, SystemClock
from core.errors import CalledOff, InvalidRequest, PenstockError
from core.exit_deadline import ExitDeadline
from core.ids import incarnation
from core.log_files import rotate
from core.settings import Settings
from core.supervise import supervise
from core.telemetry import MetricsServer
from workers.acceptance.gate import HostGate
from workers.adapter_host import AdapterHost
from workers.adapter_options import max_adapters
from workers.added_models import with_added
from workers.answer_quality import AnswerRule
from workers.catalog import Catalog, load_catalog
from workers.economics import HostAccount, ReplicaShare
from workers.engine_api import EngineApi
from workers.engine_args import check_on_host
from workers.engine_command import engine_command
from workers.engine_guard import agent_key
from workers.engine_install import may_run
from workers.engine_process import EngineProcess
from workers.engine_spec import EngineSpec, environment
from workers.external import external_engines
from workers.held_engine import EngineAccess
from workers.host_access import HostAccess
from workers.host_lock import HostLock
from workers.host_models import parse_models
from workers.kv_endpoints import KvEndpoints, kv_endpoints, make_directory
from workers.kv_events import KvSubscriber
from workers.kv_events_feed import KvFeed, KvOutbox
from workers.machine import release
from workers.model_entry import entry_path, wanted_entries
from workers.plan import HostPlan, ReplicaPlan
from workers.prepare import prepare, stated_kind
from workers.ranks import target_names
from workers.replica import ReplicaRunner
from workers.replica_view import Replica
from workers.saved_engine import Deployed
from workers.shared_gpus import SharedGpus, host_memory_gb
from workers.state_file import AgentState, load_state, save_state
from workers.stray_engines import end_strays
from workers.weights_fetch import fetch_of
from workers.wire import (
    ANY_DISTANCE,
    SIMULATED_HOST,
    CommandResult,
    Heartbeat,
    ReplicaCommand,
    ReplicaState,
    ReplicaStatus,
)

log = logging.getLogger(__name__)

TICK_S = 0.25
"""Seconds between updates of the host's accounting."""
ROTATE_S = 10.0
"""Seconds between looks at the size of the engines' logs."""
DRAIN_TIMEOUT_S = 15.0
"""Seconds that running requests get when the agent stops, before the engines' own shutdown timeout."""
STOP_S = 90.0
"""Seconds that a stop may take: the drain, the longest shutdown timeout of an engine, and a margin. The next agent ends
engines that are left then."""

_REPLICAS = Gauge("penstock_agent_replicas", "Replicas of this host by state.", ["state"])
_RESTARTS = Gauge("penstock_agent_restarts", "Restarts of a replica since the agent began.", ["replica"])
_CONNECTED = Gauge("penstock_agent_scheduler_connected", "1 while a scheduler serves this agent.")


def main(settings: Settings) -> int:
    """Run this host's engines until SIGTERM or SIGINT, drain them and return 0; a second signal kills them.

    Raises PenstockError when the host cannot serve.
    """
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    stop, force = asyncio.Event(), asyncio.Event()
    lock = HostLock(settings.data_dir)
    deadline = ExitDeadline(STOP_S, supervisor_pid=settings.supervisor_pid)
    deadline.start()

    def on_signal() -> None:
        deadline.arm()
        lock.on_ending()
        (force if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    metrics = MetricsServer(settings.metrics_port, host=settings.metrics_host)
    await metrics.start()
    try:
        if await lock.acquire(stop):
            await _hold(Agent(settings, load_catalog(), SystemClock()), stop, force)
    finally:
        lock.release()
        await metrics.close()
    return 0


async def _hold(agent: "Agent", stop: asyncio.Event, force: asyncio.Event) -> None:
    try:
        await agent.run(stop)
    finally:
        await agent.close(force)


class Agent:
    """The replicas of a host, their accounting, and the connection to the scheduler."""

    def __init__(self, settings: Settings, catalog: Catalog, clock: Clock) -> None:
        self._settings = settings
        self._catalog = catalog
        self._packaged = frozenset(catalog.models)
        self._clock = clock
        self._host_id = host_id(settings.data_dir)
        self._boot_id = incarnation("agent")
        self._account = HostAccount(clock.monotonic())
        self._plan: HostPlan | None = None
        self._host_kind = stated_kind(settings, catalog)
        self._gate = HostGate(settings, catalog, clock)
        self._gpus = SharedGpus(list, 0.0, None)
        self._seq = 0
        self._closing = False
        self.replicas: list[Replica] = []
        self._built = False
        """Whether `replicas` has all that were planned."""
        self._state_path = settings.data_dir / "agent-state.json"
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._outbox = KvOutbox()
        self._kv_context: zmq.asyncio.Context | None = None
        self._subscribers: list[KvSubscriber] = []
        self._adapters = AdapterHost(
            settings.data_dir,
            lambda question: self._access.link.ask(question),
            self._unload_adapter,
            bound_bytes=int(settings.adapters_gb * 1e9),
        )
        self._serves_adapters = False
        self._wants = _unknown_models(settings, catalog)
        self._access = HostAccess(
            settings,
            self._host_id,
            heartbeat=self.heartbeat,
            execute=self.execute,
            outbox=self._outbox,
            run=self._boot_id,
            wants=self._wants,
            now=clock.now,
        )

    async def _make_plan(self) -> HostPlan:
        """The plan of this host, when the entries of models that admins have added are known."""
        if self._wants:
            entries = await wanted_entries(self._access.link, self._wants, self._settings.data_dir)
            self._catalog = with_added(self._catalog, entries)
        return await prepare(self._settings, self._catalog, self._host_id)

    async def _prepare(self) -> HostPlan:
        """The plan of this host, when it may serve."""
        self._plan = plan = await self._gate.planned(self._make_plan)
        state = load_state(self._state_path)
        left = self._end_unplanned(
            state, {each.replica_id for each in plan.replicas} & self._last_state().engines.keys()
        )
        await self._gate.admit(plan, busy=bool(left))
        return plan

    async def run(self, stop: asyncio.Event) -> None:
        """Prepare the host and run its replicas until `stop` is set. Raises PenstockError when it cannot serve."""
        preparing = asyncio.create_task(self._prepare())
        stopping = asyncio.create_task(stop.wait())
        self._tasks.append(supervise("scheduler-link", self._access.run))
        self._tasks.append(supervise("accounting", self._run_accounting))
        self._tasks.append(supervise("engine-logs", self._rotate_logs))
        try:
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not preparing.done():
                return
            self._build(preparing.result())
            self._tasks += [supervise("kv-events", subscriber.run) for subscriber in self._subscribers]
            await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                if task.done():
                    task.result()
        finally:
            preparing.cancel()
            stopping.cancel()
            await asyncio.gather(preparing, stopping, return_exceptions=True)

    async def close(self, force: asyncio.Event) -> None:
        """Drain and stop all engines (kill them when `force` is set), then disconnect from the scheduler."""
        self._closing = True
        draining = asyncio.ensure_future(self._shut_down())
        forced = asyncio.ensure_future(force.wait())
        self._access.link.heartbeat_now()
        await asyncio.wait([draining, forced], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await asyncio.gather(*(self._kill(replica) for replica in self.replicas))
        await draining
        forced.cancel()
        self._access.link.heartbeat_now()
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, forced, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._kv_context is not None:
            self._kv_context.destroy(linger=0)

    async def _shut_down(self) -> None:
        await asyncio.gather(*(replica.shut_down(DRAIN_TIMEOUT_S) for replica in self.replicas))

    async def _kill(self, replica: Replica) -> None:
        with suppress(PenstockError):
            await replica.command("kill", 0.0)

    def _last_state(self) -> AgentState:
        """The state of the last run, without engines that have other keys than this one."""
        state = load_state(self._state_path)
        if state.keys not in ("", self._access.keys_mark):
            state.engines = {}
        return state

    def _build(self, plan: HostPlan) -> None:
        self._session = self._access.session()
        state = self._last_state()
        memory_gb = host_memory_gb(self._catalog, plan.host_kind, simulated=self._settings.engine == "sim")
        self._gpus = SharedGpus(lambda: self._runners, memory_gb, self._catalog.ladder)
        runners = [self._make_runner(each, plan, state) for each in plan.replicas]
        for runner in runners:  # before any engine starts: one that serves keeps its GPUs
            runner.adopt()
        self.replicas += runners
        self._built = True
        self._tasks += [supervise(f"replica {runner.plan.replica_id}", runner.run) for runner in runners]
        self._tasks += [
            supervise(f"engine {url}", engine.run)
            for url, engine in external_engines(
                self._settings,
                plan.engine_urls,
                self._session,
                self._access.credentials.engine_key,
                self._host_id,
                self.replicas.append,
                self._clock,
            )
        ]

    def _end_unplanned(self, state: AgentState, wanted: set[str]) -> set[int]:
        """Kill engines of an earlier run that are not in this plan, or of which nothing is known.

        Returns the process ids of the others.
        """
        kept = set()
        for replica_id, saved in state.engines.items():
            process = EngineProcess.adopt(saved.process)
            if process is not None and replica_id in wanted:
                kept.add(process.pid)
            elif process is not None:
                log.info("ending the engine of %s, which is no longer wanted", replica_id)
                process.kill()
        end_strays(self._settings.data_dir, kept)
        return kept

    def _make_runner(self, plan: ReplicaPlan, host: HostPlan, state: AgentState) -> ReplicaRunner:
        settings, session = self._settings, self._session
        if session is None:
            raise RuntimeError("the agent has not started")
        key, own_key = self._access.credentials.engine_key, agent_key(settings.data_dir)
        address = self._access.address
        ranks = plan.capacity.dp_ranks
        kv = kv_endpoints(settings.data_dir, plan.replica_id, ranks) if self._is_exact(plan) else None

        def access(plan: ReplicaPlan, url: str | None) -> EngineAccess:
            self._serve_adapters(plan)
            url = url or address.url(free_port(address.bind))
            command = engine_command(
                plan,
                host=address.bind,
                port=int(url.rsplit(":", 1)[1]),
                engine_env=environment(settings.engine_env, plan.spec),
                engine_key=key,
                agent_key=own_key,
                data_dir=settings.data_dir,
                sim_speedup=settings.sim_speedup,
                replicas=len(host.replicas),
                kv=kv,
                entry=None
                if plan.model.name in self._packaged
                else entry_path(settings.data_dir, plan.model.name),
                strict=self._access.credentials.joined,
                tls=self._access.tls,
            )
            return EngineAccess(url, command, EngineApi(session, url, key, own_key))

        name = plan.replica_id.replace("/", "-")
        logs = settings.data_dir / "logs"
        runner = ReplicaRunner(
            plan,
            access=access,
            log_file=logs / f"engine-{name}.log",
            clock=self._clock,
            saved=state.engines.get(plan.replica_id),
            save=self._save,
            times=state.times.get(plan.replica_id),
            fetch=fetch_of(
                lambda: runner.plan,
                settings.weights_cache_gb,
                logs / f"prefetch-{name}.log",
                lambda: [each.plan for each in self._runners],
                None if plan.model.name in self._packaged else self._check_arguments,
            ),
            measure=(lambda api: self._gate.probe(runner.plan, api)) if plan.gpu_ids else None,
            deployed=self._deployed(plan, state),
            gpus_taken=lambda replica: self._gpus.taken(replica),
        )
        runner.capacity = self._gate.capacity(runner.plan)
        if kv is not None:
            self._subscribe(runner, kv)
        return runner

    async def _check_arguments(self, plan: ReplicaPlan) -> None:
        """Whoever added the model may have left its arguments unchecked, and weights take long to fetch."""
        await check_on_host(plan.model, plan.profile, environment(self._settings.engine_env, plan.spec))

    def _serve_adapters(self, plan: ReplicaPlan) -> None:
        """Answer engines that ask for adapters, from the first one on that may."""
        if not self._serves_adapters and max_adapters(plan.profile):
            self._serves_adapters = True
            self._tasks.append(supervise("adapters", self._adapters.run))

    async def _unload_adapter(self, name: str) -> None:
        for replica in self.replicas:
            if isinstance(replica, ReplicaRunner):
                await replica.unload_adapter(name)

    def _deployed(self, plan: ReplicaPlan, state: AgentState) -> Deployed:
        """The version of a replica by the last rollout; the base version when it cannot run that any more."""
        deployed = state.deployed.get(plan.replica_id, Deployed())
        try:
            plan.of_version(deployed.spec)
            self._check_environment(deployed.spec)
        except InvalidRequest as error:
            log.warning("replica %s runs the base version: %s", plan.replica_id, error.message)
            return Deployed()
        return deployed

    def _check_environment(self, spec: EngineSpec) -> None:
        """Raise InvalidRequest when this host has not the engine of a version."""
        directory = environment(self._settings.engine_env, spec)
        if not spec.engine_version or self._settings.engine == "sim" or may_run(directory):
            return
        why = "is not installed to the end" if directory.exists() else "is not there"
        raise InvalidRequest(
            f"this host has no engine {spec.engine_version}: {directory} {why}; `penstock engine install --version "
            f"{spec.engine_version} --lock FILE` installs it",
            param="engine_version",
        )

    def _is_exact(self, plan: ReplicaPlan) -> bool:
        """Whether the replica's engine should publish KV events."""
        kind = self._settings.prefix
        return (plan.model.prefix if kind == "auto" else kind) == "exact"

    def _subscribe(self, runner: ReplicaRunner, kv: KvEndpoints) -> None:
        make_directory(self._settings.data_dir)
        self._kv_context = self._kv_context or zmq.asyncio.Context()
        feeds = [
            self._outbox.feed(name)
            for name in target_names(runner.plan.replica_id, runner.plan.capacity.dp_ranks)
        ]

        def is_live(feed: KvFeed) -> bool:
            """Whether the feed is of this boot and its blocks have the size that prompts are split into."""
            sizes = (0, runner.metrics.block_size)
            same_size = feed.blocks.fits and feed.blocks.block_tokens in sizes
            return feed.live and feed.boot_id == runner.boot_id and same_size

        runner.events_live = lambda: all(is_live(feed) for feed in feeds)
        self._subscribers += [
            KvSubscriber(
                kv.of_rank(rank),
                feed,
                boot_id=lambda: runner.boot_id,
                now=self._clock.monotonic,
                context=self._kv_context,
                block_tokens=lambda: runner.metrics.block_size,
            )
            for rank, feed in enumerate(feeds)
        ]

    def _save(self) -> None:
        runners = self._runners
        engines = {
            runner.plan.replica_id: saved for runner in runners if (saved := runner.saved()) is not None
        }
        times = {runner.plan.replica_id: runner.times for runner in runners}
        deployed = {
            runner.plan.replica_id: runner.deployed for runner in runners if runner.deployed != Deployed()
        }
        save_state(self._state_path, AgentState(engines, times, deployed, self._access.keys_mark))

    async def _run_accounting(self) -> None:
        while True:
            shares = [
                ReplicaShare(
                    model=replica.plan.model_name,
                    state=replica.state,
                    busy=replica.busy,
                    share=self._gpus.share(replica)
                    if isinstance(replica, ReplicaRunner)
                    else replica.plan.share,
                )
                for replica in self.replicas
            ]
            self._account.tick(self._clock.monotonic(), shares)
            states = [replica.state for replica in self.replicas]
            for state in ReplicaState:
                _REPLICAS.labels(state.value).set(states.count(state))
            for replica in self.replicas:
                _RESTARTS.labels(replica.plan.replica_id).set(replica.status().restarts)
            _CONNECTED.set(self._access.link.connected)
            await asyncio.sleep(TICK_S)

    async def _rotate_logs(self) -> None:
        """Move large logs of engines aside, whose engines write on."""
        while True:
            for replica in self._runners:
                await asyncio.to_thread(rotate, replica.log_file)
            await asyncio.sleep(ROTATE_S)

    def heartbeat(self) -> Heartbeat:
        """The current state of the host, for the scheduler."""
        self._seq += 1
        plan = self._plan
        return Heartbeat(
            agent_id=self._host_id,
            host_id=f"{SIMULATED_HOST}{self._host_id}" if self._settings.engine == "sim" else self._host_id,
            boot_id=self._boot_id,
            seq=self._seq,
            region=self._settings.region,
            host_kind=plan.host_kind if plan is not None else self._host_kind or "local-cpu",
            gpus=plan.gpus if plan is not None else 0,
            replicas=[self._located(replica.status()) for replica in self.replicas],
            state_seconds=self._account.state_seconds,
            model_seconds=self._account.model_seconds,
            ended=[ended for replica in self._runners for ended in replica.ended()],
            sent_at=self._clock.monotonic(),
            acceptance=self._gate.report(),
            address=self._access.address.reach,
            version=release(),
            complete=self._built,
            memory_gb=self._gpus.memory_gb,
        )

    @property
    def _runners(self) -> list[ReplicaRunner]:
        """The replicas whose engines this agent runs."""
        return [each for each in self.replicas if isinstance(each, ReplicaRunner)]

    def _located(self, status: ReplicaStatus) -> ReplicaStatus:
        """`status` with the region and the GPUs of this host, by which requests may be restricted."""
        kind = self._catalog.hosts.get(self._plan.host_kind) if self._plan is not None else None
        gpu = kind.gpu if kind is not None else ""
        known = self._adapters.of(status.replica_id, status.boot_id)
        return msgspec.structs.replace(status, region=self._settings.region, gpu=gpu, adapters=known)

    async def execute(self, command: ReplicaCommand) -> CommandResult:
        """Execute a command of the scheduler; the result reports a failure."""
        replica = next((each for each in self.replicas if each.plan.replica_id == command.replica_id), None)
        if replica is None:
            return CommandResult(
                command.command_id, False, f"this host has no replica {command.replica_id!r}"
            )
        if self._closing:
            return CommandResult(command.command_id, False, "the agent of this host is stopping")
        try:
            if isinstance(replica, ReplicaRunner):
                self._gpus.check(replica, command.action, command.level)
            if command.action == "answers" and isinstance(replica, ReplicaRunner):
                return CommandResult(command.command_id, True, replica.answers())
            if command.action == "deploy" and isinstance(replica, ReplicaRunner):
                await self._deploy(replica, command)
            else:
                await replica.command(command.action, command.deadline_s, command.level)
        except PenstockError as error:
            refused, called_off = isinstance(error, InvalidRequest), isinstance(error, CalledOff)
            return CommandResult(command.command_id, False, error.message, refused, called_off)
        if command.action == "stop" and isinstance(replica, ReplicaRunner):
            replica.held = command.hold
        return CommandResult(command.command_id, True, f"{command.action}: done")

    async def _deploy(self, replica: ReplicaRunner, command: ReplicaCommand) -> None:
        """Give a replica another version of its engine. Raises PenstockError."""
        try:
            spec = msgspec.json.decode(command.spec, type=EngineSpec)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"the version cannot be read by this agent: {error}") from None
        self._check_environment(spec)
        most = command.max_logprob_distance
        rule = AnswerRule(command.same_answer, command.min_agreement, ANY_DISTANCE if most is None else most)
        await replica.deploy(spec, rule=rule, deadline_s=command.deadline_s)


def _unknown_models(settings: Settings, catalog: Catalog) -> tuple[str, ...]:
    """The models of this host that the catalog does not say how to serve; external engines say it themselves."""
    if not settings.model or settings.engine == "external":
        return ()
    names = (placed.name for placed in parse_models(settings.model))
    return tuple(name for name in names if name not in catalog.models)


def host_id(data_dir: Path) -> str:
    """This host's id: the machine's name and four hexadecimal digits, stored in the data directory when first made."""
    path = data_dir / "host-id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        name = f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(2)}"
        data_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
        return name
