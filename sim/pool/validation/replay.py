"""Replays a benchmark's closed loop on the step engine: what the model says about one point of a sweep."""

import math
import random
from collections import deque
from dataclasses import dataclass

from sim.engine.step_model.interface import EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import step_engine
from sim.pool.validation.sweeps import Point
from workers.wire import Capacity

PROMPTS_PER_USER = 10
"""Requests of each user, one after the other, as InferenceX sends them."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the model says about a point."""

    ttft_s: float
    tpot_s: float
    output_tok_s: float
    preemptions: int


def replay(
    capacity: Capacity,
    point: Point,
    *,
    shortest: float,
    seed: int = 0,
    block_size: int = 64,
    per_user: int = PROMPTS_PER_USER,
) -> Replayed:
    """Send the point's requests: all users at once at first, and each again when its answer has ended.

    Lengths are drawn evenly from `shortest` to 1 times the nominal ones. Every request spends `Capacity.request_s`
    before it reaches the engine. Steps have no noise. Prefix caches are cold, because prompts are random.
    """
    engine = step_engine(StepConfig(capacity, block_size, noise_cv=0.0), random.Random(seed))  # noqa: S311 - a simulation
    jobs = _jobs(point, point.concurrency * per_user, shortest, seed)
    sent = [0.0] * len(jobs)
    at_engine = deque((capacity.request_s, job) for job in jobs[: point.concurrency])
    following = iter(jobs[point.concurrency :])
    while at_engine or engine.busy:
        due = engine.next_event_at()
        now = math.inf if due is None else due
        if at_engine and at_engine[0][0] <= now:
            now, job = at_engine.popleft()
            events = engine.advance(now)
            engine.add(job, now)
        else:
            events = engine.advance(now)
        for event in events:
            if event.kind is EventKind.FINISHED and (later := next(following, None)) is not None:
                sent[later.key] = event.at
                at_engine.append((event.at + capacity.request_s, later))
    ttft = sum(job.first_token_at - sent[job.key] for job in jobs) / len(jobs)
    tpot = sum((job.finished_at - job.first_token_at) / max(1, job.output_tokens - 1) for job in jobs) / len(
        jobs
    )
    tokens = sum(job.output_tokens for job in jobs)
    return Replayed(ttft, tpot, tokens / engine.clock, engine.preemptions)


def _jobs(point: Point, count: int, shortest: float, seed: int) -> list[Job]:
    shape = point.shape
    draws = random.Random(f"{seed}:{shape}:{point.concurrency}")  # noqa: S311 - a simulation

    def length(nominal: int) -> int:
        return max(1, round(nominal * draws.uniform(shortest, 1.0)))

    return [Job(key, length(shape.input_tokens), max(2, length(shape.output_tokens))) for key in range(count)]
