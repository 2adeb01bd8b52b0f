"""The role as a process: answers on its ports, survives a kill in the eyes of its clients, stops on SIGTERM."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import httpx

from scheduler.wire import Released
from tests.support.ports import free_port
from tests.support.scheduling import TOKEN, agent, client, replica, request, service
from tests.support.waiting import until


@asynccontextmanager
async def process(pg_url: str, port: int, metrics_port: int):
    env = {
        **os.environ,
        "DATABASE_URL": pg_url,
        "PENSTOCK_INTERNAL_TOKEN": TOKEN,
        "PENSTOCK_SCHEDULER_PORT": str(port),
        "PENSTOCK_METRICS_PORT": str(metrics_port),
    }
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "cli.main", "scheduler", env=env)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_killed_under_load_it_loses_no_request_and_sigterm_ends_it(pg_url: str) -> None:
    port, metrics_port = free_port(), free_port()
    finished = 0

    async with agent(port, replica("host/r0", slots=8), replica("host/r1", slots=8)), client(port) as api:

        async def serve_one() -> None:
            nonlocal finished
            placement = await api.place(request(deadline_s=60))
            await asyncio.sleep(0.05)
            api.release(Released(placement.request_id, placement.replica_id, output_tokens=10))
            finished += 1

        async with process(pg_url, port, metrics_port) as child:
            await until(lambda: len(api.snapshot().replicas) == 2, 60)
            tasks = [asyncio.create_task(serve_one()) for _ in range(400)]
            await until(lambda: finished > 20)
            child.kill()
            await child.wait()
        async with process(pg_url, port, metrics_port) as child:
            await asyncio.gather(*tasks)
            assert finished == 400
            await until(lambda: api.connected)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{metrics_port}") as http:
                metrics = (await http.get("/metrics")).text
                assert "penstock_scheduler_decision_seconds" in metrics
                assert (await http.get("/healthz")).status_code == 200
            child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(child.wait(), 60) == 0


async def test_a_taken_port_is_said_in_one_line(pg_url: str) -> None:
    async with service() as other:
        env = {
            **os.environ,
            "DATABASE_URL": pg_url,
            "PENSTOCK_INTERNAL_TOKEN": TOKEN,
            "PENSTOCK_SCHEDULER_PORT": str(other.port),
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli.main", "scheduler", env=env, stderr=asyncio.subprocess.PIPE
        )
        _, err = await child.communicate()
    assert child.returncode == 2
    assert f"cannot listen on 127.0.0.1:{other.port}" in err.decode().splitlines()[-1]
    assert "Traceback" not in err.decode()
