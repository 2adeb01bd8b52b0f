"""Measures an engine of which no profile is known: one decode and one prefill.

The figures are where the scheduler starts to learn (scheduler/core/capacity_estimate.py), not a benchmark: other
requests may run meanwhile, and a lone sequence does not show what a further one adds.
"""

import logging

import msgspec

from core.clock import Clock
from core.errors import EngineFailed
from core.ids import incarnation
from workers.engine_api import EngineApi
from workers.wire import Capacity

SENTENCE = "The water runs from the lake through the pipe and turns the wheel. "
LONG = 64
"""Sentences of the prompt whose prefill is measured: about a thousand tokens."""
DECODED = 16
"""Output tokens after the first whose time is measured."""
ANSWER_TIMEOUT_S = 20.0
"""Longest time of one of the requests; an engine that needs longer stays unmeasured."""
PER_SEQUENCE = 1 / 150
"""Assumed time that a sequence adds to a step, per time of a step with one. Published sweeps lie near it."""
RATES = (10.0, 1e6)
STEPS_S = (1e-5, 60.0)
"""Range of measured figures: prompt tokens per second, seconds of a step."""

log = logging.getLogger(__name__)


class Timings(msgspec.Struct, frozen=True):
    """How long small requests took, one after the other, on an engine that has cached none of the long prompt."""

    first_s: float
    """One token after a short prompt."""
    few: int
    """Tokens of the short prompt."""
    answer_s: float
    """`tokens` tokens after the short prompt."""
    tokens: int
    prompt_s: float
    """One token after a long prompt."""
    many: int
    """Tokens of the long prompt."""

    @property
    def step_s(self) -> float:
        """Seconds of a token after the first."""
        return (self.answer_s - self.first_s) / (self.tokens - 1)

    @property
    def prefill_s(self) -> float:
        """Seconds that the tokens by which the long prompt is longer took; not above 0 where noise hides them."""
        return self.prompt_s - self.first_s


async def timed(
    api: EngineApi,
    model: str,
    clock: Clock,
    *,
    sentences: int = LONG,
    tokens: int = 1 + DECODED,
    whole: bool = False,
) -> Timings | None:
    """The times of four small requests to `model`; None when the engine does not answer them all.

    `sentences` make the long prompt, `tokens` the answer. `whole`: an end of the text does not end the answer; only
    vLLM is known to take that.
    """

    async def ask(text: str, tokens: int) -> tuple[float, int, int]:
        """Seconds, prompt tokens and output tokens of an answer."""
        began = clock.monotonic()
        usage = await api.answer(model, text, tokens, ANSWER_TIMEOUT_S, whole=whole)
        return clock.monotonic() - began, usage.prompt_tokens, usage.completion_tokens

    try:
        await ask(SENTENCE, 1)  # loads and compiles what is missing
        first_s, few, _ = await ask(SENTENCE, 1)
        answer_s, _, answered = await ask(SENTENCE, tokens)
        prompt_s, many, _ = await ask(f"{incarnation('probe')} {SENTENCE * sentences}", 1)  # in no cache
    except EngineFailed as error:
        log.info("the speed of %s was not measured: %s", model, error.message)
        return None
    if answered < 2 or many <= few:
        return None
    return Timings(first_s, few, answer_s, answered, prompt_s, many)


async def measured(api: EngineApi, model: str, assumed: Capacity, clock: Clock) -> Capacity | None:
    """`assumed` with what four small requests to `model` show; None when the engine does not answer them all."""
    times = await timed(api, model, clock)
    if times is None:
        return None
    step_s = _within(times.step_s, STEPS_S)
    rate = assumed.prefill_tokens_per_s
    if times.prefill_s > 0:
        rate = _within((times.many - times.few) / times.prefill_s, RATES)
    return msgspec.structs.replace(
        assumed,
        prefill_tokens_per_s=rate,
        step_base_s=step_s,
        step_per_seq_s=step_s * PER_SEQUENCE,
        request_s=max(0.0, times.first_s - step_s),
        assumed=False,
    )


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
