"""Wakes resting replicas for requests that wait: sends the commands of the scheduler state, and takes their results."""

import logging
from collections.abc import Callable

import msgspec

from core.ids import uuid7
from scheduler import metrics
from scheduler.core.state import SchedulerState
from scheduler.core.waking import Figures
from workers.catalog import Catalog
from workers.wire import CommandResult, ReplicaCommand

WAKE_DEADLINE_S = 1800.0
"""Seconds after which a wake without a result counts as failed."""

log = logging.getLogger(__name__)


def catalog_figures(catalog: Catalog) -> Figures:
    """The catalog's seconds until a replica serves, by sleep level, 0 = from a stop; until they are measured."""

    def seconds(model: str, rung: int) -> float | None:
        ladder = catalog.ladder
        if ladder is None:
            return None
        return (ladder.stopped_wake_s, ladder.sleep_1_wake_s, ladder.sleep_2_wake_s)[
            min(max(rung, 0), 2)
        ].value

    return seconds


class WakeOnDemand:
    """Asks for replicas like any peer that sends commands."""

    name = "demand"

    def __init__(
        self,
        state: SchedulerState,
        forward: Callable[[ReplicaCommand], None],
        now: Callable[[], float],
    ) -> None:
        """`forward` sends a command, whose one result comes to `send`; `now` returns monotonic seconds."""
        self._state, self._forward, self._now = state, forward, now
        self._open: dict[str, str] = {}
        """Replica by id of the command."""

    def run(self) -> None:
        """Send what requests need now."""
        for order in self._state.take_wakes(self._now()):
            log.info("requests for %s wait: %s of %s", order.model, order.action, order.replica_id)
            command = ReplicaCommand(str(uuid7()), order.replica_id, order.action, WAKE_DEADLINE_S)
            self._open[command.command_id] = order.replica_id
            self._forward(command)

    def send(self, message: msgspec.Struct) -> None:
        """Take the result of a command."""
        if not isinstance(message, CommandResult):
            return
        replica_id = self._open.pop(message.command_id, None)
        if replica_id is None:
            return
        metrics.WAKES.labels("woken" if message.ok else "failed").inc()
        if not message.ok:
            log.warning("replica %s was not woken: %s", replica_id, message.message)
        self._state.on_wake_result(replica_id, message.ok, message.message, self._now())
