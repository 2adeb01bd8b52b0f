"""Two schedulers in a whole platform: the one that serves is killed, stopped and resumed, and then there is none.

One platform serves all tests of this file. Limits in seconds are those of a machine on which no process waits for a
processor; on a busier one they are longer by as much (`patience`). tests/unit/scheduler/test_lease.py proves the limit
of the take-over without a machine.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from statistics import median

import aiohttp
import httpx
import psutil
import pytest

from tests.faults.test_kills import every_admitted_request_has_one_row
from tests.support import load
from tests.support.metrics import Metrics
from tests.support.stack import Stack, Tenant
from tests.support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

FAIL_OVER_S = 4.0
STREAMS, TOKENS = 18, 200
STEP_S = 0.02
CROWD = 70
AWAY_S = 20.0
"""Seconds without any scheduler."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The platform."""
    made = Stack(
        tmp_path_factory.mktemp("standby") / "data",
        *("--engine", "sim", "--replicas", "2", "--api-workers", "3", "--schedulers", "2"),
    )
    try:
        yield made.start()
    finally:
        made.stop()


def term_of(pid: int) -> int:
    """The term under which a scheduler serves; 0 = it stands by, or is only just starting."""
    try:
        port = psutil.Process(pid).environ()["PENSTOCK_METRICS_PORT"]
        shown = Metrics(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=2.0).text)
    except (httpx.HTTPError, psutil.Error):
        return 0
    return int(shown.total("penstock_scheduler_term"))


def patience() -> float:
    """Processes that run or want to run for each processor, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def serving(stack: Stack) -> tuple[int, int]:
    """Process id and term of the scheduler that serves, once two run."""

    def found() -> tuple[int, int] | None:
        terms = {pid: term_of(pid) for pid in stack.pids("scheduler")}
        leading = [(pid, term) for pid, term in terms.items() if term]
        return leading[0] if len(terms) == 2 and len(leading) == 1 else None

    return await until(found)


class Traffic:
    """Streams of one tenant: some long ones, and short ones all the time."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, tenant: Tenant) -> None:
        self.stack, self.session, self.tenant = stack, session, tenant
        self.seen: list[load.Seen] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, max_tokens: int) -> load.Seen:
        """Send one more."""
        seen = load.Seen()
        self.seen.append(seen)
        self.tasks.append(
            asyncio.create_task(
                load.patient_stream(
                    self.session,
                    self.stack.base_url,
                    self.tenant.key,
                    str(self.stack.ready["model"]),
                    max_tokens=max_tokens,
                    seen=seen,
                    prompt=f"story {len(self.seen)}",
                )
            )
        )
        return seen

    async def over(self) -> dict[str, dict]:
        """Wait for all; each was answered in full and has one row, which says so."""
        await asyncio.gather(*self.tasks)
        assert all(one.finished and not one.error for one in self.seen)
        rows = await every_admitted_request_has_one_row(self.stack, self.tenant, self.seen)
        assert all(rows[one.request_id]["output_tokens"] == one.tokens for one in self.seen)
        return rows


async def through_a_fault(stack: Stack, traffic: Traffic, hurt: Callable[[], None]) -> list[load.Seen]:
    """Long streams run while `hurt` is done; those asked for in the four seconds after it, ten a second, are returned.

    Each of them has its first token within FAIL_OVER_S of the fault or of its own beginning.
    """
    stack.failpoints(step_delay_s=STEP_S)
    long = [traffic.ask(TOKENS) for _ in range(STREAMS)]
    await until(lambda: all(one.tokens >= 20 for one in long))
    hurt()
    hurt_at = time.monotonic()
    asked = []
    while time.monotonic() < hurt_at + FAIL_OVER_S:
        asked.append(traffic.ask(4))
        await asyncio.sleep(0.1)  # the rate of arrivals, not a synchronisation
    await until(lambda: all(one.tokens for one in asked))
    waits = [one.at[0] - max(hurt_at, one.asked_at) for one in asked]
    print(f"slowest first token after the fault: {max(waits):.2f} s, patience {patience():.1f}")
    assert max(waits) < FAIL_OVER_S * patience(), sorted(waits)[-5:]
    return asked


@pytest.mark.promise(1, 7)
async def test_the_serving_scheduler_is_killed(stack: Stack) -> None:
    tenant = stack.make_tenant("Killed")
    async with load.session() as session:
        traffic = Traffic(stack, session, tenant)
        victim, term = await serving(stack)
        await through_a_fault(stack, traffic, lambda: os.kill(victim, signal.SIGKILL))
        await traffic.over()
    pid, later = await serving(stack)
    assert pid != victim
    assert later > term


@pytest.mark.promise(1, 7)
async def test_the_serving_scheduler_is_stopped_and_resumed(stack: Stack) -> None:
    tenant = stack.make_tenant("Stopped")
    async with load.session() as session:
        traffic = Traffic(stack, session, tenant)
        victim, term = await serving(stack)
        [standby] = set(stack.pids("scheduler")) - {victim}
        try:
            await through_a_fault(stack, traffic, lambda: os.kill(victim, signal.SIGSTOP))
            later = await until(lambda: term_of(standby))
            assert later == term + 1
        finally:
            os.kill(victim, signal.SIGCONT)
        await traffic.over()
        # It stands by: its peers send it the new term, and none of its decisions reaches a client.
        await until(lambda: term_of(victim) == 0)
        again = Traffic(stack, session, tenant)
        again.ask(4)
        await again.over()
    assert await serving(stack) == (standby, later)
    assert victim in stack.pids("scheduler"), "it was not restarted"


async def test_without_any_scheduler_new_streams_begin_at_once(stack: Stack) -> None:
    """The supervisor is stopped, so that it restarts no scheduler meanwhile."""
    tenant = stack.make_tenant("Alone")
    assert stack.process is not None
    async with load.session() as session:
        traffic = Traffic(stack, session, tenant)
        await serving(stack)
        stack.failpoints(step_delay_s=STEP_S)
        before = [traffic.ask(60 + number) for number in range(CROWD)]
        await until(lambda: all(one.tokens for one in before))
        os.kill(stack.process.pid, signal.SIGSTOP)
        try:
            for pid in stack.pids("scheduler"):
                os.kill(pid, signal.SIGKILL)
            after, running = [], set(traffic.tasks)
            over_at = time.monotonic() + AWAY_S
            while time.monotonic() < over_at:  # each stream that ends is followed by another
                ended, running = await asyncio.wait(
                    running, timeout=over_at - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
                for _ in ended:
                    after.append(traffic.ask(60))
                    running.add(traffic.tasks[-1])
            assert len(after) >= CROWD
            await until(lambda: all(one.tokens for one in after))
        finally:
            os.kill(stack.process.pid, signal.SIGCONT)
        waits = sorted(one.wait_s for one in after)
        print(f"first token without a scheduler: p50 {median(waits):.2f} s, most {waits[-1]:.2f} s")
        assert median(waits) < patience(), (median(waits), waits[-1])
        await traffic.over()
    await serving(stack)
