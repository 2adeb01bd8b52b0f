"""Learned guesses: tokens per byte of prompt and tokens of an answer, per model.

Rates and placement work with guesses, corrected when the request ends. Money never does: holds use upper bounds.
"""

import msgspec

_EMA_WEIGHT = 0.05
"""Weight of the newest request in the moving averages."""
_INITIAL_TOKENS_PER_BYTE = 0.3
"""English and code run at about 3.3 bytes a token before anything is learned."""
_INITIAL_OUTPUT_TOKENS = 256.0
_MIN_LEARNED_BYTES = 64
"""Prompts shorter than this say more about the template than about the text."""


class _Averages(msgspec.Struct):
    tokens_per_byte: float = _INITIAL_TOKENS_PER_BYTE
    output: float = _INITIAL_OUTPUT_TOKENS


class Estimator:
    """Moving averages per model; one per process, bounded by the number of models served."""

    def __init__(self) -> None:
        self._models: dict[str, _Averages] = {}

    def input_tokens(self, model: str, prompt_bytes: int) -> int:
        """A guess of the prompt's tokens, at least 1."""
        learned = self._models.get(model)
        ratio = learned.tokens_per_byte if learned else _INITIAL_TOKENS_PER_BYTE
        return int(prompt_bytes * ratio) + 1

    def output_tokens(self, model: str, max_tokens: int, choices: int) -> int:
        """A guess of the answer's tokens over all choices, at least 1 and never above what was asked for."""
        learned = self._models.get(model)
        guess = learned.output if learned else _INITIAL_OUTPUT_TOKENS
        each = min(guess, max_tokens) if max_tokens else guess
        return max(1, int(each * choices))

    def learn(
        self, model: str, prompt_bytes: int, input_tokens: int, output_tokens: int, choices: int
    ) -> None:
        """Take a finished request into account."""
        learned = self._models.setdefault(model, _Averages())
        if prompt_bytes >= _MIN_LEARNED_BYTES and input_tokens > 0:
            learned.tokens_per_byte += _EMA_WEIGHT * (input_tokens / prompt_bytes - learned.tokens_per_byte)
        if output_tokens > 0:
            learned.output += _EMA_WEIGHT * (output_tokens / choices - learned.output)
