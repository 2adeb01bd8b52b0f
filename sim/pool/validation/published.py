"""Compares the step model with published figures for the same hardware.

An anchor is `calibrated` when the catalog's figures were computed from it: agreement then only shows that the
arithmetic is correct. The others are predictions.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sim.engine.step_model.engine import StepConfig, StepEngine
from sim.engine.step_model.job import Job
from workers.catalog import Catalog
from workers.wire import Capacity


@dataclass(frozen=True)
class Anchor:
    """One published figure."""

    name: str
    model: str
    profile: str
    unit: str
    published: float
    source: str
    calibrated: bool
    predict: Callable[[Capacity], float]


@dataclass(frozen=True)
class AnchorResult:
    """An anchor with the model's prediction."""

    anchor: Anchor
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over published, minus one."""
        return self.predicted / self.anchor.published - 1.0


def alone(capacity: Capacity, prompt: int, output: int) -> Job:
    """Return a job for a request alone on an idle engine; lengths in tokens."""
    engine = _engine(capacity)
    job = Job(0, prompt, output)
    engine.add(job, 0.0)
    engine.advance(float("inf"))
    return job


def saturated(capacity: Capacity, prompt: int, output: int, at_once: int) -> float:
    """Return output tokens per second with `at_once` requests always in flight."""
    engine = _engine(capacity)
    wanted = 4 * at_once
    for key in range(wanted):
        engine.add(Job(key, prompt, output), 0.0)
    engine.advance(float("inf"))
    return wanted * output / engine.clock


def _engine(capacity: Capacity) -> StepEngine:
    return StepEngine(StepConfig(capacity=capacity, noise_cv=0.0), random.Random(0))  # noqa: S311 - a simulation


def _decode_speed(capacity: Capacity) -> float:
    job = alone(capacity, 100, 1000)
    return 999 / (job.finished_at - job.first_token_at)


def _plain(capacity: Capacity) -> Capacity:
    return msgspec.structs.replace(capacity, accept_per_step=1.0)


def _slots(capacity: Capacity, at_once: int) -> Capacity:
    return msgspec.structs.replace(capacity, max_num_seqs=at_once)


def _sweep(at_once: int) -> Callable[[Capacity], float]:
    """Return the milliseconds between tokens of `at_once` sequences with short prompts, all prefilled in one step."""

    def predict(capacity: Capacity) -> float:
        engine = _engine(capacity)
        jobs = [Job(key, 16, 200) for key in range(at_once)]
        for job in jobs:
            engine.add(job, 0.0)
        engine.advance(float("inf"))
        return 1e3 * (jobs[0].finished_at - jobs[0].first_token_at) / 199

    return predict


_SWEEP = "published sweep: ITL = 16.6 + 0.188 B ms, R^2 0.998"
_VLLM = "vLLM blog, 2026-05-11"
_GB200 = "Microsoft and NVIDIA, TensorRT-LLM, NVFP4, MTP=3"

ANCHORS = (
    Anchor(
        "one user, MTP=1", "deepseek-v3.2", "tp8", "tok/s", 234.0, _VLLM, True, _decode_speed
    ),
    Anchor(
        "one user, no speculation", "deepseek-v3.2", "tp8", "tok/s", 125.0, _VLLM, False,
        lambda capacity: _decode_speed(_plain(capacity)),
    ),
    Anchor(
        "one user, 10,000-token prompt: first token", "deepseek-v3.2", "tp8", "s", 0.96,
        "DigitalOcean serverless, Artificial Analysis, April 2026", False,
        lambda capacity: alone(capacity, 10_000, 2).first_token_at,
    ),
    Anchor(
        "one user, 10,000-token prompt: speed", "deepseek-v3.2", "tp8", "tok/s", 230.0,
        "DigitalOcean serverless, Artificial Analysis, April 2026", False,
        lambda capacity: 999 / ((job := alone(capacity, 10_000, 1000)).finished_at - job.first_token_at),
    ),
    Anchor(
        "2,048/512, 256 at once (8xB200)", "deepseek-v3.2", "tp8", "tok/s", 4370.0, "Vultr", False,
        lambda capacity: saturated(capacity, 2048, 512, 256),
    ),
    Anchor(
        "2,400/1,600, one user: whole answer", "deepseek-v3.2", "tp4-gb200", "s", 5.801, _GB200, True,
        lambda capacity: alone(capacity, 2400, 1600).finished_at,
    ),
    Anchor(
        "2,400/1,600, one user: whole answer, 8xH200 FP8", "deepseek-v3.2", "tp8-h200", "s", 14.716,
        "Microsoft and NVIDIA", False, lambda capacity: alone(capacity, 2400, 1600).finished_at,
    ),
    Anchor(
        "2,048/512, 256 at once, TP4", "minimax-m2.5", "tp4", "tok/s", 8838.0, "Vultr", False,
        lambda capacity: saturated(capacity, 2048, 512, 256),
    ),
    Anchor("one user", "qwen3.5-397b", "tp8", "tok/s", 163.0, "vLLM recipes", True, _decode_speed),
    Anchor("ITL at 32 sequences", "llama-3.3-70b", "tp2", "ms", 16.6 + 0.188 * 32, _SWEEP, True, _sweep(32)),
    Anchor("ITL at 128 sequences", "llama-3.3-70b", "tp2", "ms", 16.6 + 0.188 * 128, _SWEEP, True, _sweep(128)),
    Anchor(
        "2xH100 with a draft, 64 at once", "llama-3.3-70b", "tp2-spec", "tok/s", 2000.0,
        "DigitalOcean, 2026-02-19 (lengths and concurrency not stated; 1,000/500 and 64 taken here)", False,
        lambda capacity: saturated(_slots(capacity, 64), 1000, 500, 64),
    ),
    Anchor(
        "2xH100 with a draft: first token", "llama-3.3-70b", "tp2-spec", "s", 0.1879,
        "DigitalOcean, 2026-02-19 (1,000 tokens taken here)", False,
        lambda capacity: alone(capacity, 1000, 2).first_token_at,
    ),
)  # fmt: skip


def check_all(catalog: Catalog) -> list[AnchorResult]:
    """Return every anchor's result with the catalog's figures."""
    return [
        AnchorResult(anchor, anchor.predict(catalog.models[anchor.model].profile(anchor.profile).capacity))
        for anchor in ANCHORS
    ]
