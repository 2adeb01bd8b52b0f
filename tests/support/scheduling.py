"""What scheduler tests share: replicas to choose from, an agent that speaks the wire, clients."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from core.addresses import Address
from core.clock import SystemClock
from core.framing import pack, read_frame
from core.ids import uuid7
from scheduler.client import SchedulerClient
from scheduler.door import Door
from scheduler.service import SchedulerService
from scheduler.wire import PlaceRequest
from workers.wire import (
    AcceptanceReport,
    AgentHello,
    Capacity,
    CommandResult,
    Heartbeat,
    KvResync,
    RankStatus,
    ReplicaCommand,
    ReplicaState,
    ReplicaStatus,
)

TOKEN = "internal-token"
MODEL = "penstock/tiny"


def capacity(slots: int = 4, kv: int = 100_000, prefill: float = 10_000.0) -> Capacity:
    return Capacity(
        prefill_tokens_per_s=prefill,
        step_base_s=0.01,
        step_per_seq_s=0.001,
        max_num_seqs=slots,
        kv_cache_tokens=kv,
    )


def replica(name: str = "host/r0", slots: int = 4, kv: int = 100_000, **fields) -> ReplicaStatus:
    status = ReplicaStatus(
        replica_id=name,
        model=MODEL,
        url=f"http://127.0.0.1:1/{name}",
        engine="sim",
        boot_id="boot-1",
        state=ReplicaState.READY,
        capacity=capacity(slots, kv),
    )
    return msgspec.structs.replace(status, **fields)


def ranked(ranks: int) -> dict[str, object]:
    """The fields of a replica whose engine has `ranks` ranks of 64 sequences; none for one rank."""
    if ranks == 1:
        return {}
    whole = msgspec.structs.replace(capacity(64 * ranks, 100_000 * ranks), dp_ranks=ranks)
    return {"capacity": whole, "ranks": [RankStatus() for _ in range(ranks)]}


def beat(*replicas: ReplicaStatus, agent: str = "agent-1", seq: int = 1) -> Heartbeat:
    return Heartbeat(
        agent_id=agent,
        host_id=f"host-of-{agent}",
        boot_id="accounting-1",
        seq=seq,
        region="local",
        host_kind="local-cpu",
        gpus=0,
        replicas=list(replicas),
        state_seconds={"serving": seq},
    )


def request(name: str = "", tenant: str = "tenant-1", deadline_s: float = 20.0, **fields) -> PlaceRequest:
    made = PlaceRequest(name or str(uuid7()), tenant, MODEL, 100, 50, deadline_s=deadline_s)
    return msgspec.structs.replace(made, **fields)


class FakeAgent:
    """Speaks an agent's side of the socket; finds the scheduler again when it restarts."""

    def __init__(self, port: int, *replicas: ReplicaStatus, name: str = "agent-1") -> None:
        self.port, self.name = port, name
        self.replicas = list(replicas)
        self.commands: list[ReplicaCommand] = []
        self.resyncs: list[KvResync] = []
        self.answers = True
        self.silent = False
        self.acceptance: AcceptanceReport | None = None
        self.address = self.version = ""
        self.seq = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                self._send(writer, AgentHello(TOKEN, self.name))
                beating = asyncio.create_task(self._beat(writer))
                try:
                    await self._listen(reader, writer)
                finally:
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)
            except (OSError, EOFError):
                await asyncio.sleep(0.05)
            finally:
                writer.close()

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            if not self.silent:
                self.seq += 1
                message = beat(*self.replicas, agent=self.name, seq=self.seq)
                facts = {"acceptance": self.acceptance, "address": self.address, "version": self.version}
                self._send(writer, msgspec.structs.replace(message, **facts))
            await asyncio.sleep(0.1)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command = msgspec.msgpack.decode(await read_frame(reader), type=ReplicaCommand | KvResync)
            if isinstance(command, KvResync):
                self.resyncs.append(command)
                continue
            self.commands.append(command)
            if self.answers:
                self._send(writer, CommandResult(command.command_id, True, f"{command.action} done"))

    def _send(self, writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
        writer.write(pack(msgspec.msgpack.encode(message)))


@asynccontextmanager
async def service(
    port: int = 0, *, entry_of: Callable[[str], str] = lambda name: "", **options
) -> AsyncIterator[SchedulerService]:
    door = Door("127.0.0.1", port, TOKEN)
    door.entry_of = entry_of
    await door.start()
    made = SchedulerService(door, clock=SystemClock(), rng=random.Random(1), **options)
    made.start()
    try:
        yield made
    finally:
        await door.close()
        await made.close()


@asynccontextmanager
async def agent(port: int, *replicas: ReplicaStatus, name: str = "agent-1") -> AsyncIterator[FakeAgent]:
    made = FakeAgent(port, *replicas, name=name)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def client(*ports: int, token: str = TOKEN, name: str = "api") -> AsyncIterator[SchedulerClient]:
    addresses = [Address("127.0.0.1", port) for port in ports]
    made = SchedulerClient(addresses, token, name=name, clock=SystemClock(), rng=random.Random(2))
    await made.start()
    try:
        yield made
    finally:
        await made.close()
