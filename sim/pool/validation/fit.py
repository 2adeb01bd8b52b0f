"""Fits the step model to one measured load, to predict the others with it."""

import math
import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.engine.step_model.engine import StepConfig, StepEngine
from sim.pool.validation.measured import MeasuredLoad, Measurement
from workers.wire import Capacity

Floats = NDArray[np.float64]
RESTARTS = (0.7, 0.4, 0.4, 0.2)
"""Sizes of the simplex at the start and at each restart, as logarithms: factors of 2, 1.5, 1.5, 1.2."""
STEPS = 60
"""Maximum number of steps of one simplex descent."""


class Fitted(msgspec.Struct, frozen=True):
    """The step model's parameters for one engine."""

    prefill_tokens_per_s: float
    step_base_s: float
    step_per_seq_s: float
    step_per_kv_token_s: float
    overhead_s: float
    """Seconds per request outside the engine's steps: HTTP, tokenising and detokenising."""

    def capacity(self, measurement: Measurement) -> Capacity:
        """Return the parameters as the step model's capacity."""
        return Capacity(
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            step_base_s=self.step_base_s,
            step_per_seq_s=self.step_per_seq_s,
            step_per_kv_token_s=self.step_per_kv_token_s,
            max_num_seqs=measurement.max_num_seqs,
            kv_cache_tokens=measurement.block_size * measurement.kv_blocks,
            max_model_len=measurement.max_model_len,
        )


START = Fitted(20_000.0, 0.004, 0.0004, 1e-8, 0.005)
"""Start of the search: within a small factor of any CPU's values."""


def predict(measurement: Measurement, load: MeasuredLoad, fitted: Fitted) -> tuple[Floats, Floats]:
    """Return TTFT and end-to-end seconds of each of the load's requests on a simulated engine without noise."""
    config = StepConfig(
        capacity=fitted.capacity(measurement),
        block_size=measurement.block_size,
        max_batched_tokens=measurement.max_batched_tokens,
        noise_cv=0.0,
    )
    engine = StepEngine(config, random.Random(0))  # noqa: S311 - a simulation, not a secret
    jobs = measurement.jobs(load)
    for job, request in zip(jobs, load.requests, strict=True):
        engine.advance(request.at)
        engine.add(job, request.at)
    engine.advance(math.inf)
    sent = np.array([request.at for request in load.requests])
    first = np.array([job.first_token_at for job in jobs]) - sent + fitted.overhead_s
    whole = np.array([job.finished_at for job in jobs]) - sent + fitted.overhead_s
    return first, whole


def fit(
    measurement: Measurement,
    loads: Sequence[MeasuredLoad],
    *,
    tick: Callable[[float], None] = lambda loss: None,
) -> Fitted:
    """Return the parameters with which the simulated engine is closest to the measured times of `loads`.

    Nelder and Mead's simplex (1965) over the logarithms of the five parameters starts at `START` and restarts
    around the best point until that no longer helps; it is deterministic. `tick` is called with the loss after
    every restart.
    """
    names = Fitted.__struct_fields__

    def loss(point: Floats) -> float:
        return _loss(measurement, loads, Fitted(*np.exp(point).tolist()))

    best = np.log([getattr(START, name) for name in names])
    best_loss = loss(best)
    for size in RESTARTS:
        found, found_loss = _simplex(loss, best, size)
        tick(found_loss)
        if found_loss < best_loss:
            best, best_loss = found, found_loss
    return Fitted(*np.exp(best).tolist())


def _simplex(loss: Callable[[Floats], float], start: Floats, size: float) -> tuple[Floats, float]:
    """Run one descent with the usual coefficients: reflect 1, expand 2, contract and shrink 1/2."""
    points = [start, *(start + size * axis for axis in np.eye(len(start)))]
    simplex = sorted(((loss(point), point) for point in points), key=lambda pair: pair[0])
    for _ in range(STEPS):
        (worst_loss, worst), rest = simplex[-1], simplex[:-1]
        middle = np.mean([point for _, point in rest], axis=0)
        reflected = middle + (middle - worst)
        reflected_loss = loss(reflected)
        tried = (reflected_loss, reflected)
        if reflected_loss < simplex[0][0]:
            expanded = middle + 2 * (middle - worst)
            expanded_loss = loss(expanded)
            tried = min(tried, (expanded_loss, expanded), key=lambda pair: pair[0])
        elif reflected_loss >= rest[-1][0]:
            toward = reflected if reflected_loss < worst_loss else worst
            contracted = middle + 0.5 * (toward - middle)
            tried = (loss(contracted), contracted)
        if tried[0] < worst_loss:
            simplex = sorted([*rest, tried], key=lambda pair: pair[0])
        else:
            best = simplex[0]
            shrunk = [best[1] + 0.5 * (point - best[1]) for _, point in simplex[1:]]
            simplex = sorted([best, *((loss(point), point) for point in shrunk)], key=lambda pair: pair[0])
    return simplex[0][1], simplex[0][0]


def _loss(measurement: Measurement, loads: Sequence[MeasuredLoad], fitted: Fitted) -> float:
    """Return the mean absolute logarithm of predicted over measured, for TTFT and the time after it alike."""
    terms = []
    for load in loads:
        first, whole = predict(measurement, load, fitted)
        measured_first = np.array([request.ttft_s for request in load.requests])
        measured_rest = np.array([request.e2e_s - request.ttft_s for request in load.requests])
        terms.append(np.abs(np.log(first / measured_first)).mean())
        long_enough = measured_rest > 0.01
        rest = np.maximum(whole - first, 1e-6)
        terms.append(np.abs(np.log(rest[long_enough] / measured_rest[long_enough])).mean())
    return float(np.mean(terms))
