"""Plays requests on a few engines without a scheduler: what an arrangement of engines can do by itself.

The seconds of every step are seen, so that the pauses of running answers can be measured. Requests have a workload's
lengths, arrival times and prefixes. Times outside the engines' steps (`Capacity.request_s`, networks) are left out:
they are the same for every arrangement.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from sim.engine.step_model.interface import Event, EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import step_engine
from sim.pool.calls import job_of
from sim.pool.contract import SimRequest
from workers.step_time import own_prefill_s
from workers.wire import Capacity, Targets

WARMUP_SHARE = 0.2
"""Share of the requests that fill caches and batches before any counts."""
PAUSE_S = 0.5
"""Longest pause of a running answer, in seconds, with which it counts as in time. Streams have 20 to 40 events a second
(gateway/interval.py); after half a second without one a reader takes the answer for stuck."""
_INSTANT_S = 1e-9
"""Times closer to each other than this are the same."""
BUSIER = 4
"""Requests by which an engine may be busier than the idlest one and still get a prompt whose prefix it holds."""


class Watched:
    """A step engine whose steps with running answers are recorded."""

    def __init__(self, config: StepConfig, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self.engine = step_engine(config, rng, on_steps=self._record)
        self._ends: list[float] = []
        self._seconds: list[float] = []
        self._next_at: float | None = None

    @property
    def load(self) -> int:
        """Number of requests in the engine."""
        return self.engine.running + self.engine.waiting

    @property
    def next_at(self) -> float:
        """Time to which the engine is to be advanced next, in seconds; infinity when it is idle."""
        if self._next_at is None:
            at = self.engine.next_event_at()
            self._next_at = math.inf if at is None else at
        return self._next_at

    def cached(self, request: SimRequest) -> int:
        """Return how many of a request's prompt tokens are cached; of ranks, the most."""
        blocks, width = request.blocks, request.block_tokens
        limit = (request.prompt_tokens - 1) // width
        return width * max(len(rank.pool.match(blocks, limit)[0]) for rank in self.engine.ranks)

    def add(self, job: Job, at: float) -> None:
        """Add a job that arrives at `at`."""
        self.engine.add(job, at)
        self._next_at = None

    def advance(self) -> list[Event]:
        """Advance to `next_at`."""
        events = self.engine.advance(self.next_at)
        self._next_at = None
        return events

    def longest_pause_s(self, since: float, until: float) -> float:
        """Return the longest step that ended after `since` and by `until`; 0 when there was none."""
        first = bisect_left(self._ends, since + _INSTANT_S)
        return max(self._seconds[first : bisect_left(self._ends, until + _INSTANT_S)], default=0.0)

    def _record(self, end: float, longest_s: float) -> None:
        self._ends.append(end)
        self._seconds.append(longest_s)


@dataclass(frozen=True, slots=True)
class Sent:
    """A job on its way to an engine."""

    at: float
    """Time at which it arrives there, in seconds."""
    engine: Watched
    job: Job


class Arrangement(Protocol):
    """Engines that together serve requests."""

    @property
    def engines(self) -> Sequence[Watched]:
        """All of them."""

    def arrive(self, request: SimRequest) -> Sent:
        """Send a new request to an engine."""

    def follow(self, request: SimRequest, job: Job, engine: Watched) -> Sent | None:
        """Send on what a finished job of a request leads to; None = the request has its answer."""


def pick(engines: Sequence[Watched], request: SimRequest) -> Watched:
    """Return the engine that holds most of the prompt, unless it is much busier than the idlest one."""
    idlest = min(engine.load for engine in engines)
    return max(
        (engine for engine in engines if engine.load <= idlest + BUSIER),
        key=lambda engine: (engine.cached(request), -engine.load),
    )


class Together:
    """Engines that each compute prompts and answers."""

    def __init__(self, config: StepConfig, count: int = 1) -> None:
        self.engines: Sequence[Watched] = [Watched(config, number) for number in range(count)]

    def arrive(self, request: SimRequest) -> Sent:
        """Send a new request to an engine."""
        return Sent(request.at, pick(self.engines, request), job_of(request))

    def follow(self, request: SimRequest, job: Job, engine: Watched) -> Sent | None:
        """Nothing follows."""
        return None


@dataclass(frozen=True, slots=True)
class Played:
    """The figures of one run, over the requests after the warm-up; times in seconds."""

    in_time: float
    """Share of requests (0 to 1) within the targets, without a pause beyond PAUSE_S."""
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    pause_p90_s: float
    """Nine of ten answers have no longer pause between two of their tokens."""
    hit_rate: float
    """Share of prompt tokens (0 to 1) that needed no computation."""


def play(
    arrangement: Arrangement, requests: Sequence[SimRequest], targets: Targets, promised: Capacity
) -> Played:
    """Run `requests`, in order of arrival, to their ends.

    A request is in time as everywhere (its first token within `targets` beside its own prefill under `promised`, its
    further ones on average), and when no pause between its tokens exceeds PAUSE_S.
    """
    open_: dict[int, SimRequest] = {}
    on_way: list[tuple[float, int, Sent]] = []
    ended: list[tuple[SimRequest, Job, Job, Watched]] = []
    firsts: dict[int, Job] = {}
    upcoming = iter(requests)
    following = next(upcoming, None)
    while following is not None or on_way or open_:
        next_engine = min(arrangement.engines, key=lambda each: each.next_at)
        due = min(next_engine.next_at, on_way[0][0] if on_way else math.inf)
        if following is not None and following.at <= due:
            sent = arrangement.arrive(following)
            open_[following.key] = following
            firsts[following.key] = sent.job
            sent.engine.add(sent.job, sent.at)
            following = next(upcoming, None)
        elif on_way and on_way[0][0] <= due:
            sent = heappop(on_way)[2]
            sent.engine.add(sent.job, sent.at)
        elif due == math.inf:
            raise RuntimeError("requests are open, but no engine has them")
        else:
            for event in next_engine.advance():
                if event.kind is EventKind.FINISHED and event.job is not None:
                    request = open_[event.job.key]
                    later = arrangement.follow(request, event.job, next_engine)
                    if later is None:
                        del open_[event.job.key]
                        ended.append((request, firsts.pop(event.job.key), event.job, next_engine))
                    else:
                        heappush(on_way, (later.at, event.job.key, later))
    return _figures(ended, requests, targets, promised)


def _figures(
    ended: Sequence[tuple[SimRequest, Job, Job, Watched]],
    requests: Sequence[SimRequest],
    targets: Targets,
    promised: Capacity,
) -> Played:
    counted_from = requests[int(WARMUP_SHARE * len(requests))].at
    ttfts, tpots, pauses = [], [], []
    in_time = cached = prompts = 0
    for request, first, last, engine in ended:
        if request.at < counted_from:
            continue
        ttft = last.first_token_at - request.at
        tpot = (last.finished_at - last.first_token_at) / max(1, request.output_tokens - 1)
        level = targets.of(request.tier)
        own_s = own_prefill_s(promised, request.prompt_tokens)
        pause = engine.longest_pause_s(last.first_token_at, last.finished_at)
        in_time += ttft <= level.ttft_s + own_s and tpot <= level.tpot_s and pause <= PAUSE_S
        ttfts.append(ttft)
        tpots.append(tpot)
        pauses.append(pause)
        cached += first.cached_tokens
        prompts += request.prompt_tokens
    ttft_p50, ttft_p90 = np.quantile(ttfts, (0.5, 0.9)).tolist()
    tpot_p50, tpot_p90 = np.quantile(tpots, (0.5, 0.9)).tolist()
    return Played(
        in_time / len(ttfts), ttft_p50, ttft_p90, tpot_p50, tpot_p90,
        float(np.quantile(pauses, 0.9)), cached / prompts,
    )  # fmt: skip
