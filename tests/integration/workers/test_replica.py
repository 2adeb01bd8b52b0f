"""One replica whose engine is a process that does nothing and whose HTTP API is played."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.support.clock import ManualClock
from tests.support.waiting import until
from workers.catalog import load_catalog
from workers.engine_api import EngineApi, EngineMetrics
from workers.engine_command import EngineCommand
from workers.engine_sleep import QUIET_TIMEOUT_S
from workers.held_engine import EngineAccess
from workers.plan import ReplicaPlan, plan_sim
from workers.replica import ReplicaRunner
from workers.wire import EngineCounters, ReplicaState

COMMAND = EngineCommand((sys.executable, "-c", "import time; time.sleep(600)"), {}, stop_s=5.0)


class PlayedApi:
    """A healthy engine that needs no warm-up; `scrape` returns its metrics."""

    def __init__(self, scrape: Callable[[], EngineMetrics]) -> None:
        self._scrape = scrape

    async def healthy(self) -> bool:
        return True

    async def warm_up(self, model: str, max_model_len: int, *, embeds: bool, ranks: int) -> None:
        return None

    async def post(self, path: str, body: object, *, timeout_s: float, headers: object) -> tuple[int, bytes]:
        return 200, b'{"choices": [{"text": "the wheel"}]}'

    async def takes_stream_interval(self) -> bool:
        return False

    async def metrics(self) -> EngineMetrics:
        return self._scrape()


@asynccontextmanager
async def running(
    log_file: Path, clock: ManualClock, scrape: Callable[[], EngineMetrics]
) -> AsyncIterator[ReplicaRunner]:
    """A replica that runs; each of its engines has a URL of its own."""
    numbers = iter(range(100))

    def access(plan: ReplicaPlan, url: str | None) -> EngineAccess:
        url = url or f"http://engine:{next(numbers)}"
        return EngineAccess(url, COMMAND, cast(EngineApi, PlayedApi(scrape)))

    (plan,) = plan_sim(load_catalog(), "h", "", 1).replicas
    runner = ReplicaRunner(plan, access=access, log_file=log_file, clock=clock, saved=None, save=lambda: None)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.shut_down(0.0)


def metrics(generated: int, running: int = 0, waiting: int = 0) -> EngineMetrics:
    return EngineMetrics(running, waiting, counters=EngineCounters(generation_tokens=generated))


async def test_tokens_of_requests_that_outlast_the_warm_up_are_in_its_baseline(tmp_path: Path) -> None:
    scrapes = iter([metrics(30, waiting=1), metrics(30, running=1), metrics(47, running=1), metrics(98)])
    seen: list[int] = []

    def scrape() -> EngineMetrics:
        status = runner.status()
        seen.append(status.counters.generation_tokens - status.warmup_counters.generation_tokens)
        return next(scrapes, metrics(98))

    async with running(tmp_path / "log", ManualClock(), scrape) as runner:
        await until(lambda: runner.state is ReplicaState.READY)
        assert runner.status().warmup_counters.generation_tokens == 98
        assert set(seen) == {0}  # no heartbeat of the meantime counts them as a customer's


async def test_counters_that_lag_behind_the_end_of_a_request_are_waited_for(tmp_path: Path) -> None:
    scrapes = iter([metrics(30), metrics(34)])
    async with running(tmp_path / "log", ManualClock(), lambda: next(scrapes, metrics(34))) as runner:
        await until(lambda: runner.state is ReplicaState.READY)
        assert runner.status().warmup_counters.generation_tokens == 34


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
async def test_an_engine_that_never_rests_is_replaced_by_one_at_another_url(tmp_path: Path) -> None:
    clock = ManualClock()

    def scrape() -> EngineMetrics:
        clock.advance(QUIET_TIMEOUT_S / 2)
        return metrics(5, running=1)

    async with running(tmp_path / "log", clock, scrape) as runner:
        await until(lambda: runner.state is ReplicaState.FAILED)
        assert "still works 60 s after the agent's requests, with 1 requests" in runner.detail
        first = runner.url, runner.boot_id
        await until(lambda: runner.state is ReplicaState.LOADING)
        assert runner.boot_id != first[1]
        assert runner.url != first[0]
