"""Requests that wait in a client while no scheduler is connected."""

import asyncio
import random

import pytest

from core.errors import Refused
from scheduler.client import TAKE_OVER_S, SchedulerClient
from tests.support.instant_loop import LoopClock, run_instantly
from tests.support.scheduling import TOKEN, request

HELD_S = 40.0


def test_a_request_that_is_held_for_a_wake_outlives_a_take_over_but_no_longer_loss() -> None:
    async def run() -> None:
        clock = LoopClock()
        client = SchedulerClient([], TOKEN, name="api", clock=clock, rng=random.Random(0))
        asked = asyncio.create_task(client.place(request(deadline_s=30.0, wake_deadline_s=120.0)))
        await asyncio.sleep(HELD_S)
        client.on_disconnected()
        client._expire(clock.monotonic())
        await asyncio.sleep(TAKE_OVER_S - 0.1)
        client._expire(clock.monotonic())
        assert not asked.done()
        await asyncio.sleep(0.2)
        client._expire(clock.monotonic())
        with pytest.raises(Refused, match="the scheduler is away"):
            await asked

    run_instantly(run())
