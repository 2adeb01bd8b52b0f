"""An asyncio event loop on a world's clock, one for each simulated process."""

import asyncio
from asyncio.events import Handle, TimerHandle, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.simulation.world import Process, Thread


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order in which they were called, as asyncio's loops do, on virtual time.

    Only what asyncio itself and the product's classes use is there; anything else raises NotImplementedError.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._ready: deque[Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._thread = Thread(process, self._run, self)
        self._awake = False

    # -- the loop's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        ready, thread, world, process = self._ready, self._thread, self._world, self._process
        while True:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                    if process.dead:
                        return  # a task has swallowed the end of its thread
            if ready:
                thread.pause("turn")
            else:
                world.point("turn", self._process)
                self._awake = False
                world.hub.switch()

    def _add(self, handle: Handle) -> None:
        self._ready.append(handle)
        if not self._awake:
            self._awake = True
            self._thread.wake(self._thread.turn)

    def unwind(self) -> None:
        """Close the coroutines of tasks that have not ended, after the world has."""
        self._ready.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _set_running_loop(self)
                try:
                    task.get_coro().close()  # type: ignore[union-attr]
                except BaseException:  # noqa: BLE001 - what a dead process would do no longer matters
                    continue
                finally:
                    _set_running_loop(None)
        self._tasks.clear()

    # -- what asyncio asks of a loop -------------------------------------------------------------------------------

    def time(self) -> float:
        """The monotonic clock."""
        return self._world.now

    def get_debug(self) -> bool:
        """No debug mode."""
        return False

    def is_running(self) -> bool:
        """Whether the process lives."""
        return not self._process.dead

    def is_closed(self) -> bool:
        """Whether the process is dead."""
        return self._process.dead

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Run a callback in the next turn."""
        handle = Handle(callback, args, self, context)
        if not self._process.dead:
            self._add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """Run a callback after `delay` seconds."""
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """Run a callback at an instant of `time`."""
        handle = TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle._cancelled and not self._process.dead:
                self._add(handle)

        self._world.push(when, due)
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Cancelled timers are left out when they are due."""

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        """A task of this loop."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Run a function in a thread of the process, beside the loop."""
        future = self.create_future()

        def deliver(method: Callable[[Any], None], value: Any) -> None:
            if not future.cancelled():
                method(value)

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - delivered to the caller
                self.call_soon(deliver, future.set_exception, error)
            else:
                self.call_soon(deliver, future.set_result, result)

        thread = Thread(self._process, run)
        thread.wake(0)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: a fault of the product, unless the process is dead. Unread results are no fault."""
        if not self._process.dead and "handle" in context:
            self._world.problem(f"{context['message']}: {context.get('exception')!r}")
