"""The agent with simulated engines: start, crash and restart, commands, drain, adoption, heartbeats."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from core.framing import pack, read_frame
from core.log_files import MAX_BYTES
from tests.support.ports import free_port
from tests.support.processes import gone
from tests.support.waiting import until
from workers.engine_sleep import PROOF_PROMPTS, Proof
from workers.wire import (
    AgentHello,
    Claim,
    CommandResult,
    Heartbeat,
    ReplicaCommand,
    ReplicaState,
    ReplicaStatus,
)

CHECKOUT = Path(__file__).resolve().parents[3]
_incoming = msgspec.msgpack.Decoder(AgentHello | Heartbeat | CommandResult)


class Scheduler:
    """The scheduler's side of the agent's socket."""

    def __init__(self) -> None:
        self.hellos: list[AgentHello] = []
        self.beats: list[Heartbeat] = []
        self.results: dict[str, CommandResult] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        claiming = asyncio.create_task(self._claim(writer))
        try:
            while True:
                match _incoming.decode(await read_frame(reader)):
                    case AgentHello() as hello:
                        self.hellos.append(hello)
                    case Heartbeat() as beat:
                        self.beats.append(beat)
                    case CommandResult() as result:
                        self.results[result.command_id] = result
        except (EOFError, OSError):
            writer.close()
        finally:
            claiming.cancel()

    async def _claim(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(pack(msgspec.msgpack.encode(Claim(1))))
            await asyncio.sleep(1.0)

    async def command(
        self, replica: str, action: str, deadline_s: float = 20.0, level: int = 1
    ) -> CommandResult:
        assert self._writer is not None
        name = f"{action}-{len(self.results)}"
        command = ReplicaCommand(name, replica, action, deadline_s, level)
        self._writer.write(pack(msgspec.msgpack.encode(command)))
        return await until(lambda: self.results.get(name), 30.0)

    @property
    def replicas(self) -> list[ReplicaStatus]:
        return self.beats[-1].replicas if self.beats else []

    def states(self) -> list[ReplicaState]:
        return [replica.state for replica in self.replicas]

    async def ready(self, count: int = 1) -> list[ReplicaStatus]:
        return await until(
            lambda: self.replicas if self.states() == [ReplicaState.READY] * count else None,
            40.0,
            "replicas ready",
        )


class Host:
    """One machine with its agent."""

    def __init__(self, data_dir: Path, scheduler_port: int) -> None:
        self.data_dir = data_dir
        self.env = {
            **os.environ,
            "PENSTOCK_DATA_DIR": str(data_dir),
            "PENSTOCK_SCHEDULER_PORT": str(scheduler_port),
            "PENSTOCK_INTERNAL_TOKEN": "internal",
            "PENSTOCK_ENGINE_KEY": "engine-key",
            "PENSTOCK_ENGINE": "sim",
            "PENSTOCK_SIM_SPEEDUP": "5",
        }
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, **env: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli.main", "agent", cwd=CHECKOUT, env={**self.env, **env}
        )

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 60)

    def engine_pids(self) -> list[int]:
        mark = str(self.data_dir)
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if "sim.engine" in (process.info["cmdline"] or []):
                try:
                    if mark in process.environ().get("TEST_HOST", ""):
                        found.append(process.pid)
                except psutil.Error:
                    continue
        return found


Begin = Callable[..., Awaitable[tuple[Host, Scheduler]]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    port = free_port()
    scheduler = Scheduler()
    host = Host(tmp_path, port)

    async def go(*, with_scheduler: bool = True, **env: str) -> tuple[Host, Scheduler]:
        if with_scheduler:
            await scheduler.start(port)
        await host.start(TEST_HOST=str(tmp_path), **env)
        return host, scheduler

    yield go
    if host.process is not None and host.process.returncode is None:
        await host.stop()
    await scheduler.close()
    for pid in host.engine_pids():
        os.kill(pid, signal.SIGKILL)


async def call(replica: ReplicaStatus, **body: Any) -> dict[str, Any]:
    headers = {"authorization": "Bearer engine-key"}
    request = {"model": replica.model, **body}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{replica.url}/v1/completions", json=request) as answer,
    ):
        return msgspec.json.decode(await answer.read())


async def test_warms_up_before_ready_and_counts_from_there(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    assert scheduler.hellos[0].token == "internal"
    assert scheduler.hellos[0].agent_id == scheduler.beats[-1].agent_id
    assert replica.simulated
    assert replica.model == "penstock/tiny"
    assert replica.warmup_counters.generation_tokens > 0
    assert (replica.block_size, replica.kv_blocks) == (32, 2304)
    usage = (await call(replica, prompt="one two three", max_tokens=7))["usage"]

    def settled() -> bool:
        now, base = scheduler.replicas[0].counters, scheduler.replicas[0].warmup_counters
        return (
            now.generation_tokens - base.generation_tokens == usage["completion_tokens"]
            and now.prompt_tokens - base.prompt_tokens == usage["prompt_tokens"]
        )

    await until(settled)
    assert await host.stop() == 0
    assert host.engine_pids() == []


@pytest.mark.promise(22)
async def test_every_engine_demands_the_key_and_listens_on_loopback(begin: Begin) -> None:
    _, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    async with aiohttp.ClientSession() as client, client.get(f"{replica.url}/v1/models") as answer:
        assert answer.status == 401
    addresses = {
        item.laddr.ip
        for item in psutil.Process(replica.pid).net_connections("tcp")
        if item.status == "LISTEN"
    }
    assert addresses == {"127.0.0.1"}
    environment = psutil.Process(replica.pid).environ()
    assert not [name for name in environment if name.startswith("PENSTOCK_") or name == "DATABASE_URL"]
    assert "engine-key" not in " ".join(psutil.Process(replica.pid).cmdline())


async def test_a_killed_engine_restarts_as_a_new_incarnation(begin: Begin) -> None:
    _, scheduler = await begin(PENSTOCK_REPLICAS="2")
    first, other = await scheduler.ready(2)
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: ReplicaState.FAILED in scheduler.states())
    assert "SIGKILL" in scheduler.replicas[0].detail
    again = (await scheduler.ready(2))[0]
    assert again.boot_id != first.boot_id
    assert again.pid != first.pid
    assert again.restarts == 1
    assert again.url != first.url
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientConnectorError):  # a late request for it reaches no other engine
            await client.get(f"{first.url}/health")
    assert scheduler.replicas[1].boot_id == other.boot_id


async def test_a_scheduler_that_was_away_learns_the_last_counters_of_an_ended_engine(begin: Begin) -> None:
    host, scheduler = await begin()
    first = (await scheduler.ready())[0]
    usage = (await call(first, prompt="x", max_tokens=40))["usage"]
    counted = first.warmup_counters.generation_tokens + usage["completion_tokens"]
    await until(lambda: scheduler.replicas[0].counters.generation_tokens == counted)
    await scheduler.close()
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: gone(first.pid))
    successor = Scheduler()
    await successor.start(int(host.env["PENSTOCK_SCHEDULER_PORT"]))
    try:

        async def new_engine() -> bool:  # the agent may not have seen yet that the old one has ended
            return (await successor.ready())[0].boot_id != first.boot_id

        await until(new_engine)
        [ended] = successor.beats[-1].ended
        assert ended.status.boot_id == first.boot_id
        assert ended.status.counters.generation_tokens == counted
        assert 0 <= ended.ended_age_s <= ended.scrape_age_s < 60
    finally:
        await successor.close()


async def test_drain_waits_for_running_requests_and_resume_reopens(begin: Begin) -> None:
    _, scheduler = await begin(PENSTOCK_SIM_SPEEDUP="1")
    replica = (await scheduler.ready())[0]
    request = asyncio.create_task(call(replica, prompt="x", max_tokens=400))
    await until(lambda: scheduler.replicas[0].running == 1)
    result = await scheduler.command(replica.replica_id, "drain", 0.0)
    assert not result.ok
    assert "1 requests were still running" in result.message
    result = await scheduler.command(replica.replica_id, "drain")
    assert result.ok, result.message
    assert request.done() or await request
    assert request.result()["usage"]["completion_tokens"] == 400
    await until(lambda: scheduler.states() == [ReplicaState.DRAINING])
    assert (await scheduler.command(replica.replica_id, "resume")).ok
    assert (await scheduler.ready())[0].boot_id == replica.boot_id


async def test_sleep_wake_stop_restart_kill(begin: Begin) -> None:
    _, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    name = replica.replica_id
    asked = await scheduler.command(name, "answers")
    assert (asked.ok, len(msgspec.json.decode(asked.message, type=list[Proof]))) == (True, len(PROOF_PROMPTS))
    assert (await scheduler.command(name, "sleep")).ok
    await until(lambda: scheduler.states() == [ReplicaState.ASLEEP])
    refused = await scheduler.command(name, "drain")
    assert not refused.ok
    assert "asleep" in refused.message
    assert (await scheduler.command(name, "wake")).ok
    await scheduler.ready()
    assert (await scheduler.command(name, "stop")).ok
    await until(lambda: scheduler.states() == [ReplicaState.STOPPED])
    assert gone(replica.pid)
    assert (await scheduler.command(name, "resume")).ok
    second = (await scheduler.ready())[0]
    assert (await scheduler.command(name, "restart")).ok
    await until(lambda: scheduler.replicas[0].boot_id != second.boot_id)
    third = (await scheduler.ready())[0]
    assert (await scheduler.command(name, "kill")).ok
    await until(lambda: scheduler.replicas[0].boot_id != third.boot_id)
    await scheduler.ready()
    unknown = await scheduler.command("nobody", "drain")
    assert (unknown.ok, "no replica" in unknown.message) == (False, True)
    assert not (await scheduler.command(name, "explode")).ok


@pytest.mark.parametrize("level", [1, 2])
async def test_a_wake_is_proved_and_its_tokens_are_no_customers(begin: Begin, level: int) -> None:
    _, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    name = replica.replica_id
    assert (await scheduler.command(name, "sleep", level=level)).ok
    await until(lambda: scheduler.states() == [ReplicaState.ASLEEP])
    asleep = scheduler.replicas[0]
    assert (asleep.sleep_level, asleep.phase) == (level, f"asleep_{level}")
    assert (asleep.times.drain.count, asleep.times.load.count) == (1, 1)
    assert (await scheduler.command(name, "wake")).ok
    awake = (await scheduler.ready())[0]
    assert awake.boot_id == replica.boot_id
    assert (awake.counters, awake.warmup_counters) == (replica.warmup_counters, replica.warmup_counters)
    assert (awake.times.wake_1.count, awake.times.wake_2.count) == ((1, 0) if level == 1 else (0, 1))
    usage = (await call(awake, prompt="x", max_tokens=5))["usage"]
    counted = awake.counters.generation_tokens + usage["completion_tokens"]
    await until(lambda: scheduler.replicas[0].counters.generation_tokens == counted)


async def test_it_goes_from_level_1_to_2_and_a_busy_replica_stays_awake(begin: Begin) -> None:
    _, scheduler = await begin(PENSTOCK_SIM_SPEEDUP="1")
    replica = (await scheduler.ready())[0]
    name = replica.replica_id
    request = asyncio.create_task(call(replica, prompt="x", max_tokens=400))
    await until(lambda: scheduler.replicas[0].running == 1)
    refused = await scheduler.command(name, "sleep", 0.0)
    assert (refused.ok, "1 requests were still running" in refused.message) == (False, True)
    await scheduler.ready()
    assert (await request)["usage"]["completion_tokens"] == 400
    assert (await scheduler.command(name, "sleep")).ok
    assert (await scheduler.command(name, "sleep", level=2)).ok
    await until(lambda: scheduler.replicas[0].sleep_level == 2)
    wrong = await scheduler.command(name, "sleep", level=3)
    assert (wrong.ok, wrong.message) == (False, "level is 3, must be 1 or 2")
    assert (await scheduler.command(name, "wake")).ok
    await scheduler.ready()


@pytest.mark.parametrize("fault", ["wake_garbles=true", "wake_errors=1"])
async def test_a_wake_that_is_not_proved_ends_the_engine(begin: Begin, fault: str) -> None:
    _, scheduler = await begin(PENSTOCK_SIM_FAILPOINTS=fault)
    replica = (await scheduler.ready())[0]
    assert (await scheduler.command(replica.replica_id, "sleep", level=2)).ok
    began = len(scheduler.beats)
    woken = await scheduler.command(replica.replica_id, "wake")
    assert not woken.ok
    why = "its weights are wrong" if "garbles" in fault else "failpoint: wake_errors"
    assert why in woken.message
    await until(lambda: scheduler.replicas[0].boot_id not in ("", replica.boot_id))
    states = [beat.replicas[0] for beat in scheduler.beats[began:]]
    assert not [
        each for each in states if each.boot_id == replica.boot_id and each.state is ReplicaState.READY
    ]
    assert [each for each in states if each.state is ReplicaState.FAILED and why in each.detail]
    again = (await scheduler.ready())[0]
    assert (again.restarts, again.times.wake_2.count) == (1, 0)


async def test_a_sleeping_engine_is_adopted_asleep_and_proves_its_wake(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    assert (await scheduler.command(replica.replica_id, "sleep", level=2)).ok
    await host.stop(signal.SIGKILL)
    beats = len(scheduler.beats)
    await host.start(TEST_HOST=str(host.data_dir))
    await until(lambda: len(scheduler.beats) > beats and scheduler.states() == [ReplicaState.ASLEEP])
    now = scheduler.replicas[0]
    assert (now.boot_id, now.sleep_level, now.times.load.count) == (replica.boot_id, 2, 1)
    assert (await scheduler.command(replica.replica_id, "wake")).ok
    assert (await scheduler.ready())[0].boot_id == replica.boot_id


async def test_an_engine_that_was_waking_is_not_adopted(begin: Begin) -> None:
    host, scheduler = await begin(PENSTOCK_SIM_FAILPOINTS="wake_s=600")
    replica = (await scheduler.ready())[0]
    assert (await scheduler.command(replica.replica_id, "sleep", level=2)).ok
    waking = asyncio.create_task(scheduler.command(replica.replica_id, "wake"))
    await until(lambda: scheduler.replicas[0].phase == "waking")
    assert scheduler.replicas[0].state is ReplicaState.LOADING
    waking.cancel()
    await host.stop(signal.SIGKILL)
    await host.start(TEST_HOST=str(host.data_dir))
    await until(lambda: gone(replica.pid))
    await until(lambda: scheduler.replicas[0].boot_id not in ("", replica.boot_id))
    await scheduler.ready()


@pytest.mark.promise(22)
async def test_development_endpoints_are_the_agents_alone(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    headers = {"authorization": "Bearer engine-key"}
    own = {**headers, "x-penstock-agent": (host.data_dir / "agent-key").read_text().strip()}
    async with aiohttp.ClientSession() as client:
        for path in ("/sleep?level=2", "/wake_up", "/collective_rpc"):
            async with client.post(f"{replica.url}{path}", headers=headers) as answer:
                assert answer.status == 403
        async with client.get(f"{replica.url}/is_sleeping", headers=own) as answer:
            assert await answer.json() == {"is_sleeping": False}
        assert (await scheduler.command(replica.replica_id, "sleep")).ok
        body = {"model": replica.model, "prompt": "x"}
        async with client.post(f"{replica.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 503  # it would wait in the engine without an end


async def test_a_new_agent_adopts_running_engines(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    request = asyncio.create_task(call(replica, prompt="x", max_tokens=1500))
    await until(lambda: scheduler.replicas[0].running == 1)
    await host.stop(signal.SIGKILL)
    assert psutil.pid_exists(replica.pid)
    beats = len(scheduler.beats)
    await host.start(TEST_HOST=str(host.data_dir))
    await until(lambda: len(scheduler.beats) > beats and scheduler.states() == [ReplicaState.READY])
    now = scheduler.replicas[0]
    assert (now.pid, now.boot_id, now.url) == (replica.pid, replica.boot_id, replica.url)
    assert now.warmup_counters == replica.warmup_counters
    assert (await request)["usage"]["completion_tokens"] == 1500
    os.kill(replica.pid, signal.SIGKILL)
    await until(lambda: scheduler.replicas[0].boot_id != replica.boot_id)
    await scheduler.ready()
    assert await host.stop() == 0
    assert host.engine_pids() == []


async def test_engines_of_other_settings_are_not_adopted(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    await host.stop(signal.SIGKILL)
    await host.start(TEST_HOST=str(host.data_dir), PENSTOCK_MODEL="llama-3.3-70b", PENSTOCK_SIM_SPEEDUP="100")
    await until(lambda: [each.model for each in scheduler.replicas] == ["llama-3.3-70b"])
    await scheduler.ready()
    await until(lambda: gone(replica.pid))
    assert scheduler.beats[-1].host_kind == "gpu-h100x8-640gb"


async def test_a_large_log_of_an_engine_is_moved_aside(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "host-id").write_text("host-1")
    log = tmp_path / "logs" / "engine-sim-host-1-tiny-0.log"
    log.parent.mkdir()
    with log.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    _, scheduler = await begin()
    await until(lambda: log.with_suffix(".log.1").exists() and log.stat().st_size <= MAX_BYTES)
    await scheduler.ready()


async def test_an_engine_that_no_state_file_lists_is_ended(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    await host.stop(signal.SIGKILL)
    (host.data_dir / "agent-state.json").unlink()
    await host.start(TEST_HOST=str(host.data_dir))
    await until(lambda: gone(replica.pid))
    await until(lambda: scheduler.replicas[0].pid not in (0, replica.pid))
    await scheduler.ready()
    assert host.engine_pids() == [scheduler.replicas[0].pid]


async def test_an_engine_that_is_being_ended_is_not_adopted(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    os.kill(replica.pid, signal.SIGSTOP)  # it takes no notice of SIGTERM
    host.process.send_signal(signal.SIGTERM)
    state = host.data_dir / "agent-state.json"
    await until(lambda: '"ending":true' in state.read_text())
    await host.stop(signal.SIGKILL)
    os.kill(replica.pid, signal.SIGCONT)
    await host.start(TEST_HOST=str(host.data_dir))
    await until(lambda: scheduler.replicas[0].pid not in (0, replica.pid))
    await scheduler.ready()
    assert host.engine_pids() == [scheduler.replicas[0].pid]


async def test_a_second_agent_on_the_directory_is_refused(begin: Begin) -> None:
    host, scheduler = await begin()
    replica = (await scheduler.ready())[0]
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "agent",
        cwd=CHECKOUT, stderr=asyncio.subprocess.PIPE, env={**host.env, "TEST_HOST": str(host.data_dir)},
    )  # fmt: skip
    _, errors = await asyncio.wait_for(second.communicate(), 60)
    assert second.returncode == 2
    last = errors.decode().splitlines()[-1]
    assert f"another agent (process {host.process.pid}) runs on {host.data_dir}" in last
    assert host.engine_pids() == [replica.pid]


async def test_an_agent_waits_for_the_end_of_the_one_before(begin: Begin) -> None:
    host, scheduler = await begin(PENSTOCK_SIM_SPEEDUP="1")
    replica = (await scheduler.ready())[0]
    request = asyncio.create_task(call(replica, prompt="x", max_tokens=500))
    await until(lambda: scheduler.replicas[0].running == 1)
    before = host.process
    before.send_signal(signal.SIGTERM)
    await host.start(TEST_HOST=str(host.data_dir))
    assert await asyncio.wait_for(before.wait(), 60) == 0
    assert (await request)["usage"]["completion_tokens"] == 500
    assert gone(replica.pid)
    await until(lambda: scheduler.replicas and scheduler.replicas[0].pid not in (0, replica.pid))
    await scheduler.ready()
    assert host.engine_pids() == [scheduler.replicas[0].pid]


async def test_runs_without_a_scheduler_and_finds_it_later(begin: Begin) -> None:
    host, scheduler = await begin(with_scheduler=False)
    await until(lambda: host.engine_pids(), 30.0)
    await scheduler.start(int(host.env["PENSTOCK_SCHEDULER_PORT"]))
    await scheduler.ready()
    await scheduler.close()
    again = Scheduler()
    await again.start(int(host.env["PENSTOCK_SCHEDULER_PORT"]))
    await again.ready()
    assert len(again.hellos) == 1
    assert again.beats[0].seq > 1
    await again.close()


async def test_host_seconds_add_up(begin: Begin) -> None:
    _, scheduler = await begin(PENSTOCK_SIM_SPEEDUP="1")
    replica = (await scheduler.ready())[0]
    await call(replica, prompt="x", max_tokens=300)
    await until(lambda: scheduler.beats[-1].state_seconds.get("serving", 0) >= 1)
    await until(lambda: scheduler.beats[-1].state_seconds.get("warm_idle", 0) >= 1)
    totals = [sum(beat.state_seconds.values()) for beat in scheduler.beats]
    assert totals == sorted(totals)
    last = scheduler.beats[-1]
    by_model = last.model_seconds["penstock/tiny"]
    assert sum(by_model.values()) <= sum(last.state_seconds.values())
    assert by_model["serving"] == last.state_seconds["serving"]


async def test_external_engine_is_only_probed(begin: Begin, tmp_path: Path) -> None:
    engine_port = free_port()
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sim.engine", "--port", str(engine_port), "--api-key", "engine-key"
    )
    try:
        url = f"http://127.0.0.1:{engine_port}"
        host, scheduler = await begin(PENSTOCK_ENGINE="external", PENSTOCK_ENGINE_URL=url)
        replica = (await scheduler.ready())[0]
        assert (replica.url, replica.engine, replica.pid) == (url, "external", 0)
        assert replica.counters.generation_tokens == 0
        assert scheduler.beats[-1].host_kind == "external"
        refused = await scheduler.command(replica.replica_id, "stop")
        assert not refused.ok
        await host.stop()
        assert engine.returncode is None
    finally:
        engine.kill()
        await engine.wait()


async def start_agent(data_dir: Path, model: str, **env: str) -> asyncio.subprocess.Process:
    """An agent's process without a scheduler; its messages are in stderr."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "agent", "--engine", "sim", "--model", model,
        cwd=CHECKOUT, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PENSTOCK_DATA_DIR": str(data_dir), "PENSTOCK_INTERNAL_TOKEN": "x", **env},
    )  # fmt: skip


async def test_invalid_settings_are_one_line(tmp_path: Path) -> None:
    process = await start_agent(tmp_path, "penstock/tiny", PENSTOCK_PROFILE="nope")
    _, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 2
    assert "has no profile 'nope'" in errors.decode().splitlines()[-1]


async def test_an_agent_says_that_it_waits_for_a_model_that_is_not_added(tmp_path: Path) -> None:
    process = await start_agent(tmp_path, "nope")
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            async for line in process.stderr:
                if b"the model nope is not known; waiting until it is added" in line:
                    break
        assert process.returncode is None
    finally:
        process.terminate()
        await process.communicate()
