"""Fits the step model to one measured load, to predict the others with it."""

import math
import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sim.engine.step_model.engine import StepConfig, StepEngine
from sim.pool.validation.measured import MeasuredLoad, Measurement
from sim.pool.validation.simplex import Floats, minimise
from workers.wire import Capacity


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
            max_batched_tokens=measurement.max_batched_tokens,
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

    The simplex (`simplex.py`) works on the logarithms of the five parameters and starts at `START`; the result is
    deterministic. `tick` is called with the loss after every descent.
    """
    names = Fitted.__struct_fields__

    def loss(point: Floats) -> float:
        return _loss(measurement, loads, Fitted(*np.exp(point).tolist()))

    start = np.log([getattr(START, name) for name in names])
    best = minimise(loss, start, tick=tick)
    return Fitted(*np.exp(best).tolist())


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
