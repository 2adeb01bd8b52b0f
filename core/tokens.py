"""Token counts of one request, as the engine reported them."""

import msgspec


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Counts in tokens; cached is part of input, reasoning is part of output (DESIGN §9)."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """Both together, each count by itself."""
        return TokenUsage(
            self.input + other.input,
            self.cached_input + other.cached_input,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    @property
    def uncached_input(self) -> int:
        """Prompt tokens the engine had to prefill."""
        return self.input - self.cached_input

    @property
    def total(self) -> int:
        """Input (cached included) plus output: the divisor of every per-million figure."""
        return self.input + self.output


NO_TOKENS = TokenUsage()
