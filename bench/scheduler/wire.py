"""`python -m bench.scheduler.wire`: what a request costs the scheduler, with real clients on real sockets.

The scheduler runs in a process of its own, with its door and its service, without PostgreSQL. Clients are other
processes with `scheduler.client.SchedulerClient`, as API processes have it. A request asks for a placement, reports its
first token, its progress once, and its release. At each rate requests arrive evenly and are held for HOLD_S; at the end
each client keeps IN_FLIGHT requests going as fast as it can. CPU is that of the scheduler's process alone.

example: python -m bench.scheduler.wire --seconds 4
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil
import uvloop

from bench.provenance import provenance
from bench.scheduler.world import MODEL, heartbeats
from core.addresses import Address
from core.clock import SystemClock
from core.ids import uuid7
from scheduler.client import SchedulerClient
from scheduler.door import Door
from scheduler.service import SchedulerService
from scheduler.wire import PlaceRequest, Released
from workers.kv_events_feed import KvOutbox
from workers.scheduler_link import SchedulerLink
from workers.wire import CommandResult, Heartbeat, ReplicaCommand

TOKEN = "bench"
RATES = (100, 500, 1000, 2000)
"""Requests per second of all clients."""
CLIENTS = 2
HOLD_S = 0.05
"""Seconds from a placement to its release."""
IN_FLIGHT = 128
"""Requests that each client keeps going when the highest rate is measured."""
TENANTS = 200
BLOCKS = 32
"""Blocks of each prompt; every second one shares its first half with others."""


def serve(replicas: int, pipe: Connection) -> None:
    """Run the scheduler and send its port."""

    async def run() -> None:
        door = Door("127.0.0.1", 0, TOKEN)
        await door.start()
        service = SchedulerService(door, clock=SystemClock(), rng=random.Random(1))
        service.start()
        pipe.send(door.port)
        await service.run()

    uvloop.run(run())


class Load:
    """The requests of one client process."""

    def __init__(self, client: SchedulerClient) -> None:
        self.client = client
        self.done = 0
        self.random = random.Random(uuid7().int)

    async def one(self, hold_s: float) -> None:
        """One request from its placement to its release."""
        start = self.random.randrange(1000)
        shared = [start * BLOCKS + n for n in range(BLOCKS // 2)]
        own = [self.random.getrandbits(63) for _ in range(BLOCKS // 2)]
        tenant = f"tenant-{self.random.randrange(TENANTS)}"
        request = PlaceRequest(str(uuid7()), tenant, MODEL, 1000, 200, blocks=shared + own)
        placement = await self.client.place(request)
        self.client.prefill_done(placement)
        self.client.progress(placement, 100)
        await asyncio.sleep(hold_s)
        self.client.release(Released(placement.request_id, placement.replica_id, 1000, 400, 200))
        self.done += 1

    async def at(self, rate: float, seconds: float) -> None:
        """Requests that arrive evenly."""
        began, tasks = time.monotonic(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.append(asyncio.create_task(self.one(HOLD_S)))
        await asyncio.gather(*tasks)

    async def flat_out(self, seconds: float) -> None:
        """IN_FLIGHT requests at a time."""
        end = time.monotonic() + seconds

        async def chain() -> None:
            while time.monotonic() < end:
                await self.one(0.0)

        await asyncio.gather(*(chain() for _ in range(IN_FLIGHT)))


def load(port: int, pipe: Connection) -> None:
    """Run what the pipe asks for, (rate or 0 = flat out, seconds), and answer with the number of requests done."""

    async def run() -> None:
        clock = SystemClock()
        client = SchedulerClient(
            [Address("127.0.0.1", port)], TOKEN, name="bench", clock=clock, rng=random.Random(2)
        )
        await client.start()
        while not client.snapshot().replicas:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.05)
        pipe.send(0)
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            rate, seconds = order
            made = Load(client)
            await (made.at(rate, seconds) if rate else made.flat_out(seconds))
            pipe.send(made.done)
        await client.close()

    uvloop.run(run())


def beat(port: int, replicas: int) -> None:
    """Send the heartbeats of all hosts, until killed."""

    async def execute(command: ReplicaCommand) -> CommandResult:
        return CommandResult(command.command_id, False)

    def link(given: Heartbeat) -> SchedulerLink:
        return SchedulerLink(
            [Address("127.0.0.1", port)],
            TOKEN,
            given.agent_id,
            heartbeat=lambda: given,
            execute=execute,
            outbox=KvOutbox(),
        )

    async def run() -> None:
        await asyncio.gather(*(link(given).run() for given in heartbeats(replicas)))

    uvloop.run(run())


def measure(replicas: int, seconds: float, rates: Sequence[int]) -> list[dict[str, float]]:
    """Return a row for each rate and one for the highest: requests per second, and the scheduler's CPU."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    scheduler = context.Process(target=serve, args=(replicas, theirs), daemon=True)
    scheduler.start()
    port = ours.recv()
    agent = context.Process(target=beat, args=(port, replicas), daemon=True)
    agent.start()
    pipes, clients = [], []
    for _ in range(CLIENTS):
        mine, others = context.Pipe()
        clients.append(context.Process(target=load, args=(port, others), daemon=True))
        clients[-1].start()
        pipes.append(mine)
    rows = []
    try:
        for pipe in pipes:
            pipe.recv()
        process = psutil.Process(scheduler.pid)
        for rate in (*rates, 0):
            began, before = time.monotonic(), sum(process.cpu_times()[:2])
            for pipe in pipes:
                pipe.send((rate / CLIENTS, seconds))
            done = sum(pipe.recv() for pipe in pipes)
            wall_s, cpu_s = time.monotonic() - began, sum(process.cpu_times()[:2]) - before
            rows.append(
                {
                    "asked_per_s": rate,
                    "done_per_s": round(done / wall_s, 1),
                    "cpu_ms_per_request": round(1000 * cpu_s / done, 4),
                    "scheduler_cores": round(cpu_s / wall_s, 3),
                }
            )
    finally:
        for each in (*clients, agent, scheduler):
            each.kill()
            each.join()
    return rows


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each rate")
    given = parser.parse_args()
    conditions = provenance() | {"load_average": round(psutil.getloadavg()[0], 1), "replicas": given.replicas}
    print(json.dumps(conditions))
    print(f"{'asked/s':>9} {'done/s':>9} {'CPU ms/request':>15} {'cores':>6}")
    for row in measure(given.replicas, given.seconds, RATES):
        asked = f"{row['asked_per_s']:.0f}" if row["asked_per_s"] else "flat out"
        print(
            f"{asked:>9} {row['done_per_s']:>9,.0f} {row['cpu_ms_per_request']:>15.4f} {row['scheduler_cores']:>6.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
