"""Learned estimates per model: tokens per byte of a prompt, and tokens of an answer.

Rates and placement use estimates, which are corrected when the request ends. Holds use upper bounds instead.
"""

import msgspec

_EMA_WEIGHT = 0.05
"""Weight of the newest request in the exponential moving averages."""
_INITIAL_TOKENS_PER_BYTE = 0.3
"""Tokens per byte before anything is learned: English and code have about 3.3 bytes a token."""
_INITIAL_OUTPUT_TOKENS = 256.0
"""Tokens of an answer before anything is learned."""
_MIN_LEARNED_BYTES = 64
"""Bytes of the shortest prompt that is learned from: in shorter ones the chat template dominates."""


class _Averages(msgspec.Struct):
    tokens_per_byte: float = _INITIAL_TOKENS_PER_BYTE
    output: float = _INITIAL_OUTPUT_TOKENS


class Estimator:
    """Moving averages per model. One per process; its size is bounded by the number of models."""

    def __init__(self) -> None:
        self._models: dict[str, _Averages] = {}

    def input_tokens(self, model: str, prompt_bytes: int) -> int:
        """Estimated tokens of a prompt of `prompt_bytes` bytes, at least 1."""
        learned = self._models.get(model)
        ratio = learned.tokens_per_byte if learned else _INITIAL_TOKENS_PER_BYTE
        return int(prompt_bytes * ratio) + 1

    def output_tokens(self, model: str, max_tokens: int, choices: int) -> int:
        """Estimated tokens of an answer over all `choices`, at least 1.

        A choice has at most `max_tokens`; 0 = no limit.
        """
        learned = self._models.get(model)
        guess = learned.output if learned else _INITIAL_OUTPUT_TOKENS
        each = min(guess, max_tokens) if max_tokens else guess
        return max(1, int(each * choices))

    def learn(
        self, model: str, prompt_bytes: int, input_tokens: int, output_tokens: int, choices: int
    ) -> None:
        """Update the averages with a finished request; `output_tokens` are over all `choices`."""
        learned = self._models.setdefault(model, _Averages())
        if prompt_bytes >= _MIN_LEARNED_BYTES and input_tokens > 0:
            learned.tokens_per_byte += _EMA_WEIGHT * (input_tokens / prompt_bytes - learned.tokens_per_byte)
        if output_tokens > 0:
            learned.output += _EMA_WEIGHT * (output_tokens / choices - learned.output)
