"""Measures consecutive decisions: the queue's choice, `place` and the counters, with a full queue."""

import gc
import random
import time
import tracemalloc
from typing import Any

from bench.scheduler.world import MODEL, Prompts, Size, World, fill, heartbeats, remembered_blocks
from scheduler.core.config import PolicyConfig
from scheduler.core.fleet import Fleet

BEAT_EVERY = 500
"""Number of decisions between heartbeats of the whole pool: half a second at a thousand decisions a second."""
MEMORY_BLOCKS = 200_000
"""Number of blocks over which the memory per block is measured."""
ROUNDS = 3
"""Number of rounds per point; the best one counts, because the others include load from other processes."""
PARTS = ("choice", "place", "opened")
AROUND = ("dispatch", "dispatch_wall", "submit", "release")


def figures(seconds: list[float]) -> dict[str, float]:
    """Return mean and quantiles in microseconds."""
    ordered = sorted(seconds)
    return {
        "mean_us": 1e6 * sum(ordered) / len(ordered),
        "p50_us": 1e6 * ordered[len(ordered) // 2],
        "p99_us": 1e6 * ordered[int(len(ordered) * 0.99)],
        "max_us": 1e6 * ordered[-1],
    }


class Stopwatch:
    """CPU time of the deciding thread inside some methods, minus the cost of reading the clock."""

    def __init__(self) -> None:
        empty = []
        for _ in range(1000):
            began = time.thread_time_ns()
            empty.append(time.thread_time_ns() - began)
        self.clock_ns = sorted(empty)[len(empty) // 2]
        self.spent: dict[str, float] = {}
        """Seconds by part since the last reset."""
        self.calls = 0

    def reset(self) -> None:
        """Reset all times to zero."""
        self.spent, self.calls = dict.fromkeys(PARTS, 0.0), 0

    def watch(self, owner: object, method: str, part: str) -> None:
        """Add the time inside `owner.method` to `part`."""
        inner = getattr(owner, method)

        def timed(*args: Any, **named: Any) -> Any:
            began = time.thread_time_ns()
            result = inner(*args, **named)
            self.spent[part] += (time.thread_time_ns() - began - self.clock_ns) * 1e-9
            self.calls += 1
            return result

        setattr(owner, method, timed)


def watched(world: World) -> Stopwatch:
    """Return a stopwatch on the three parts of a decision."""
    watch, state = Stopwatch(), world.state
    queue = state.queues[MODEL].queue
    watch.watch(queue, "pick", "choice")
    watch.watch(state.fleet, "place", "place")
    watch.watch(state.fleet, "on_open", "opened")
    watch.watch(queue, "on_open", "opened")
    return watch


def decisions(world: World, watch: Stopwatch, count: int) -> dict[str, dict[str, float]]:
    """Release one slot at a time so that the scheduler state fills it from its queue; return each decision's
    CPU time.

    A decision is the queue's choice and `place`; `recorded` adds the counters and prefix knowledge that
    `opened` updates for the next decision. `dispatch` is the whole call, including the work done once per call:
    deadlines, a review of late requests, the removal of the request from the queue, the answer. The steps of a
    request before and after (submit, release) are measured separately.
    """
    found: dict[str, list[float]] = {name: [] for name in (*PARTS, "decision", "recorded", *AROUND)}
    done = 0
    while done < count:
        world.now += 0.001
        if done % BEAT_EVERY == 0:
            world.heartbeat_all()
        began = time.thread_time()
        world.release()
        found["release"].append(time.thread_time() - began)
        watch.reset()
        wall_began, began = time.perf_counter(), time.thread_time()
        answers = world.state.dispatch(world.now, world.rng)
        ended, wall_ended = time.thread_time(), time.perf_counter()
        spent, clock_s = watch.spent, 2e-9 * watch.calls * watch.clock_ns
        placed = world.record_placed(answers)
        if placed == 1:
            done += 1
            for part, seconds in spent.items():
                found[part].append(seconds)
            found["decision"].append(spent["choice"] + spent["place"])
            found["recorded"].append(sum(spent.values()))
            found["dispatch"].append(ended - began - clock_s)
            found["dispatch_wall"].append(wall_ended - wall_began - clock_s)
        for _ in range(placed):
            began = time.thread_time()
            world.submit()
            found["submit"].append(time.thread_time() - began)
    return {name: figures(seconds) for name, seconds in found.items()}


def run(size: Size, count: int, ranges: list[tuple[int, int]] | None = None) -> list[dict[str, object]]:
    """Build a world and measure it, once for each range of prompt lengths in blocks (by default the size's own)."""
    gc.collect()
    world = World(size)
    gc.collect()
    gc.freeze()
    found, watch = [], watched(world)
    for shortest, longest in ranges or [(size.shortest, size.longest)]:
        world.prompts.range = (shortest, longest)
        if ranges:
            world.refill_queue()
        rounds = [decisions(world, watch, count // ROUNDS) for _ in range(ROUNDS)]
        measured = min(rounds, key=lambda each: each["recorded"]["mean_us"])
        found.append(
            {
                "replicas": size.replicas,
                "cached_blocks": remembered_blocks(world.state.fleet),
                "shortest": shortest,
                "longest": longest,
                "queued": size.queued,
                **measured,
            }
        )
    gc.unfreeze()
    return found


def bytes_per_block() -> float:
    """Return the memory of prefix knowledge in bytes per block and replica, by the allocator's own count."""
    rng = random.Random(1)
    fleet = Fleet(PolicyConfig(max_blocks=MEMORY_BLOCKS, max_replica_blocks=MEMORY_BLOCKS))
    for beat in heartbeats(64):
        fleet.heartbeat(beat, 0.0)
    prompts = Prompts(rng, 1, 4096)
    gc.collect()
    tracemalloc.start()
    fill(fleet, MEMORY_BLOCKS, prompts, rng)
    del prompts
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / remembered_blocks(fleet)
