"""The autoscaler beside the live scheduler: when its look fails, everybody is served as before."""

import pytest

from scheduler import service as service_module
from scheduler.autoscaling import LivePlanner
from tests.support.scheduling import agent, client, replica, request, service
from tests.support.waiting import until
from workers.catalog import load_catalog


class Failing(LivePlanner):
    """Has no answer, ever."""

    looks = 0

    def plan(self, *_: object, **__: object) -> None:
        self.looks += 1
        raise ZeroDivisionError("float division by zero")


async def test_a_look_that_fails_ends_nobodys_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "PLAN_INTERVAL_S", 0.0)
    planner = Failing(load_catalog())
    async with (
        service(planner=planner) as scheduler,
        agent(scheduler.port, replica()),
        client(scheduler.port) as api,
    ):
        await until(lambda: planner.looks > 2)
        assert scheduler._ticker is not None
        assert not scheduler._ticker.done()
        assert (await api.place(request())).replica_id == "host/r0"
