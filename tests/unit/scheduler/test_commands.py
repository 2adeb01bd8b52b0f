"""Commands that several ask for at the same time."""

import msgspec

from scheduler.commands import CommandRouter
from tests.support.instant_loop import run_instantly
from workers.wire import CommandResult, ReplicaCommand


class Recorder:
    """A connection that keeps what is sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[msgspec.Struct] = []

    def send(self, message: msgspec.Struct) -> None:
        self.sent.append(message)


def test_a_wake_that_two_ask_for_is_sent_once_and_both_have_its_result() -> None:
    async def run() -> None:
        plan, demand, agent = Recorder("plan"), Recorder("demand"), Recorder("agent")
        router = CommandRouter()
        wake = ReplicaCommand("1", "host/r0", "wake")
        assert router.forward(wake, plan, agent)
        assert router.forward(ReplicaCommand("2", "host/r0", "wake"), demand, agent)
        assert router.forward(ReplicaCommand("3", "host/r1", "wake"), demand, agent)
        assert agent.sent == [wake, ReplicaCommand("3", "host/r1", "wake")]
        router.answer(CommandResult("1", True, "wake: done"))
        assert plan.sent == [CommandResult("1", True, "wake: done")]
        assert demand.sent == [CommandResult("2", True, "wake: done")]
        router.forward(ReplicaCommand("4", "host/r0", "wake"), plan, agent)
        router.forward(ReplicaCommand("5", "host/r0", "wake"), demand, agent)
        router.answer(CommandResult("4", False, "no", called_off=True))
        assert demand.sent[1:] == [CommandResult("5", False, "no", called_off=True)]
        router.close()

    run_instantly(run())
