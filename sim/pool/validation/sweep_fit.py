"""Fits R, alpha, beta, the experts' time and h to a whole sweep at once, and keeps a part of the sweep out.

One saturated throughput cannot tell decoding from prefill: both slow each other. So the parameters are fitted together
to the times at all concurrencies and lengths, each replayed with the benchmark's own loop (`replay.py`). gamma and q
come from the bytes and the arithmetic of the model, and stay fixed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from core.errors import InvalidRequest
from sim.pool.validation.replay import replay
from sim.pool.validation.simplex import Floats, minimise
from sim.pool.validation.sweeps import Point, Shape, Sweep
from workers.wire import Capacity

TTFT_WEIGHT = 0.3
"""Weight of the time to first token beside that of the time per token: it depends on more than the step."""
FULL_CACHE_S = 3.0
"""Mean seconds to the first token beyond which the engine's cache was full: such points are fitted to nothing."""
SMALLEST_SPLIT = 4
"""Usable points of a shape from which every second one is kept out of the fit."""
TWO_SHAPES = 2
"""Shapes that the fit needs, to tell prefill from decoding."""
LEAST_FITTED = 5
"""Points that must be left to fit before a whole shape is kept out: as many as there are parameters."""


class SweepFigures(msgspec.Struct, frozen=True):
    """The parameters that are fitted."""

    prefill_tokens_per_s: float
    step_base_s: float
    step_per_seq_s: float
    request_s: float
    step_experts_s: float = 0.0

    def apply(self, fixed: Capacity) -> Capacity:
        """Return `fixed` with these parameters."""
        return msgspec.structs.replace(fixed, **msgspec.structs.asdict(self))


@dataclass(frozen=True, slots=True)
class Split:
    """Which points are fitted, which are kept out, and which say nothing about the step."""

    fitted: tuple[Point, ...]
    held_out: tuple[Point, ...]
    full_cache: tuple[Point, ...]


def split(sweep: Sweep, held_out_shape: Shape | None = None) -> Split:
    """Keep every second concurrency of each shape out, and one shape whole.

    The shape is `held_out_shape`, or of three or more shapes the last, if LEAST_FITTED points of the others are left.
    Raises InvalidRequest when the sweep has no such shape, or too few points are left.
    """
    shapes = sweep.shapes
    if held_out_shape is not None and held_out_shape not in shapes:
        raise InvalidRequest(
            f"{sweep.name} has no shape {held_out_shape}; it has {', '.join(map(str, shapes))}"
        )
    full = tuple(point for point in sweep.points if point.ttft_s > FULL_CACHE_S)
    usable = {shape: [p for p in sweep.points if p.shape == shape and p not in full] for shape in shapes}
    halves = {shape: _halves(points) for shape, points in usable.items()}
    if held_out_shape is None and len(shapes) > TWO_SHAPES:
        others = sum(len(halves[shape][0]) for shape in shapes[:-1])
        held_out_shape = shapes[-1] if others >= LEAST_FITTED else None
    if held_out_shape is not None:
        halves[held_out_shape] = [], usable[held_out_shape]
    fitted = tuple(point for half, _ in halves.values() for point in half)
    held_out = tuple(point for _, half in halves.values() for point in half)
    if len({point.concurrency for point in fitted}) < 2:
        raise InvalidRequest(f"{sweep.name} has too few points to fit: at least two concurrencies are needed")
    return Split(fitted, held_out, full)


def _halves(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """The points to fit and every second one, which is kept out, where a shape has enough of them."""
    return (points, []) if len(points) < SMALLEST_SPLIT else (points[::2], points[1::2])


def roomy(capacity: Capacity, sweep: Sweep) -> Capacity:
    """Return `capacity` with the steps, seats and context of the benchmark: its engine was not this profile's."""
    points = sweep.points
    return msgspec.structs.replace(
        capacity,
        max_batched_tokens=sweep.max_batched_tokens,
        max_num_seqs=max(capacity.max_num_seqs, *(point.concurrency for point in points)),
        max_model_len=max(
            capacity.max_model_len,
            *(point.shape.input_tokens + point.shape.output_tokens for point in points),
        ),
    )


def fit_sweep(
    sweep: Sweep,
    fixed: Capacity,
    *,
    held_out_shape: Shape | None = None,
    seed: int = 0,
    tick: Callable[[float], None] = lambda loss: None,
) -> SweepFigures:
    """Return the figures with which the replays of the fitted points are closest to their times.

    The loss is the mean of |log(replayed / measured)| of TPOT, plus TTFT_WEIGHT times that of TTFT. The search is
    deterministic by `seed`, which draws the requests' lengths. `tick` is called with the loss of each trial.
    """
    points = split(sweep, held_out_shape).fitted
    room = roomy(fixed, sweep)

    def loss(point: Floats) -> float:
        capacity = SweepFigures(*np.exp(point).tolist()).apply(room)
        error = float(np.mean([_distance(capacity, sweep, each, seed) for each in points]))
        tick(error)
        return error

    start = first_guess(points, experts=fixed.expert_share > 0)
    best = minimise(loss, np.log(start), tick=lambda error: None)
    return SweepFigures(*np.exp(best).tolist())


def first_guess(points: Sequence[Point], *, experts: bool) -> list[float]:
    """Return a start of the search, from the times themselves: R, alpha, beta, h and, with `experts`, their time."""
    lone = min(points, key=lambda point: (point.concurrency, point.shape.input_tokens))
    crowd = max(points, key=lambda point: point.concurrency)
    longest = min(points, key=lambda point: (-point.shape.input_tokens, point.concurrency))
    rate = 1.5 * longest.shape.input_tokens / longest.ttft_s
    growth = max(crowd.tpot_s - lone.tpot_s, 0.1 * lone.tpot_s) / crowd.concurrency
    start = [rate, 0.8 * lone.tpot_s, 0.3 * growth, 0.4 * lone.ttft_s]
    return [*start, 0.5 * lone.tpot_s] if experts else start


def _distance(capacity: Capacity, sweep: Sweep, point: Point, seed: int) -> float:
    said = replay(capacity, point, shortest=sweep.shortest, seed=seed)
    late = abs(math.log(said.ttft_s / point.ttft_s))
    return abs(math.log(said.tpot_s / point.tpot_s)) + TTFT_WEIGHT * late
