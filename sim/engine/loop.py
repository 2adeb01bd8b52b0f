"""The engine model in real time: one task steps it, waits out each step, and hands new tokens to their requests."""

import asyncio
import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Several

from sim.engine.failpoints import Failpoints
from sim.engine.kv_events import KvPublisher, cache_events
from sim.engine.model import EngineModel, Sequence
from sim.engine.sleep_mode import SleepMode
from workers.kv_events_wire import AllBlocksCleared, KvEvent

DEATH_CODE = 86
"""Exit status of a process that a failpoint ended."""
_FLUSH_S = 0.02
_SMALLEST_WAIT_S = 0.001
"""Shortest sleep in seconds; shorter waits are added to the next step because timers are no finer."""


class RequestOutputCollector:
    """Collects the output of one request's sequences until its handler reads it (named after vLLM's class)."""

    __slots__ = ("_outputs", "_ready", "sequences")

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self._outputs: list[tuple[int, bytes]] = []
        self._ready = asyncio.Event()

    def put(self, choice: int, new: bytes) -> None:
        """Add the bytes of new tokens of choice number `choice`; called by the engine loop."""
        self._outputs.append((choice, new))
        self._ready.set()

    async def get(self) -> list[tuple[int, bytes]]:
        """Wait for output, then return all of it as pairs of choice number and bytes, oldest first."""
        await self._ready.wait()
        self._ready.clear()
        outputs, self._outputs = self._outputs, []
        return outputs


class EngineLoop:
    """Steps the model while there is work, at `speedup` times the speed of the profile."""

    def __init__(
        self,
        model: EngineModel,
        *,
        speedup: float = 1.0,
        failpoints: Failpoints | None = None,
        die: Callable[[int], None] = os._exit,
        publishers: Several[KvPublisher] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.model = model
        self.failpoints = failpoints or Failpoints()
        self.sleep = SleepMode()
        self._speedup = speedup
        self._die = die
        self._publishers = publishers
        """Those of the ranks, in order; empty = events are not published."""
        self._wall = wall
        """Returns seconds since 1970, for the time stamps of KV events."""
        self._pending_events: list[list[KvEvent]] = []
        """Cache events of the current step by rank, published when the step ends."""
        self._collectors: dict[int, tuple[RequestOutputCollector, int]] = {}
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while no request is in progress."""
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin stepping; needs a running event loop."""
        for publisher in self._publishers:
            publisher.start()
        self.sleep.garbled = self.failpoints.garbled
        self._show_weights()
        self._task = asyncio.create_task(self._run(), name="sim-engine")

    async def close(self) -> None:
        """Stop stepping and close the publisher; requests in flight stay unfinished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for publisher in self._publishers:
            await publisher.close()

    async def receive(self) -> None:
        """Wait for the time that a request takes before it reaches the engine's queue (`Capacity.request_s`)."""
        if (seconds := self.model.config.capacity.request_s / self._speedup) > 0.0:
            await asyncio.sleep(seconds)

    def submit(self, sequences: list[Sequence]) -> RequestOutputCollector:
        """Queue a request. Raises ValueError when one of its sequences can never fit; then none is queued."""
        collector = RequestOutputCollector(sequences)
        for sequence in sequences:
            try:
                self.model.add(sequence)
            except ValueError:
                self.abort(collector)
                raise
        for choice, sequence in enumerate(sequences):
            self._collectors[id(sequence)] = (collector, choice)
        self._changed.set()
        self._idle.clear()
        return collector

    def abort(self, collector: RequestOutputCollector) -> None:
        """End a request now; a repeated call has no effect."""
        for sequence in collector.sequences:
            self.model.abort(sequence)
            self._collectors.pop(id(sequence), None)

    def set_failpoints(self, failpoints: Failpoints) -> None:
        """Replace all failpoints; a stalled engine resumes unless the new failpoints stall it."""
        self.failpoints = failpoints
        self._changed.set()

    async def fall_asleep(self, level: int, *, wait: bool = False) -> None:
        """Stop generating and clear the prefix cache; later requests wait until it is awake.

        Requests in progress are aborted, or with `wait` end first.
        """
        if wait and not self.sleep.asleep:
            await self._idle.wait()
        for collector, choice in list(self._collectors.values()):
            self.abort(collector)
            collector.put(choice, b"")
        self.sleep.fall_asleep(level)
        self.model.forget_cache()
        await self._publish_events(AllBlocksCleared())

    async def wake(self, tags: Several[str]) -> None:
        """Take back what `tags` name, or all without any; requests go on when nothing is missing.

        Raises RuntimeError where a failpoint says so.
        """
        points = self.failpoints
        if not tags or "weights" in tags:
            if points.wake_errors > 0:
                points.wake_errors -= 1
                raise RuntimeError("failpoint: wake_errors")
            if points.wake_s > 0.0:
                await asyncio.sleep(points.wake_s)
        self.sleep.wake(tags, garbled=points.wake_garbles)
        self._show_weights()

    async def reload_weights(self) -> None:
        """Read the weights again, as vLLM's worker method of this name does. Raises RuntimeError without memory."""
        self.sleep.reload(garbled=self.failpoints.wake_garbles)
        self._show_weights()

    def _show_weights(self) -> None:
        self.model.garbled = self.sleep.garbled
        self._changed.set()

    def _blocked(self) -> bool:
        return self.sleep.asleep or self.failpoints.stall_after_tokens == 0 or not self.model.busy

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if self._blocked():
                self._changed.clear()
                if not self.model.busy:
                    self._idle.set()
                await self._changed.wait()
                due = loop.time()
                continue
            step = self.model.step()
            if self._publishers:
                self._pending_events = [
                    cache_events(
                        [change for change in step.cache if change.rank == rank], self.model.config.block_size
                    )
                    for rank in range(len(self._publishers))
                ]
            due += step.seconds / self._speedup + self.failpoints.step_delay_s
            wait = due - loop.time()
            await asyncio.sleep(wait if wait >= _SMALLEST_WAIT_S else 0)
            if wait < -1.0:
                due = loop.time()
            await self._publish_events()
            generated = 0
            for sequence, new in step.produced:
                owner = self._collectors.get(id(sequence))
                generated += len(new) // 4
                if owner is not None:
                    owner[0].put(owner[1], new)
            await asyncio.sleep(0)  # request handlers check for stop strings before the next step begins
            await self._apply_failpoints(generated)

    async def _publish_events(self, *after: KvEvent) -> None:
        """Publish pending cache events on the publisher of each rank, then those in `after` on all."""
        pending, self._pending_events = self._pending_events, []
        for rank, publisher in enumerate(self._publishers):
            await publisher.publish([*(pending[rank] if pending else ()), *after], self._wall())

    async def _apply_failpoints(self, generated: int) -> None:
        """Subtract `generated` tokens from the token-counting failpoints and trigger those that reach 0."""
        points = self.failpoints
        if points.stall_after_tokens is not None:
            points.stall_after_tokens = max(0, points.stall_after_tokens - generated)
        if points.die_after_tokens is not None:
            points.die_after_tokens -= generated
            if points.die_after_tokens <= 0:
                await asyncio.sleep(_FLUSH_S)  # let the tokens generated before the exit reach their clients
                self._die(DEATH_CODE)
