"""Learned estimates per tenant and model: tokens per byte of a prompt, and tokens of an answer.

Rates and placement use estimates, which are corrected when the request ends. Holds use upper bounds instead. Nothing is
learned from the requests of other tenants: a tenant whose answers are long would raise what others reserve.
"""

import msgspec

MAX_ENTRIES = 20_000
"""Pairs of tenant and model with averages, about 200 bytes each; the one that learned longest ago is dropped."""
_EMA_WEIGHT = 0.05
"""Least weight of the newest request in the moving averages; the first requests count more, as in a plain average."""
_INITIAL_TOKENS_PER_BYTE = 0.3
"""Tokens per byte before anything is learned: English and code have about 3.3 bytes a token."""
_INITIAL_OUTPUT_TOKENS = 256.0
"""Tokens of an answer before anything is learned."""
_INITIAL_COUNT = 4
"""Requests that the initial values count as."""
_MIN_LEARNED_BYTES = 64
"""Bytes of the shortest prompt that is learned from: in shorter ones the chat template dominates."""


class _Averages(msgspec.Struct, gc=False):
    """What was learned of one pair; the counts are those of the requests averaged, initial values included."""

    tokens_per_byte: float = _INITIAL_TOKENS_PER_BYTE
    output: float = _INITIAL_OUTPUT_TOKENS
    prompts: int = _INITIAL_COUNT
    answers: int = _INITIAL_COUNT


_NOTHING_LEARNED = _Averages()


class Estimator:
    """Moving averages per tenant and model. One per process; its size is bounded by MAX_ENTRIES."""

    def __init__(self) -> None:
        self._learned: dict[tuple[str, str], _Averages] = {}
        """Averages by tenant id and model; the pair that learned last is the last one."""

    def __len__(self) -> int:
        return len(self._learned)

    def estimate(
        self, tenant: str, model: str, prompt_bytes: int, max_tokens: int, choices: int
    ) -> tuple[int, int]:
        """Estimated tokens of a prompt of `prompt_bytes` bytes and of an answer over all `choices`, each at least 1.

        A choice has at most `max_tokens`; 0 = no limit.
        """
        learned = self._learned.get((tenant, model), _NOTHING_LEARNED)
        each = min(learned.output, max_tokens) if max_tokens else learned.output
        return int(prompt_bytes * learned.tokens_per_byte) + 1, max(1, int(each * choices))

    def learn(
        self,
        tenant: str,
        model: str,
        prompt_bytes: int,
        input_tokens: int,
        output_tokens: int,
        choices: int,
    ) -> None:
        """Update the averages with a finished request; `output_tokens` are over all `choices`."""
        key = (tenant, model)
        learned = self._learned.pop(key, None)
        if learned is None:
            learned = _Averages()
            if len(self._learned) >= MAX_ENTRIES:
                del self._learned[next(iter(self._learned))]
        self._learned[key] = learned
        if prompt_bytes >= _MIN_LEARNED_BYTES and input_tokens > 0:
            learned.prompts += 1
            weight = max(_EMA_WEIGHT, 1 / learned.prompts)
            learned.tokens_per_byte += weight * (input_tokens / prompt_bytes - learned.tokens_per_byte)
        if output_tokens > 0:
            learned.answers += 1
            weight = max(_EMA_WEIGHT, 1 / learned.answers)
            learned.output += weight * (output_tokens / choices - learned.output)
