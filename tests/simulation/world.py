"""Virtual time, simulated machines, processes and threads.

Every thread of a simulated process is a greenlet. It runs until it reaches a point: a file operation, a wait, or the
end of a turn of its event loop. There it gives way, and the world runs what is due next on the virtual clock. Delays
come from one seeded generator, so the seed alone decides the order of everything, and a fault can strike at each point.
"""

import heapq
from asyncio.events import _set_running_loop
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet

_STEP_S = 20e-6
"""The longest time between two steps of a thread that waits for nothing."""
EPOCH_S = 1_795_392_000.0
"""Unix seconds at which a world begins: 2026-11-23 00:00 UTC."""


class Thread:
    """One thread of a simulated process."""

    __slots__ = ("done", "greenlet", "loop", "process", "turn", "waiting_join", "world")

    def __init__(self, process: "Process", run: Callable[[], object], loop: Any = None) -> None:
        self.world = process.world
        self.process = process
        self.loop = loop
        self.done = False
        self.turn = 0
        """Counts wake-ups, so that a timer which comes after the wake-up has no effect."""
        self.waiting_join: list[Thread] = []
        self.greenlet = greenlet(lambda: self._run(run), parent=self.world.hub)
        process.threads.append(self)

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except GreenletExit:
            return
        except Exception as error:  # noqa: BLE001 - whatever ends a thread is a fault of the product
            if not self.process.dead:
                self.world.problem(f"a thread of {self.process.name} ended with {error!r}")
        self.done = True
        for other in self.waiting_join:
            other.wake(other.turn)

    def wake(self, turn: int, after_s: float = 0.0) -> None:
        """Let the thread go on, unless it has been woken since `turn`."""
        if self.turn == turn:
            self.turn += 1
            self.world.after(after_s + self.world.random.random() * _STEP_S, self._resume)

    def _resume(self) -> None:
        if self.process.dead or self.world.over:
            return
        world = self.world
        world.current = self
        _set_running_loop(self.loop)
        self.greenlet.switch()
        world.current = None
        _set_running_loop(None)

    def pause(self, kind: str, longest_s: float = _STEP_S) -> None:
        """Give way for at most `longest_s`; a fault may strike here. Does not return when the process dies of it."""
        world = self.world
        world.point(kind, self.process)
        world.push(world.now + world.random.random() * longest_s, self._resume)
        world.hub.switch()

    def sleep_until_woken(self) -> None:
        """Give way until `wake`."""
        self.world.hub.switch()


class Process:
    """One process of a host: its threads die together, its clock is the host's."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.died_at = 0.0
        self.threads: list[Thread] = []
        self.on_death: list[Callable[[], None]] = []
        world.processes.append(self)

    def kill(self) -> None:
        """End the process at once, as SIGKILL does: no handler runs. Does not return in a thread of the process."""
        if not self.dead:
            self.dead = True
            self.died_at = self.world.now
            for action in self.on_death:
                action()
        if self.world.current is not None and self.world.current.process is self:
            self.world.hub.switch()


class World:
    """One schedule: the clock, what is due, and the faults of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.skew_s = 0.0
        """By how much the host's clock is ahead of true time."""
        self.over = False
        self.current: Thread | None = None
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.problems: list[str] = []
        self.points: dict[str, int] = {}
        """Points passed so far, by kind."""
        self.traps: dict[tuple[str, int], Callable[[Process], None]] = {}
        """Faults by the kind and number of the point at which they strike."""
        self.log: Callable[[str], None] | None = None
        """Takes a line of each event, for a replay."""
        self.digest = 0
        """Changes with every event: equal digests mean equal histories."""
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0

    def push(self, at: float, action: Callable[[], object]) -> None:
        """Run `action` when the clock reads `at` seconds."""
        self._sequence += 1
        heapq.heappush(self._due, (at, self._sequence, action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run `action` in `seconds`."""
        self.push(self.now + seconds, action)

    def point(self, kind: str, process: Process) -> None:
        """Count a point at which a fault may strike, and let it strike."""
        number = self.points[kind] = self.points.get(kind, 0) + 1
        if self.traps:
            trap = self.traps.pop((kind, number), None)
            if trap is not None:
                trap(process)

    def run(self, until: float, ended: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to the instant `until`, or until `ended` says so: whether it did."""
        due = self._due
        pop = heapq.heappop
        while due and due[0][0] <= until:
            at, _, action = pop(due)
            if at > self.now:
                self.now = at
            action()
            if ended is not None and ended():
                return True
        self.now = max(self.now, until)
        return False

    def note(self, *what: object) -> None:
        """Record an event of the history."""
        line = " ".join(map(str, what))
        self.digest = crc32(line.encode(), self.digest ^ int(self.now * 1e6) & 0xFFFFFFFF)
        if self.log is not None:
            self.log(f"{self.now:12.6f}  {line}")

    def problem(self, text: str) -> None:
        """Record that something is wrong; the schedule fails."""
        self.note("PROBLEM", text)
        self.problems.append(text)

    def unix_s(self) -> float:
        """The host's clock, in Unix seconds."""
        return EPOCH_S + self.now + self.skew_s

    def end(self) -> None:
        """Unwind every thread; nothing of this world has an effect from here on."""
        self.over = True
        self._due.clear()
        for process in self.processes:
            process.dead = True
            for thread in process.threads:
                if thread.greenlet:
                    thread.greenlet.throw(GreenletExit)
            process.threads.clear()
