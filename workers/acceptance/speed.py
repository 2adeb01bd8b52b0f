"""Probes a fresh engine with one user's requests, and compares it with the figures of its profile."""

import msgspec

from core.clock import Clock
from core.errors import EngineFailed
from workers.acceptance.readings import SpeedReading
from workers.acceptance.rules import SPEED_DEGRADED
from workers.engine_api import EngineApi
from workers.engine_speed import Timings, timed
from workers.step_time import decode_step_s, prefill_s
from workers.wire import Capacity, EngineCounters

PROBES = 3
"""Probes, of which the shortest of each time counts: what else the processor did makes times longer, never shorter."""
SENTENCES = 512
"""Of the long prompt: about 8,000 tokens, one step of an engine on a GPU."""
SHORT = 32
"""The prompt is at most this part of the context's tokens in sentences, which have about sixteen each."""
TOKENS = 33
ENOUGH = 17
"""Tokens that an answer must have to be a measure."""
SHARE_MAX = 2.0
"""Largest share that is reported; a measurement cannot show more."""


async def probe(
    api: EngineApi, model: str, replica_id: str, stated: Capacity, clock: Clock
) -> SpeedReading | None:
    """The engine's speed beside `stated`; None when it does not answer. Nothing else may run on it."""
    sentences = max(1, min(SENTENCES, stated.max_model_len // SHORT))
    try:
        before = (await api.metrics()).counters
        probes = [
            times
            for _ in range(PROBES)
            if (times := await timed(api, model, clock, sentences=sentences, tokens=TOKENS, whole=True))
            is not None
            and times.tokens >= ENOUGH
        ]
        after = (await api.metrics()).counters
    except EngineFailed:
        return None
    if not probes:
        return None
    prefill, decode = compare(shortest(probes), stated, accepted(before, after, stated))
    return SpeedReading(replica_id, round(prefill, 3), round(decode, 3), validated=bool(stated.sweep))


def shortest(probes: list[Timings]) -> Timings:
    """The shortest of each time of several probes, which all have the same short prompt."""
    fastest = min(probes, key=lambda times: times.prompt_s / times.many)
    answer = min(probes, key=lambda times: times.answer_s / times.tokens)
    return Timings(
        first_s=min(times.first_s for times in probes),
        few=fastest.few,
        answer_s=answer.answer_s,
        tokens=answer.tokens,
        prompt_s=fastest.prompt_s,
        many=fastest.many,
    )


def accepted(before: EngineCounters, after: EngineCounters, stated: Capacity) -> float:
    """Tokens per step and sequence between two scrapes; the stated ones of an engine that does not count them."""
    drafts = after.drafts - before.drafts
    if drafts <= 0:
        return stated.accept_per_step
    return 1.0 + (after.accepted_tokens - before.accepted_tokens) / drafts


def compare(times: Timings, stated: Capacity, accept: float) -> tuple[float, float]:
    """Shares of the stated speed of prefill and decode: predicted over measured time, at most SHARE_MAX.

    `accept` tokens came of a step. A prompt alone has one rank of attention data parallelism for itself.
    """
    added = stated.dp_ranks * (
        prefill_s(stated, times.many, times.many) - prefill_s(stated, times.few, times.few)
    )
    step = decode_step_s(stated, 1, times.few) / accept
    return _share(added, times.prefill_s), _share(step, times.step_s)


def measured_capacity(stated: Capacity, speed: SpeedReading) -> Capacity:
    """`stated`, at the speed that was measured where it says more than the profile.

    A validated profile is slowed below SPEED_DEGRADED of its speed; one that is not validated is corrected both ways,
    and the scheduler learns on from there.
    """
    prefill, decode = speed.prefill_share, speed.decode_share
    if speed.validated:
        if speed.slowest >= SPEED_DEGRADED:
            return stated
        prefill, decode = min(1.0, prefill), min(1.0, decode)
    return msgspec.structs.replace(
        stated,
        prefill_tokens_per_s=stated.prefill_tokens_per_s * prefill,
        prefill_pair_s=stated.prefill_pair_s / prefill,
        step_base_s=stated.step_base_s / decode,
        step_per_seq_s=stated.step_per_seq_s / decode,
        step_per_kv_token_s=stated.step_per_kv_token_s / decode,
        step_experts_s=stated.step_experts_s / decode,
    )


def _share(predicted_s: float, measured_s: float) -> float:
    """`measured_s` at or below 0 is noise: as fast as can be shown."""
    return SHARE_MAX if measured_s <= 0 else min(SHARE_MAX, max(0.001, predicted_s / measured_s))
