"""Forwards commands for replicas to their agents and returns exactly one answer for each."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from workers.wire import CommandResult, ReplicaCommand, ReplicaState

ACTIONS = {
    "drain": ReplicaState.DRAINING,
    "resume": None,
    "sleep": ReplicaState.ASLEEP,
    "wake": None,
    "stop": ReplicaState.STOPPED,
    "restart": ReplicaState.LOADING,
    "deploy": ReplicaState.LOADING,
    "kill": ReplicaState.FAILED,
    "answers": None,
}
"""Actions on a replica, and the state to assume until its next heartbeat; None = no assumption."""
STARTING = frozenset({"wake", "resume", "restart", "deploy"})
"""Actions after which an engine may serve; they are refused on a host that may be destroyed at any moment."""
JOINED = frozenset({"wake", "resume"})
"""Actions that the plan, requests and clients may ask for at the same time."""
ANSWER_SLACK_S = 5.0
"""Seconds beyond a command's deadline until it is answered as failed."""
STOP_S = 60.0
"""Further seconds for an engine that is stopped after its requests; agents kill it after 40 s at most."""
STOPPING = frozenset({"stop", "restart", "deploy"})
MAX_DEADLINE_S = 3600.0
"""Longest deadline of a command, in seconds."""
MAX_OPEN = 1000
"""Commands that may be pending."""


def answer_limit_s(action: str, deadline_s: float) -> float:
    """Seconds until a command is answered as failed; `deadline_s` is the time for running requests."""
    return deadline_s + ANSWER_SLACK_S + (STOP_S if action in STOPPING else 0.0)


class Peer(Protocol):
    """A connection that can send."""

    name: str

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message."""


@dataclass
class _Pending:
    requester: Peer
    agent: Peer
    timer: asyncio.TimerHandle
    command: ReplicaCommand
    joined: list[tuple[str, Peer]] = field(default_factory=list)
    """Ids and requesters of the same wake, asked for again meanwhile."""


class CommandRouter:
    """The pending commands."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}

    def forward(self, command: ReplicaCommand, requester: Peer, agent: Peer) -> bool:
        """Send `command` to `agent`. Returns False when it is refused; the requester then has its answer.

        A wake or resume that is under way already is not sent again: it is answered with the result of the first.
        """
        if command.action not in ACTIONS:
            known = ", ".join(ACTIONS)
            self._refuse(command, requester, f"unknown action {command.action!r}; it must be one of {known}")
            return False
        if command.command_id in self._pending or len(self._pending) >= MAX_OPEN:
            self._refuse(command, requester, "this command is under way already, or too many are")
            return False
        if command.action in JOINED:
            for pending in self._pending.values():
                first = pending.command
                if (first.replica_id, first.action) == (command.replica_id, command.action):
                    pending.joined.append((command.command_id, requester))
                    return True
        deadline_s = command.deadline_s if 0 < command.deadline_s <= MAX_DEADLINE_S else MAX_DEADLINE_S
        limit_s = answer_limit_s(command.action, deadline_s)
        late = CommandResult(command.command_id, False, f"no answer from the agent within {limit_s:.0f} s")
        timer = asyncio.get_running_loop().call_later(limit_s, self.answer, late)
        self._pending[command.command_id] = _Pending(requester, agent, timer, command)
        agent.send(command)
        return True

    def answer(self, result: CommandResult) -> None:
        """Send a result to the requester; a result of an unknown command is dropped."""
        pending = self._pending.pop(result.command_id, None)
        if pending is not None:
            pending.timer.cancel()
            pending.requester.send(result)
            for command_id, requester in pending.joined:
                requester.send(msgspec.structs.replace(result, command_id=command_id))

    def agent_lost(self, agent: Peer) -> None:
        """Answer all commands of an agent whose connection is lost."""
        lost = "the agent's connection was lost; the command may or may not have run"
        for command_id in [name for name, pending in self._pending.items() if pending.agent is agent]:
            self.answer(CommandResult(command_id, False, lost))

    def close(self) -> None:
        """Cancel the timers."""
        for pending in self._pending.values():
            pending.timer.cancel()
        self._pending.clear()

    def _refuse(self, command: ReplicaCommand, requester: Peer, why: str) -> None:
        requester.send(CommandResult(command.command_id, False, why))
