"""Compares the step model with published figures for the same hardware.

An anchor is `calibrated` when the catalog's figures were computed from it: agreement then only shows that the
arithmetic is correct. The others are predictions.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sim.engine.step_model.engine import StepEngine
from sim.engine.step_model.interface import StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import LockstepEngine, step_engine
from workers.catalog import Catalog, EngineProfile
from workers.wire import USUAL_BATCHED_TOKENS, Capacity


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
    predict: Callable[[EngineProfile], float]


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
    """Return the job of a request alone on an idle engine, without its time beside the steps; lengths in tokens."""
    engine = _engine(capacity)
    job = Job(0, prompt, output)
    engine.add(job, 0.0)
    engine.advance(float("inf"))
    return job


def first_token_s(capacity: Capacity, prompt: int) -> float:
    """Return the seconds to the first token of a request alone."""
    return alone(capacity, prompt, 2).first_token_at + capacity.request_s


def answer_s(capacity: Capacity, prompt: int, output: int) -> float:
    """Return the seconds of a whole answer to a request alone."""
    return alone(capacity, prompt, output).finished_at + capacity.request_s


def saturated(capacity: Capacity, prompt: int, output: int, at_once: int) -> float:
    """Return output tokens per second with `at_once` requests always in flight."""
    engine = _engine(capacity)
    wanted = 4 * at_once
    for key in range(wanted):
        engine.add(Job(key, prompt, output), 0.0)
    engine.advance(float("inf"))
    return wanted * output / engine.clock


def _engine(capacity: Capacity) -> StepEngine | LockstepEngine:
    """An engine with steps of the usual size, whatever the profile's: these figures are not of our engines."""
    usual = msgspec.structs.replace(capacity, max_batched_tokens=USUAL_BATCHED_TOKENS)
    return step_engine(StepConfig(usual, noise_cv=0.0), random.Random(0))  # noqa: S311 - a simulation


def _decode_speed(capacity: Capacity, prompt: int = 100) -> float:
    job = alone(capacity, prompt, 1000)
    return 999 / (job.finished_at - job.first_token_at)


def _slots(capacity: Capacity, at_once: int) -> Capacity:
    return msgspec.structs.replace(capacity, max_num_seqs=at_once)


_VLLM = "vLLM blog, 2026-05-11"
_DO = "DigitalOcean serverless, Artificial Analysis, April 2026"
_GB200 = "Microsoft and NVIDIA, TensorRT-LLM, NVFP4, MTP=3"
_VULTR_V3 = (
    "Vultr (V3-0324, FP8 quantised while loading, no MTP, no sparse attention; swept 1 to 1,024 users)"
)
_VULTR_M2 = "Vultr (vLLM 0.12, without a draft; peak of a sweep)"
_TRT_DP = "TensorRT-LLM tech blog 15 (V3.2-Exp NVFP4, 8xB200, MTP-1)"

ANCHORS = (
    Anchor("one user, no speculation", "deepseek-v3.2", "tp8", "tok/s", 125.0, _VLLM, True,
           lambda profile: _decode_speed(profile.plain)),
    Anchor("one user, MTP=1", "deepseek-v3.2", "tp8", "tok/s", 234.0, _VLLM, False,
           lambda profile: _decode_speed(profile.capacity)),
    Anchor("one user, 10,000-token prompt: first token", "deepseek-v3.2", "tp8", "s", 0.96, _DO, False,
           lambda profile: first_token_s(profile.capacity, 10_000)),
    Anchor("one user, 10,000-token prompt: speed", "deepseek-v3.2", "tp8", "tok/s", 230.0, _DO, False,
           lambda profile: _decode_speed(profile.capacity, 10_000)),
    Anchor("2,048/512, 512 at once: another model on 8xB200", "deepseek-v3.2", "tp8", "tok/s", 4370.0, _VULTR_V3, False,
           lambda profile: saturated(_slots(profile.plain, 512), 2048, 512, 512)),
    Anchor("8,192/1,024, 768 at once: input", "deepseek-v3.2", "dp8", "tok/s", 68_946.0, _TRT_DP, False,
           lambda profile: 8.0 * saturated(_slots(profile.capacity, 768), 8192, 1024, 768)),
    Anchor("2,400/1,600, one user: whole answer", "deepseek-v3.2", "tp4-gb200", "s", 5.801, _GB200, True,
           lambda profile: answer_s(profile.capacity, 2400, 1600)),
    Anchor("2,400/1,600, one user: whole answer, 8xH200 FP8, taken as without MTP", "deepseek-v3.2", "tp8-h200", "s",
           14.716, "Microsoft and NVIDIA", True, lambda profile: answer_s(profile.plain, 2400, 1600)),
    Anchor("2,048/512, 512 at once, TP4: 4xB200", "minimax-m2.5", "tp4", "tok/s", 8838.0, _VULTR_M2, False,
           lambda profile: saturated(_slots(profile.plain, 512), 2048, 512, 512)),
    Anchor("one user, MTP=2", "qwen3.5-397b", "tp8", "tok/s", 163.0, "vLLM recipes", True,
           lambda profile: _decode_speed(profile.capacity)),
    Anchor("2xH100 with a draft, 64 at once", "llama-3.3-70b", "tp2-spec", "tok/s", 2000.0,
           "DigitalOcean, 2026-02-19 (lengths and concurrency not stated; 1,000/500 and 64 taken here)", False,
           lambda profile: saturated(_slots(profile.capacity, 64), 1000, 500, 64)),
    Anchor("2xH100 with a draft: first token", "llama-3.3-70b", "tp2-spec", "s", 0.1879,
           "DigitalOcean, 2026-02-19 (1,000 tokens taken here)", False,
           lambda profile: first_token_s(profile.capacity, 1000)),
)  # fmt: skip


def check_all(catalog: Catalog) -> list[AnchorResult]:
    """Return every anchor's result with the catalog's figures."""
    return [
        AnchorResult(anchor, anchor.predict(catalog.models[anchor.model].profile(anchor.profile)))
        for anchor in ANCHORS
    ]
